"""Call plugins' hooks away from the scheduler: events, ended tasks and reconciles, each in its own order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loguru import logger

from callboard._actors.dispatcher import Dispatcher
from callboard._actors.pooled import PooledActor
from callboard._clock import NEVER_NS
from callboard._plugins import PluginHook
from callboard._retry import DEFAULT_POLICY, backoff_ns

if TYPE_CHECKING:
    from callboard._core import Core

MAX_EVENTS = 1_000
"""Events that may wait for the plugins; more are dropped, and one reconcile makes up for them (rule 19)."""


class HookActor(PooledActor):
    """Make calls one after the other."""

    def on_receive(self, message: Any) -> None:
        """Make one call; whoever sends it sees to what it may raise."""
        message()


class HookCaller:
    """The hooks that run on the pool, and what of them is still to come."""

    def __init__(self, core: Core, dispatcher: Dispatcher, wake: Callable[[], None]) -> None:
        """Call the hooks of `core`; `wake` tells the scheduler that one has ended."""
        self._core = core
        self._wake = wake
        self._lock = threading.Lock()
        self._events: deque[Any] = deque()
        self._outstanding = 0
        self._observer = HookActor.start(dispatcher)
        self._reconciler = HookActor.start(dispatcher)
        # For each plugin that still has to reconcile: why, how often it failed, when it is next tried.
        self._wanted: dict[str, tuple[str, int, int]] = {}
        self._running: set[str] = set()

    def publish(self, event: object) -> bool:
        """Have plugins told of `event`; `False` when it was dropped because too many wait."""
        hooks = self._core.plugins.hooks("callboard_event")
        if not hooks:
            return True
        with self._lock:
            if len(self._events) >= MAX_EVENTS:
                return False
            self._events.append(event)
            self._outstanding += 1
        self._observer.tell(self._tell_event)
        return True

    def tell_finished(self, finished: list[Any]) -> None:
        """Have plugins told of tasks that ended."""
        hooks = self._core.plugins.hooks("callboard_tasks_finished")
        if hooks:
            with self._lock:
                self._outstanding += 1
            self._observer.tell(lambda: self._call_all(hooks, finished=finished))

    def want_reconcile(self, reason: str, not_before_ns: int = 0) -> None:
        """Have every plugin reconcile, soon or at `not_before_ns`."""
        with self._lock:
            for hook in self._core.plugins.hooks("callboard_reconcile"):
                self._wanted.setdefault(hook.plugin, (reason, 0, not_before_ns))
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
        """Start the reconciles that are due."""
        with self._lock:
            for hook in self._core.plugins.hooks("callboard_reconcile"):
                wanted = self._wanted.get(hook.plugin)
                if wanted is None or wanted[2] > now_ns or hook.plugin in self._running:
                    continue
                del self._wanted[hook.plugin]
                self._running.add(hook.plugin)
                self._reconciler.tell(lambda hook=hook, wanted=wanted: self._reconcile(hook, *wanted[:2]))

    def deadline_ns(self) -> int:
        """Return when the next reconcile that failed is tried again; the end of one that runs wakes by itself."""
        with self._lock:
            waiting = (wanted[2] for plugin, wanted in self._wanted.items() if plugin not in self._running)
            return min(waiting, default=NEVER_NS)

    def is_told(self) -> bool:
        """Return whether plugins have been told of every event and every task that ended, and none reconciles."""
        with self._lock:
            return self._outstanding == 0 and not self._running

    def is_idle(self, now_ns: int) -> bool:
        """Return whether nothing is running or due."""
        with self._lock:
            due = any(at_ns <= now_ns for _, _, at_ns in self._wanted.values())
            return not due and not self._running and self._outstanding == 0

    def _tell_event(self) -> None:
        with self._lock:
            event = self._events.popleft()
        self._call_all(self._core.plugins.hooks("callboard_event"), event=event)

    def _call_all(self, hooks: list[PluginHook], **arguments: Any) -> None:
        for hook in hooks:
            wanted = {"engine": self._core.engine, **arguments}
            self._core.plugins.call(hook, **wanted)
        with self._lock:
            self._outstanding -= 1
        self._wake()

    def _reconcile(self, hook: PluginHook, reason: str, failures: int) -> None:
        succeeded, _ = self._core.plugins.call(hook, engine=self._core.engine, reason=reason)
        with self._lock:
            self._running.discard(hook.plugin)
            if not succeeded:
                retry = DEFAULT_POLICY
                wait_ns = backoff_ns(failures + 1, retry.initial_ns, retry.factor, retry.cap_ns)
                at_ns = self._core.clock.now_ns() + wait_ns
                self._wanted.setdefault(hook.plugin, (reason, failures + 1, at_ns))
                logger.info("reconcile of plugin {} is tried again in {:.0f} s", hook.plugin, wait_ns / 1e9)
        self._wake()
