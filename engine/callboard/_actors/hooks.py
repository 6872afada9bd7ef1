"""Call plugins' hooks away from the scheduler: what one plugin does not return from holds up no other plugin."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from callboard._actors.dispatcher import Dispatcher
from callboard._actors.forked import end_child
from callboard._actors.stacks import stack_of
from callboard._clock import NEVER_NS, nanoseconds
from callboard._log import logger
from callboard._pid import current_pid
from callboard._plugins import PluginHook
from callboard._retry import DEFAULT_POLICY, backoff_ns
from callboard._task import FinishedTask

if TYPE_CHECKING:
    from callboard._core import Core

MAX_EVENTS = 1_000
"""Events that may wait for one plugin; more are dropped, and one reconcile makes up for them (rule 19)."""

MAX_FINISHED = 10_000
"""Ended tasks that may wait for one plugin to observe them; it is not told of more."""

HOOK_TIMEOUT_NS = nanoseconds(timedelta(minutes=5))
"""A hook that takes longer is warned of and shown in `Engine.health`; nothing can make it return."""


class OverdueHook(NamedTuple):
    """A hook that has not returned for longer than `HOOK_TIMEOUT_NS`; durations are nanoseconds.

    Attributes:
        stack: where it is.
    """

    plugin: str
    hook: str
    running_ns: int
    stack: str


class _Lane:
    """What one plugin has yet to be told, one call at a time."""

    def __init__(self, plugin: str) -> None:
        self.plugin = plugin
        self.events: deque[object] = deque()
        self.finished: list[FinishedTask] = []
        self.untold = 0
        self.busy = False

    def is_empty(self) -> bool:
        return not self.events and not self.finished


class _Call:
    """A hook that is running."""

    __slots__ = ("began_ns", "hook", "thread_id", "warned")

    def __init__(self, hook: PluginHook, began_ns: int) -> None:
        self.hook = hook
        self.began_ns = began_ns
        self.thread_id = threading.get_ident()
        self.warned = False


class HookCaller:
    """The hooks that run on the pool, and what of them is still to come.

    Attributes:
        untold: of how many ended tasks a plugin was not told, because too many waited for it.
    """

    def __init__(self, core: Core, dispatcher: Dispatcher, wake: Callable[[], None]) -> None:
        """Call the hooks of `core`; `wake` tells the scheduler that one has ended."""
        self._core = core
        self._dispatcher = dispatcher
        self._wake = wake
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._calls: dict[int, _Call] = {}
        # For each plugin that still has to reconcile: why, how often it failed, when it is next tried.
        self._wanted: dict[str, tuple[str, int, int]] = {}
        self._running: set[str] = set()
        self.untold = 0

    def publish(self, event: object) -> bool:
        """Have plugins told of `event`; `False` when it was dropped for one of them because too many wait."""
        kept = True
        for hook in self._core.plugins.hooks("callboard_event"):
            with self._lock:
                lane = self._lane(hook)
                has_room = len(lane.events) < MAX_EVENTS
                if has_room:
                    lane.events.append(event)
            kept = kept and has_room
            self._work_off(lane)
        return kept

    def tell_finished(self, finished: list[FinishedTask]) -> None:
        """Have plugins told of tasks that ended: all that wait for one plugin become one batch."""
        for hook in self._core.plugins.hooks("callboard_tasks_finished"):
            with self._lock:
                lane = self._lane(hook)
                room = MAX_FINISHED - len(lane.finished)
                lane.finished += finished[:room]
                dropped = len(finished[room:])
                first = dropped > 0 and lane.untold == 0
                lane.untold += dropped
                self.untold += dropped
            if first:
                logger.warning(
                    "plugin {} is not told of ended tasks until it is done with the {} that wait for its {}",
                    hook.plugin,
                    MAX_FINISHED,
                    hook.hook,
                )
            self._work_off(lane)

    def want_reconcile(self, reason: str, not_before_ns: int = 0) -> None:
        """Have every plugin reconcile, soon or at `not_before_ns`."""
        with self._lock:
            for hook in self._core.plugins.hooks("callboard_reconcile"):
                wanted = self._wanted.get(hook.plugin)
                if wanted is None or (wanted[1] == 0 and wanted[2] > not_before_ns):
                    self._wanted[hook.plugin] = (reason, 0, not_before_ns)
        self._wake()

    def bring_back(self) -> None:
        """Have no reconcile wait longer than the longest backoff, whatever the clock was set to."""
        latest_ns = self._core.clock.now_ns() + DEFAULT_POLICY.cap_ns
        with self._lock:
            self._wanted = {
                plugin: (reason, failures, min(at_ns, latest_ns))
                for plugin, (reason, failures, at_ns) in self._wanted.items()
            }

    def start_due(self, now_ns: int) -> None:
        """Start the reconciles that are due, unless the plugin's one before has not returned."""
        hooks = self._core.plugins.hooks("callboard_reconcile")
        with self._lock:
            for disabled in self._wanted.keys() - {hook.plugin for hook in hooks}:
                del self._wanted[disabled]
        for hook in hooks:
            with self._lock:
                wanted = self._wanted.get(hook.plugin)
                if wanted is None or wanted[2] > now_ns or hook.plugin in self._running:
                    continue
                del self._wanted[hook.plugin]
                self._running.add(hook.plugin)
            self._dispatcher.submit(partial(self._reconcile, hook, *wanted[:2]))

    def deadline_ns(self) -> int:
        """Return when the next reconcile that failed is tried again; the end of one that runs wakes by itself."""
        with self._lock:
            waiting = (wanted[2] for plugin, wanted in self._wanted.items() if plugin not in self._running)
            return min(waiting, default=NEVER_NS)

    def is_told(self) -> bool:
        """Return whether plugins have been told of every event and every task that ended, and none reconciles."""
        with self._lock:
            waiting = any(lane.busy or not lane.is_empty() for lane in self._lanes.values())
            return not self._running and not waiting

    def is_idle(self, now_ns: int) -> bool:
        """Return whether nothing is running or due."""
        with self._lock:
            due = any(at_ns <= now_ns for _, _, at_ns in self._wanted.values())
        return not due and self.is_told()

    def watch(self) -> None:
        """Warn, once, of each hook that has not returned for long."""
        for call in self._overdue():
            if not call.warned:
                call.warned = True
                logger.warning("plugin {}: {} has not returned for minutes", call.hook.plugin, call.hook.hook)

    def is_in_one(self) -> bool:
        """Return whether the calling thread is in a hook."""
        with self._lock:
            return any(call.thread_id == threading.get_ident() for call in self._calls.values())

    def overdue(self) -> list[OverdueHook]:
        """Return the hooks that have not returned for long."""
        now_ns = self._core.clock.monotonic_ns()
        return [
            OverdueHook(call.hook.plugin, call.hook.hook, now_ns - call.began_ns, stack_of(call.thread_id))
            for call in self._overdue()
        ]

    def _overdue(self) -> list[_Call]:
        now_ns = self._core.clock.monotonic_ns()
        with self._lock:
            return [call for call in self._calls.values() if now_ns - call.began_ns > HOOK_TIMEOUT_NS]

    def _lane(self, hook: PluginHook) -> _Lane:
        return self._lanes.setdefault(hook.plugin, _Lane(hook.plugin))

    def _work_off(self, lane: _Lane) -> None:
        """Have the lane's plugin called, unless it is being called or there is nothing to tell."""
        with self._lock:
            if lane.busy or lane.is_empty():
                return
            lane.busy = True
        self._dispatcher.submit(partial(self._tell, lane))

    def _tell(self, lane: _Lane) -> None:
        """Make one call of a lane, and have the next one made after whatever else waits for a thread."""
        with self._lock:
            arguments: dict[str, Any]
            if lane.events:
                name, arguments = "callboard_event", {"event": lane.events.popleft()}
            else:
                name, arguments = "callboard_tasks_finished", {"finished": lane.finished}
                lane.finished, lane.untold = [], 0
        try:
            for hook in self._core.plugins.hooks(name):
                if hook.plugin == lane.plugin:
                    self._call(hook, **arguments)
        finally:
            with self._lock:
                lane.busy = False
            self._work_off(lane)
            self._wake()

    def _reconcile(self, hook: PluginHook, reason: str, failures: int) -> None:
        succeeded = False
        try:
            succeeded = self._call(hook, reason=reason)
        finally:
            with self._lock:
                self._running.discard(hook.plugin)
                if not succeeded:
                    retry = DEFAULT_POLICY
                    wait_ns = backoff_ns(failures + 1, retry.initial_ns, retry.factor, retry.cap_ns)
                    at_ns = self._core.clock.now_ns() + wait_ns
                    self._wanted.setdefault(hook.plugin, (reason, failures + 1, at_ns))
            self._wake()
        if not succeeded:
            logger.info("reconcile of plugin {} is tried again in {:.0f} s", hook.plugin, wait_ns / 1e9)

    def _call(self, hook: PluginHook, **arguments: Any) -> bool:
        pid = current_pid()
        call = _Call(hook, self._core.clock.monotonic_ns())
        with self._lock:
            self._calls[id(call)] = call
        try:
            return self._core.plugins.call(hook, engine=self._core.engine, **arguments)[0]
        finally:
            end_child(pid, "a hook")
            with self._lock:
                del self._calls[id(call)]
