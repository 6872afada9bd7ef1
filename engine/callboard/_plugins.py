"""Find plugins, load each on its own, and call each one's hooks on their own.

pluggy stops at the first hook that raises, and its entry-point loader at the first bad import; a host that
installs ten plugins must be able to lose one. So every plugin gets a caller of its own for each hook it has.
"""

from __future__ import annotations

import inspect
import threading
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy
from loguru import logger

from callboard import hookspec
from callboard._error_text import trace_of
from callboard._kinds import KindRegistry
from callboard.errors import KindError, PluginError

if TYPE_CHECKING:
    from callboard._engine import Engine

HOOKS = tuple(name for name in vars(hookspec) if name.startswith("callboard_"))


@dataclass(slots=True)
class PluginHealth:
    """What became of one plugin.

    Attributes:
        name: its entry point's name, or its module's or class's.
        loaded: whether it was imported and registered.
        kinds: the kinds of task it brought.
        problems: for each place that raised (`import`, a hook's name), the last error.
    """

    name: str
    loaded: bool = False
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

    def __init__(self, selection: Sequence[Any] | None, registry: KindRegistry) -> None:
        """Remember which plugins to load: `None` for all installed, else names and objects."""
        self._selection = selection
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
        for known_as, source in self._sources():
            name = known_as
            if known_as in self.health:
                name = f"{known_as} ({len(self.health) + 1})"
                self._namesakes.add(name)
            health = self.health[name] = PluginHealth(name)
            try:
                plugin = _make(source)
                self._register(plugin, name)
            except BaseException as error:
                self._report(name, "import", error)
                continue
            health.loaded = True
            loaded[name] = plugin
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
        """Return whether a plugin has a number in its name because another one here is called so, too."""
        return plugin in self._namesakes

    def refuse(self, plugin: str, where: str, error: BaseException) -> None:
        """Report what is wrong with a plugin, and block it."""
        self._report(plugin, where, error)
        self.block(plugin)

    def block(self, plugin: str) -> None:
        """Call no hook of a plugin any more, and leave its tasks to other nodes."""
        self._hooks = {
            name: [hook for hook in hooks if hook.plugin != plugin] for name, hooks in self._hooks.items()
        }
        self._registry.block(plugin)

    def call(self, hook: PluginHook, **arguments: Any) -> tuple[bool, Any]:
        """Call one plugin's hook; return whether it succeeded, and what it returned."""
        try:
            results = hook.caller(**arguments)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            self._report(hook.plugin, hook.hook, error)
            return False, None
        self.health[hook.plugin].problems.pop(hook.hook, None)
        return True, results[0] if results else None

    def _sources(self) -> Iterable[tuple[str, Any]]:
        # Not above: it would be a third of the time that importing callboard takes.
        from importlib.metadata import entry_points

        installed = {point.name: point for point in entry_points(group=hookspec.PROJECT)}
        if self._selection is None:
            yield from sorted(installed.items())
            return
        for wanted in self._selection:
            if not isinstance(wanted, str):
                yield getattr(wanted, "__name__", type(wanted).__name__), wanted
            elif wanted in installed:
                yield wanted, installed[wanted]
            else:
                known = ", ".join(sorted(installed)) or "none"
                raise PluginError(f"no plugin {wanted!r} is installed (installed: {known}); install its package")

    def _register(self, plugin: Any, name: str) -> None:
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()  # a misspelt hook is refused instead of never being called
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
                for kind in kinds or ():
                    self._register_kind(kind, hook.plugin)
            except BaseException as error:
                self._report(hook.plugin, hook.hook, error)

    def _register_kind(self, kind: Any, plugin: str) -> None:
        try:
            self._registry.register(kind, plugin)
        except KindError as error:
            self._report(plugin, f"kind {getattr(kind, 'name', kind)!r}", error)
            return
        self.health[plugin].kinds.append(kind.name)

    def _report(self, plugin: str, where: str, error: BaseException) -> None:
        text = "".join(traceback.format_exception_only(error)).strip()
        self.health[plugin].problems[where] = text
        logger.error("plugin {}: {} failed, and the engine goes on: {}\n{}", plugin, where, text, trace_of(error))


def _make(source: Any) -> Any:
    from importlib.metadata import EntryPoint

    plugin = source.load() if isinstance(source, EntryPoint) else source
    return plugin() if inspect.isclass(plugin) or inspect.isfunction(plugin) else plugin
