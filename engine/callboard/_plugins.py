"""Find plugins, load each on its own, and call each one's hooks on their own.

pluggy stops at the first hook that raises, and its entry-point loader at the first bad import; a host that
installs ten plugins must be able to lose one. So every plugin gets a caller of its own for each hook it has.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy

from callboard import _hook_checks, hookspec
from callboard._error_text import trace_of
from callboard._hook_checks import HOOKS, KINDS_HOOK
from callboard._kinds import KindRegistry, TaskKind
from callboard._log import logger
from callboard.errors import KindError, PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from callboard._engine import Engine

BLOCK_VARIABLE = "CALLBOARD_BLOCK_PLUGINS"
"""The environment variable that names plugins not to load, separated by commas."""


@dataclass(slots=True)
class PluginHealth:
    """What became of one plugin.

    Attributes:
        name: its entry point's name, or its module's or class's.
        loaded: whether it was imported and registered.
        blocked: whether `block=` or `CALLBOARD_BLOCK_PLUGINS` says not to import it.
        kinds: the kinds of task it brought.
        problems: for each place that went wrong (`import`, `api`, a hook's name, a kind), the last error.
    """

    name: str
    loaded: bool = False
    blocked: bool = False
    kinds: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PluginHook:
    """One plugin's implementation of one hook."""

    plugin: str
    hook: str
    caller: pluggy.HookCaller


class PluginHost:
    """The plugins of one engine."""

    def __init__(self, selection: Sequence[Any] | None, block: Collection[str], registry: KindRegistry) -> None:
        """Remember which plugins to load: `None` for all installed, else names and objects; without `block`."""
        self._selection = selection
        self._block = block
        self._registry = registry
        self._manager = pluggy.PluginManager(hookspec.PROJECT)
        self._manager.add_hookspecs(hookspec)
        self._hooks: dict[str, list[PluginHook]] = {name: [] for name in HOOKS}
        self._namesakes: set[str] = set()
        self.health: dict[str, PluginHealth] = {}

    def load(self, engine: Engine) -> None:
        """Import, register and ask each plugin for its kinds.

        Raises:
            PluginError: a plugin asked for by name is not installed.
        """
        loaded: dict[str, Any] = {}
        blocked = self._blocked()
        for known_as, source in self._sources(blocked):
            name = known_as
            if known_as in self.health:
                name = f"{known_as} ({len(self.health) + 1})"
                self._namesakes.update((known_as, name))
            health = self.health[name] = PluginHealth(name, blocked=known_as in blocked)
            if health.blocked:
                continue
            where = "import"
            try:
                plugin = _hook_checks.made_from(_load(source))
                where = "api"
                _hook_checks.check_api(plugin)
                where = "import"
                self._register(plugin, name, loaded)
            except BaseException as error:
                self._report(name, where, error)
                continue
            health.loaded = True
            loaded[name] = plugin
        self._registry.blocked = sorted(name for name, health in self.health.items() if health.blocked)
        for name, plugin in loaded.items():
            others = [other for other in loaded.values() if other is not plugin]
            for caller in self._manager.get_hookcallers(plugin) or ():
                own = self._manager.subset_hook_caller(caller.name, others)
                self._hooks[caller.name].append(PluginHook(name, caller.name, own))
        self._collect_kinds(engine)

    def hooks(self, name: str) -> list[PluginHook]:
        """Return the implementations of a hook; empty, and free, when there is none."""
        return self._hooks[name]

    def is_namesake(self, plugin: str) -> bool:
        """Return whether another plugin here is called so, too; a number in the name tells them apart."""
        return plugin in self._namesakes

    def refuse(self, plugin: str, where: str, error: BaseException) -> None:
        """Report what is wrong with a plugin, and disable it."""
        self._report(plugin, where, error)
        self.disable(plugin)

    def disable(self, plugin: str) -> None:
        """Call no hook of a plugin any more, and leave its tasks to other nodes."""
        self._hooks = {
            name: [hook for hook in hooks if hook.plugin != plugin] for name, hooks in self._hooks.items()
        }
        self._registry.disable(plugin)

    def call(self, hook: PluginHook, **arguments: Any) -> tuple[bool, Any]:
        """Call one plugin's hook; return whether it succeeded, and what it returned."""
        try:
            results = hook.caller(**arguments)
            returned = results[0] if results else None
            complaint = None if hook.hook in _hook_checks.LISTING_HOOKS else _hook_checks.complaint_of(returned)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            self._report(hook.plugin, hook.hook, error)
            return False, None
        if complaint is None:
            self.health[hook.plugin].problems.pop(hook.hook, None)
            return True, returned
        if hook.hook not in self.health[hook.plugin].problems:  # once, since it may be called for each task
            self._report(hook.plugin, hook.hook, PluginError(complaint))
        return not _hook_checks.is_undone(returned), None

    def _sources(self, blocked: Collection[str]) -> Iterable[tuple[str, Any]]:
        # Not above: it would be a third of the time that importing callboard takes.
        from importlib.metadata import entry_points

        installed: dict[str, list[EntryPoint]] = {}
        for point in sorted(entry_points(group=hookspec.PROJECT), key=_distribution_of):
            installed.setdefault(point.name, []).append(point)
        self._warn_of_unknown(blocked, installed)
        if self._selection is None:
            yield from ((name, point) for name, points in sorted(installed.items()) for point in points)
            return
        for wanted in self._selection:
            if not isinstance(wanted, str):
                yield _name_of(wanted), wanted
            elif wanted in installed or wanted in blocked:
                yield from ((wanted, point) for point in installed.get(wanted, [None]))
            else:
                known = ", ".join(sorted(installed)) or "none"
                raise PluginError(f"no plugin {wanted!r} is installed (installed: {known}); install its package")

    def _blocked(self) -> set[str]:
        named = os.environ.get(BLOCK_VARIABLE, "").split(",")
        return {*self._block, *filter(None, (name.strip() for name in named))}

    def _warn_of_unknown(self, blocked: Collection[str], installed: Collection[str]) -> None:
        """Warn of what blocks nothing: one list may be meant for several hosts, so it is no error."""
        known = {*installed, *(_name_of(each) for each in self._selection or () if not isinstance(each, str))}
        for name in sorted(set(blocked) - known):
            logger.warning(
                "no plugin {!r} is installed, so that blocking it has no effect (installed: {})",
                name,
                ", ".join(sorted(known)) or "none",
            )

    def _register(self, plugin: Any, name: str, loaded: Mapping[str, Any]) -> None:
        for other, registered in loaded.items():
            if registered is plugin:
                raise PluginError(f"it is the same object as plugin {other!r}; give it once")
        _hook_checks.check_hooks(plugin)
        try:
            self._manager.register(plugin, name)
        except BaseException:
            if self._manager.has_plugin(name):
                self._manager.unregister(name=name)
            raise

    def _collect_kinds(self, engine: Engine) -> None:
        for hook in self.hooks("callboard_task_kinds"):
            succeeded, kinds = self.call(hook, engine=engine)
            if not succeeded:
                continue
            try:
                for kind in _hook_checks.items_of(kinds, TaskKind):
                    self._register_kind(kind, hook.plugin)
            except BaseException as error:
                self._report(hook.plugin, hook.hook, error)

    def _register_kind(self, kind: Any, plugin: str) -> None:
        try:
            self._registry.register(kind, plugin)
        except KindError as error:
            self._report(plugin, f"kind {kind.name!r}" if isinstance(kind, TaskKind) else KINDS_HOOK, error)
            return
        self.health[plugin].kinds.append(kind.name)

    def _report(self, plugin: str, where: str, error: BaseException) -> None:
        is_misuse = isinstance(error, (PluginError, KindError))
        text = str(error) if is_misuse else "".join(traceback.format_exception_only(error)).strip()
        self.health[plugin].problems[where] = text
        logger.error("plugin {}: {} failed, and the engine goes on: {}\n{}", plugin, where, text, trace_of(error))


def _distribution_of(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name


def _load(source: Any) -> Any:
    from importlib.metadata import EntryPoint

    return source.load() if isinstance(source, EntryPoint) else source


def _name_of(plugin: Any) -> str:
    return getattr(plugin, "__name__", type(plugin).__name__)
