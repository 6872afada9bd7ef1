"""Run what becomes due as a test moves its clock, in an order that is the same each time."""

from __future__ import annotations

from datetime import timedelta

from callboard._clock import NEVER_NS, deadline_ns
from callboard._engine import Engine
from callboard._task import Task, TaskState
from callboard.errors import ConfigurationError
from callboard.testing._clock import FakeClock
from callboard.testing._rows import all_rows


def run_due(engine: Engine, *, until: timedelta | int | None = None) -> int:
    """Run what is due, and let time pass from deadline to deadline; return how many handlers were called.

    Each task runs on this thread when the clock stands at its deadline: those of one instant as a started engine
    would claim them, then those of the next. A task that a run brings about has its turn in between. At the end
    the clock stands at `until`.

    Args:
        engine: one that is not started.
        until: how far to move the engine's `FakeClock`: a timedelta from now, or nanoseconds since the epoch. By
            default the clock, which may be any, is not moved.

    Raises:
        ConfigurationError: `until` has passed, or the engine's clock is not moved by hand.
        EngineStateError: as `Engine.run_due` does.
    """
    if until is None:
        return engine.run_due()
    clock = engine.clock
    if not isinstance(clock, FakeClock):
        raise ConfigurationError(
            f"until= moves a FakeClock, and this engine's clock is {clock!r}; give Engine(..., clock=FakeClock())"
        )
    until_ns = deadline_ns(until, clock.now_ns())
    if until_ns < clock.now_ns():
        raise ConfigurationError(f"until={until!r} has passed; time does not pass backwards")
    called = _run_now(engine)
    while (next_ns := _next_ns(engine)) <= until_ns:
        clock.advance_to(next_ns)
        called += _run_now(engine)
    clock.advance_to(until_ns)
    return called


def _run_now(engine: Engine) -> int:
    """Run what is due, those included of a kind that was paused: each call begins with nothing paused."""
    called = 0
    while more := engine.run_due():
        called += more
    return called


def _next_ns(engine: Engine) -> int:
    """Return the first deadline to come."""
    now_ns = engine.clock.now_ns()
    deadlines = (at_ns for task in all_rows(engine) for at_ns in _deadlines(task))
    return min((at_ns for at_ns in deadlines if at_ns > now_ns), default=NEVER_NS)


def _deadlines(task: Task) -> tuple[int, ...]:
    if task.state == TaskState.DEFERRED:  # the only ones whose end does not wait for their turn
        return task.next_attempt_at_ns, task.expires_at_ns
    return (task.next_attempt_at_ns,)
