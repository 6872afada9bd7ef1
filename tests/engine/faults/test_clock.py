"""The wall clock is set a day back or forward while the engine runs."""

from datetime import timedelta

import pytest
from tests.engine.acting import (
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.rows import sql

from callboard import DeadReason, Engine, ServiceUnavailable
from callboard._actors.claiming import PATIENCE_NS
from callboard._actors.rounds import INTERVAL_NS
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
A_ROUND = timedelta(microseconds=INTERVAL_NS // 1_000) * 1.2
CAP_NS = 60 * 10**9


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the clock fifty times in a second, not once."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)


def test_what_has_a_time_waits_for_that_time(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    """Deadline and expiry are times of the wall clock."""
    handler = Scripted()
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("later"), not_before=HOUR, expires_after=2 * HOUR)
        callboard_clock.jump(-DAY)
        callboard_clock.advance(DAY)
        assert engine.wait_idle(WAIT_S)
        assert handler.played == []

        callboard_clock.advance(HOUR)
        assert engine.wait_idle(WAIT_S)
        assert handler.played == ["later"]
        assert engine.dead_tasks() == []


class HeldUpClock(FakeClock):
    """A clock between whose two readings time passes, as when a process is halted there."""

    held_up: timedelta | None = None

    def now_ns(self) -> int:
        now_ns = super().now_ns()
        duration, self.held_up = self.held_up, None
        if duration is not None:
            self.advance(duration)
        return now_ns


def test_a_thread_that_is_held_up_between_two_clocks_brings_no_deadline_on(make_engine: MakeEngine) -> None:
    """It must not look like a clock that was set back."""
    clock, handler = HeldUpClock(), Scripted()
    with make_engine(Plugin(receipts(handler)), clock=clock) as engine:
        engine.enqueue(receipt("later"), not_before=2 * HOUR)
        running = engine._core.running
        assert running is not None
        watch = running.scheduler.watch
        clock.held_up = HOUR
        assert not watch.clock()
        clock.advance(HOUR / 2)
        assert engine.wait_idle(WAIT_S)
        assert handler.played == []


def test_a_clock_set_forward_brings_deadlines_and_expiries_on(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Scripted()
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("due"), not_before=HOUR)
        engine.enqueue(receipt("expired"), not_before=HOUR, expires_after=2 * HOUR)
        engine.enqueue(receipt("in two days"), not_before=2 * DAY)
        assert engine.wait_idle(WAIT_S)

        callboard_clock.jump(DAY)
        eventually(lambda: handler.played == ["due"])
        assert engine.wait_idle(WAIT_S)

        assert [dead.reason for dead in engine.dead_tasks()] == [DeadReason.EXPIRED]
        assert len(engine.tasks()) == 1


@pytest.mark.parametrize("jumps", [[-DAY], [DAY], [DAY, -DAY]], ids=["back", "forward", "there and back"])
def test_rounds_come_no_later_than_their_interval(
    make_engine: MakeEngine, callboard_clock: FakeClock, jumps: list[timedelta]
) -> None:
    reasons: list[str] = []
    plugin = Plugin(receipts(Scripted()), reconcile=lambda engine, reason: reasons.append(reason))
    with make_engine(plugin) as engine:
        assert engine.wait_idle(WAIT_S)
        rounds = 0
        for jump in jumps:
            callboard_clock.jump(jump)
            rounds += jump > timedelta(0)  # its time has come, by the clock
            looked(engine)
            assert engine.wait_idle(WAIT_S)
            assert reasons.count("interval") == rounds
        callboard_clock.advance(A_ROUND)
        eventually(lambda: reasons.count("interval") == rounds + 1)


@pytest.mark.parametrize("group", [b"", b"group"], ids=["loose", "parked"])
def test_what_was_due_stays_due(make_engine: MakeEngine, callboard_clock: FakeClock, group: bytes) -> None:
    """Rows that nobody had got round to yet."""
    handler = Blocking()
    texts = [str(number) for number in range(400)]
    with make_engine(Plugin(receipts(handler)), workers=1) as engine:
        engine.enqueue_many([receipt(text, group) for text in texts])
        engine.enqueue(receipt("later"), not_before=HOUR)
        handler.wait_count(1)
        callboard_clock.jump(-DAY)
        looked(engine)
        handler.let_go()
        assert engine.wait_idle(WAIT_S)

    assert sorted(handler.begun) == sorted(texts)


def test_what_was_claimed_and_is_handed_back_stays_due(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), workers=1)
    engine.start()
    engine.enqueue_many([receipt(str(number)) for number in range(10)])
    handler.wait_count(1)
    eventually(lambda: len(engine.tasks(state="running")) == 10)
    callboard_clock.jump(-DAY)
    looked(engine)
    assert not engine.stop(timeout=0)

    assert make_engine(Plugin(receipts(Scripted()))).run_due() == 9
    handler.let_go()


def looked(engine: Engine) -> None:
    """Wait until the engine has looked at the clock as it is now."""
    running = engine._core.running
    assert running is not None
    eventually(lambda: 0 < running.rounds.deadline_ns - engine.clock.now_ns() <= INTERVAL_NS * 1.2)


def test_a_reconcile_that_failed_is_tried_again_within_the_longest_backoff(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    reasons: list[str] = []

    def reconcile(engine: Engine, reason: str) -> None:
        reasons.append(reason)
        if len(reasons) == 1:
            raise ServiceUnavailable("not yet")

    with make_engine(Plugin(receipts(Scripted()), reconcile=reconcile)) as engine:
        assert engine.wait_idle(WAIT_S)
        callboard_clock.jump(-DAY)
        looked(engine)
        callboard_clock.advance(MINUTE)
        eventually(lambda: reasons == ["start", "start"])


def test_a_service_that_is_back_is_noticed_within_a_minute(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    reasons: list[str] = []
    away = ServiceUnavailable("away")
    plugin = Plugin(
        receipts(Scripted(away, None)),
        threads(Scripted(away, None)),
        reconcile=lambda engine, reason: reasons.append(reason),
    )
    with make_engine(plugin) as engine:
        engine.enqueue(receipt("one"))
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(MINUTE)
        eventually(lambda: reasons == ["start", "service"])

        callboard_clock.jump(-DAY)
        looked(engine)
        engine.enqueue(thread("another"))
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(MINUTE)
        eventually(lambda: not engine.tasks())
        callboard_clock.advance(MINUTE)
        eventually(lambda: reasons == ["start", "service", "service"])


def test_a_backoff_after_a_crash_is_no_longer_than_its_cap(
    make_engine: MakeEngine, callboard_clock: FakeClock, callboard_database: str
) -> None:
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("suspect"))
    now_ns = callboard_clock.now_ns()
    sql(
        callboard_database,
        "UPDATE callboard_task SET alone = 1, crashes = 2, last_attempted_at_ns = ?, next_attempt_at_ns = ?",
        now_ns,
        now_ns + 3 * 10**9,
    )
    with engine:
        assert engine.wait_idle(WAIT_S)
        callboard_clock.jump(-DAY)
        eventually(lambda: engine.tasks()[0].next_attempt_at_ns == callboard_clock.now_ns() + CAP_NS)
        callboard_clock.advance(MINUTE)
        eventually(lambda: handler.played == ["suspect"])


def next_attempt_ns(engine: Engine, task_id: int) -> int:
    task = engine.task(task_id)
    assert task is not None
    return task.next_attempt_at_ns


def test_a_task_that_waits_to_run_alone_holds_others_up_no_longer(
    make_engine: MakeEngine, callboard_clock: FakeClock, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), lease=HOUR)
    engine.start()
    engine.enqueue(receipt("running"))
    handler.wait_begun("running")
    engine.enqueue(receipt("suspect"), not_before=HOUR)
    sql(callboard_database, "UPDATE callboard_task SET alone = 1, next_attempt_at_ns = 0 WHERE state = 'pending'")
    other = engine.enqueue(receipt("other")).task_id
    assert other is not None
    runtime = engine._core.running
    assert runtime is not None
    eventually(lambda: runtime.scheduler._memory._held_since_ns is not None)
    assert handler.begun == ["running"]

    callboard_clock.jump(-DAY)
    # Until the jump is noticed the other task is one of tomorrow, and would miss the turn that it gets.
    eventually(lambda: next_attempt_ns(engine, other) <= callboard_clock.now_ns())
    callboard_clock.advance(timedelta(microseconds=PATIENCE_NS // 1_000 + 1))

    handler.wait_begun("other")
    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert sorted(handler.begun) == ["other", "running", "suspect"]
