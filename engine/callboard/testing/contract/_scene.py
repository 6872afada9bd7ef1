"""Watch the handler that is checked, and do to it what the fault says."""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from callboard import _crash_points
from callboard._context import TaskContext
from callboard._engine import Engine
from callboard._kinds import TaskKind
from callboard.testing.contract import _fault
from callboard.testing.contract._fault import Fault, InjectedError, InjectedOutage, Passed
from callboard.testing.contract._observed import ObservedClock, Observer

_BACK = timedelta(hours=1)
_FORWARD = timedelta(hours=1)


class Scene(Observer):
    """One process's view of the runs of one task.

    Attributes:
        runs: how often the handler was called for it.
        raised: the names and texts of what it raised, but for what the suite had raised itself.
    """

    def __init__(self, clock: ObservedClock, fault: Fault) -> None:
        """Be about to put `fault` to a task."""
        self._clock = clock
        self._identity = b""
        self._fault = fault
        self._struck = False
        self._context: TaskContext | None = None
        self._thread = 0
        self._forward = _FORWARD
        self._points: list[str] = []
        self._calls = 0
        self._readings = 0
        self.runs = 0
        self.raised: list[str] = []
        clock.observer = self

    @property
    def passed(self) -> Passed:
        """What the handler came by."""
        return Passed(tuple(self._points), self._calls, self._readings)

    @property
    def is_watching(self) -> bool:
        """Whether it is the task's handler that asks: the engine is at work meanwhile if a coroutine waits."""
        return self._context is not None and self._thread == threading.get_ident()

    def enter(self, engine: Engine, identity: bytes) -> None:
        """Watch all handlers of `engine`, and put the fault to the task with this identity."""
        self._identity = identity
        for kind, _ in engine._core.registry:
            # The kind is the plugin's object, and this process one that is thrown away.
            object.__setattr__(kind, "handler", self._watched(kind))
        if self._fault.what == _fault.KILLED:
            _crash_points.arm(self._fault.point, self._fault.nth)
        _crash_points.note(self._points)

    def leave(self) -> None:
        """End the watch: what follows is not the handler's."""
        _crash_points.note(None)
        _crash_points.arm(None)

    def _watched(self, kind: TaskKind[Any]) -> Any:
        handler: Any = kind.handler

        async def awaited(message: Any, ctx: TaskContext) -> Any:
            with self._around(kind, ctx):
                outcome = await handler(message, ctx)
                self._returns(ctx)
                return outcome

        def called(message: Any, ctx: TaskContext) -> Any:
            with self._around(kind, ctx):
                outcome = handler(message, ctx)
                self._returns(ctx)
                return outcome

        return awaited if kind.is_async else called

    @contextmanager
    def _around(self, kind: TaskKind[Any], ctx: TaskContext) -> Iterator[None]:
        is_its = ctx.task.identity == self._identity
        # Python's own watchdog ends even a process that is stuck, and says where.
        faulthandler.dump_traceback_later(kind.timeout.total_seconds(), exit=True, file=sys.stderr)
        try:
            if is_its:
                self._context, self._thread = ctx, threading.get_ident()
                self.runs += 1
                self._begins(kind, ctx)
            yield
        except (InjectedError, InjectedOutage):
            raise
        except BaseException as error:
            if is_its:
                self.raised.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
            if is_its:
                self._context = None

    def _begins(self, kind: TaskKind[Any], ctx: TaskContext) -> None:
        self._forward = min(_FORWARD, kind.retry.expires_after / 2)
        if self._strikes(_fault.CANCELLED, 0):
            _cancel(ctx)
        self._move_clock(0)

    def _returns(self, ctx: TaskContext) -> None:
        if self._context is ctx and ctx._run.committed is None and self._strikes(_fault.LOST_OUTCOME, 0):
            raise InjectedOutage("the contract suite lost the outcome")

    def calls_service(self, name: str) -> None:
        """Kill, cancel or raise before the call."""
        self._calls += 1
        _crash_points.reach(f"contract.{name}.before")
        if self._context is not None and self._strikes(_fault.CANCELLED, self._calls):
            _cancel(self._context)
        if self._strikes(_fault.AWAY, self._calls):
            raise InjectedOutage(f"the contract suite has the service away before {name}")
        if self._strikes(_fault.RAISES, self._calls):
            raise InjectedError(f"the contract suite has {name} fail")

    def called_service(self, name: str) -> None:
        """Kill or raise after the call."""
        _crash_points.reach(f"contract.{name}.after")
        if self._strikes(_fault.LOST_ANSWER, self._calls):
            raise InjectedOutage(f"the contract suite lost the answer of {name}")

    def reads_clock(self) -> None:
        """Set the clock before it is read."""
        self._readings += 1
        self._move_clock(self._readings)

    def _move_clock(self, place: int) -> None:
        if self._strikes(_fault.CLOCK_BACK, place):
            self._clock.jump(-_BACK)
        if self._strikes(_fault.CLOCK_FORWARD, place):
            self._clock.jump(self._forward)

    def _strikes(self, what: str, place: int) -> bool:
        strikes = not self._struck and self._fault.what == what and self._fault.nth == place
        self._struck = self._struck or strikes
        return strikes


def _cancel(ctx: TaskContext) -> None:
    ctx.engine.cancel(ctx.task.id)
    ctx._run.cancel()
