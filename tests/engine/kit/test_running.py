"""`callboard.testing.run_due`: time that passes from deadline to deadline."""

from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import MakeEngine, Plugin, Scripted, receipt, receipts

from callboard import (
    ConfigurationError,
    Defer,
    EngineStateError,
    RescheduleAt,
    RetryPolicy,
    SystemClock,
    TaskContext,
)
from callboard.testing import FakeClock, assert_enqueued, run_due

HOUR = timedelta(hours=1)


def test_each_task_runs_when_the_clock_stands_at_its_deadline(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    def note(message: Any, ctx: TaskContext) -> None:
        ran.append((message.text, (ctx.clock.now_ns() - began_ns) // 10**9))

    ran: list[tuple[str, int]] = []
    engine = make_engine(Plugin(receipts(note)))
    began_ns = callboard_clock.now_ns()
    for text, hours in [("c", 3), ("now", 0), ("late", 5), ("b", 2), ("a", 2)]:
        engine.enqueue(receipt(text), not_before=hours * HOUR)

    assert run_due(engine, until=4 * HOUR) == 4

    assert ran == [("now", 0), ("b", 7200), ("a", 7200), ("c", 10800)]
    assert callboard_clock.now_ns() == began_ns + 4 * 3600 * 10**9
    assert_enqueued(engine, receipt("late"), due=HOUR)


def test_retries_and_recurrences_have_their_turn(make_engine: MakeEngine) -> None:
    failing = Scripted(OSError("away"), OSError("away"), None)
    retry = RetryPolicy(initial=timedelta(seconds=1), factor=2.0)
    engine = make_engine(Plugin(receipts(failing, retry=retry)))
    engine.enqueue(receipt("read"))

    assert run_due(engine, until=timedelta(seconds=2.9)) == 2
    assert run_due(engine, until=timedelta(seconds=0.1)) == 1
    assert engine.tasks() == []

    recurring = make_engine(Plugin(receipts(Scripted(RescheduleAt(HOUR)), recurring=True)))
    recurring.enqueue(receipt("again"))
    assert run_due(recurring, until=timedelta(days=1)) == 25


def test_a_task_that_runs_out_of_time_while_it_is_deferred_dies_at_its_time(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(name="knows nothing"))
    engine.enqueue(receipt("read"), allow_unknown=True, expires_after=timedelta(minutes=90))
    began_ns = callboard_clock.now_ns()

    assert run_due(engine, until=timedelta(days=1)) == 0

    [dead] = engine.dead_tasks()
    assert (dead.reason, dead.died_at_ns - began_ns) == ("expired", 90 * 60 * 10**9)


def test_without_until_it_is_the_engines_own(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(Defer(HOUR)))), clock=SystemClock())
    engine.enqueue(receipt("read"))

    assert run_due(engine) == 1
    with pytest.raises(ConfigurationError, match=r"until= moves a FakeClock.*clock=FakeClock\(\)"):
        run_due(engine, until=HOUR)


def test_a_time_that_has_passed_is_refused(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    engine = make_engine()
    for until in (-HOUR, callboard_clock.now_ns() - 1):
        with pytest.raises(ConfigurationError, match="has passed"):
            run_due(engine, until=until)
    assert run_due(engine, until=callboard_clock.now_ns()) == 0


def test_a_started_engine_is_refused(make_engine: MakeEngine) -> None:
    with make_engine() as engine, pytest.raises(EngineStateError, match="not started"):
        run_due(engine, until=HOUR)


def test_a_clock_goes_on_to_a_moment_and_never_back() -> None:
    clock = FakeClock(1_000)
    moves: list[int] = []
    clock.subscribe(lambda: moves.append(clock.now_ns()))
    before_ns = clock.monotonic_ns()

    clock.advance_to(1_001)
    clock.advance_to(1_001)
    clock.advance_to(5)

    assert (clock.now_ns(), clock.monotonic_ns() - before_ns, moves) == (1_001, 1, [1_001])
