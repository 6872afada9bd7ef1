"""Rules 8 and 12: a failed attempt is tried again in time, and nothing that is raised stops the engine."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

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

from callboard import (
    DeadReason,
    Defer,
    Discard,
    Engine,
    RescheduleAt,
    RetryPolicy,
    ServiceUnavailable,
    TaskKind,
    TaskState,
)
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

SECOND_NS = 10**9
DAY = timedelta(days=1)


def waits_s(engine: Engine, clock: FakeClock) -> float:
    """Return how long the only task waits from now."""
    [task] = engine.tasks()
    return (task.next_attempt_at_ns - clock.now_ns()) / SECOND_NS


def wait_out(engine: Engine, clock: FakeClock) -> None:
    """Let just enough time pass for the only task to be due; timedelta knows no nanoseconds."""
    clock.advance(timedelta(seconds=waits_s(engine, clock)) + timedelta(microseconds=1))


# Rule 8


def test_rule_08_the_default_policy_is_twenty_attempts_in_about_twelve_minutes(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(Scripted(ValueError("no luck")))))
    engine.enqueue(receipt("hello"))

    waits = []
    while engine.run_due() and engine.tasks():
        waits.append(waits_s(engine, callboard_clock))
        assert engine.tasks()[0].attempts == len(waits)
        wait_out(engine, callboard_clock)

    assert waits == pytest.approx([min(2 * 1.5**n, 60) for n in range(19)], abs=1e-6)
    assert 12 <= sum(waits) / 60 < 13
    [dead] = engine.dead_tasks()
    assert (dead.reason, dead.attempts) == (DeadReason.EXHAUSTED, 20)
    assert "ValueError: no luck" in str(dead.last_error)
    assert "Traceback" in str(dead.last_error)


def test_rule_08_a_kind_has_its_own_policy(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    policy = RetryPolicy(timedelta(seconds=1), factor=3, cap=timedelta(seconds=5), max_attempts=4)
    engine = make_engine(Plugin(receipts(Scripted(ValueError("no")), retry=policy)))
    engine.enqueue(receipt("hello"))

    waits = []
    while engine.run_due() and engine.tasks():
        waits.append(waits_s(engine, callboard_clock))
        wait_out(engine, callboard_clock)

    assert waits == [1, 3, 5]
    assert engine.dead_tasks()[0].attempts == 4


@pytest.mark.parametrize("away", [ServiceUnavailable("no network"), type("Away", (ServiceUnavailable,), {})()])
def test_rule_08_an_outage_backs_off_without_counting_until_the_task_expires(
    away: Exception, make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Scripted(away)
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("hello"))

    waits = []
    for _ in range(40):
        engine.run_due()
        waits.append(waits_s(engine, callboard_clock))
        assert engine.tasks()[0].attempts == 0
        wait_out(engine, callboard_clock)
    callboard_clock.advance(timedelta(days=3))
    engine.run_due()

    assert waits == pytest.approx([min(2 * 1.5**n, 60) for n in range(40)], abs=1e-6)
    [dead] = engine.dead_tasks()
    assert (dead.reason, dead.attempts) == (DeadReason.EXPIRED, 0)
    assert len(handler.played) == 40


def test_rule_08_an_outage_between_failures_leaves_the_attempts_as_they_were(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Scripted(ValueError("no"), ServiceUnavailable("away"), ValueError("no"), ServiceUnavailable("away"))
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("hello"))

    seen = []
    for _ in range(4):
        engine.run_due()
        seen.append((engine.tasks()[0].attempts, waits_s(engine, callboard_clock)))
        wait_out(engine, callboard_clock)

    assert seen == [(1, 2), (1, 2), (2, 3), (2, 2)]


def a_task_in_its_longest_backoff(engine: Engine, clock: FakeClock) -> None:
    engine.enqueue(receipt("hello"))
    for _ in range(12):
        engine.run_due()
        wait_out(engine, clock)
    engine.run_due()
    assert waits_s(engine, clock) == 60


def test_rule_08_a_clock_that_jumps_back_leaves_no_backoff_further_away_than_the_cap(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    handler = Scripted(ValueError("no"))
    engine = make_engine(Plugin(receipts(handler)))
    a_task_in_its_longest_backoff(engine, callboard_clock)
    engine.start()
    assert engine.wait_idle(WAIT_S)

    callboard_clock.jump(-DAY)

    eventually(lambda: waits_s(engine, callboard_clock) == 60)
    callboard_clock.advance(timedelta(seconds=60))
    eventually(lambda: len(handler.played) == 14)


def test_rule_08_a_clock_that_was_set_back_while_no_engine_ran_leaves_none_either(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    plugin = Plugin(receipts(Scripted(ValueError("no"))))
    engine = make_engine(plugin)
    a_task_in_its_longest_backoff(engine, callboard_clock)
    engine.stop()
    callboard_clock.jump(-DAY)

    with make_engine(plugin) as engine:
        assert engine.wait_idle(WAIT_S)
        assert waits_s(engine, callboard_clock) == 60


def test_rule_08_a_clock_that_jumps_back_leaves_alone_what_was_meant_for_later(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    """Only a backoff is measured from the attempt; `not_before` and the outcomes name a time."""
    engine = make_engine(Plugin(receipts(Scripted(RescheduleAt(DAY), Defer(DAY)))))
    engine.enqueue_many([receipt("rescheduled"), receipt("deferred")])
    engine.enqueue(receipt("delayed"), not_before=DAY)
    engine.run_due()
    before = engine.tasks()

    callboard_clock.jump(-DAY)
    engine.run_due()

    assert engine.tasks() == before


# Rule 12


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class OwnBaseException(BaseException):
    pass


RAISED = [
    ValueError("no"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(),
    asyncio.CancelledError(),
    MemoryError(),
    OwnBaseException(),
    UnspeakableError(),
    ValueError("no UTF-8: \ud800"),
    ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["blocking", "coroutine"])
def test_rule_12_whatever_a_handler_raises_is_a_failed_attempt(
    kind: str, error: BaseException, make_engine: MakeEngine
) -> None:
    def blocking(message: Any, ctx: Any) -> None:
        if message.text == "bad":
            raise error

    async def coroutine(message: Any, ctx: Any) -> None:
        await asyncio.sleep(0)
        blocking(message, ctx)

    engine = make_engine(Plugin(receipts(blocking if kind == "blocking" else coroutine)), workers=1)
    with engine:
        engine.enqueue(receipt("bad", b"group"))
        assert engine.wait_idle(WAIT_S)
        engine.enqueue_many([receipt("good", b"group"), receipt("good")])
        assert engine.wait_idle(WAIT_S)

        [task] = engine.tasks()
        assert (task.state, task.attempts) == (TaskState.PENDING, 1)
        assert type(error).__name__ in str(task.last_error) or isinstance(error, StopIteration)
        assert engine.health().counters == {"done": 2, "dead": 0, "failed": 1, "stale": 0}


@pytest.mark.parametrize(
    "make_outcome",
    [
        lambda: "done",
        lambda: True,
        lambda: RescheduleAt,
        lambda: RescheduleAt("tomorrow"),  # type: ignore[arg-type]
        lambda: RescheduleAt(1.5),  # type: ignore[arg-type]
        lambda: Defer(None),  # type: ignore[arg-type]
        lambda: Discard(None),  # type: ignore[arg-type]
        lambda: Discard("no UTF-8: \ud800"),
        lambda: asyncio.sleep(0),
    ],
)
def test_rule_12_a_handler_that_returns_nonsense_is_a_failed_attempt(
    make_outcome: Any, make_engine: MakeEngine
) -> None:
    engine = make_engine(Plugin(receipts(lambda message, ctx: make_outcome() if message.text == "bad" else None)))
    engine.enqueue_many([receipt("bad"), receipt("good")])

    engine.run_due()

    [task] = engine.tasks()
    assert (task.state, task.attempts) == (TaskState.PENDING, 1)
    assert task.last_error


def test_rule_12_an_outcome_in_the_far_future_or_past_fits_the_table(make_engine: MakeEngine) -> None:
    outcomes = {
        "past": RescheduleAt(-(10**30)),
        "future": RescheduleAt(10**30),
        "never": Defer(timedelta.max),
    }
    played: list[str] = []

    def handler(message: Any, ctx: Any) -> Any:
        played.append(message.text)
        return outcomes[message.text] if played.count(message.text) == 1 else None

    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue_many([receipt(text) for text in outcomes])

    engine.run_due()

    assert sorted(played) == ["future", "never", "past", "past"]
    assert len(engine.tasks()) == 2


def test_rule_12_whatever_is_wrong_with_a_buffered_task_fails_the_run_that_buffers_it(
    make_engine: MakeEngine,
) -> None:
    wrong: list[dict[str, Any]] = [
        {"origin": "\ud800"},
        {"origin": 7},
        {"not_before": 1.5},
        {"expires_after": "soon"},
        {"group_id": "a string"},
        {"key": "\ud800"},
    ]

    def handler(message: Any, ctx: Any) -> None:
        ctx.enqueue(thread("child"), **wrong[int(message.text)])

    engine = make_engine(Plugin(receipts(handler), threads(Scripted())))
    engine.enqueue_many([receipt(str(number)) for number in range(len(wrong))])

    engine.run_due()

    assert [(task.attempts, task.state) for task in engine.tasks()] == [(1, TaskState.PENDING)] * len(wrong)


def test_rule_12_a_group_id_function_that_raises_buries_its_row_only(make_engine: MakeEngine) -> None:
    """It is called on a claim when the row came without a group, from a node that did not know the kind."""

    def group_of(message: Any) -> bytes:
        raise LookupError("no such group")

    handler = Scripted()
    with make_engine(execute=False) as web:
        web.enqueue(receipt("hello"), allow_unknown=True)
    engine = make_engine(
        Plugin(TaskKind(type(receipt("")), handler, group_id=group_of), threads(lambda it, ctx: None))
    )
    engine.enqueue(thread("other"))

    engine.run_due()

    assert engine.tasks() == []
    assert [(dead.reason, "no such group" in str(dead.last_error)) for dead in engine.dead_tasks()] == [
        (DeadReason.MALFORMED, True)
    ]


def test_rule_12_an_interrupt_in_run_due_hands_the_row_back_unattempted_and_is_raised_again(
    make_engine: MakeEngine,
) -> None:
    handler = Scripted(None, KeyboardInterrupt(), None)
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue_many([receipt("one", b"group"), receipt("two", b"group"), receipt("three", b"group")])

    with pytest.raises(KeyboardInterrupt):
        engine.run_due()

    left = engine.tasks()
    assert len(left) == 2
    assert {(task.state, task.attempts, task.last_error) for task in left} == {(TaskState.PENDING, 0, None)}
    assert engine.run_due() == 2
    assert (engine.tasks(), engine.dead_tasks()) == ([], [])
    assert sorted(handler.played) == sorted(["one", "two", "three", handler.played[1]])


def test_rule_12_an_interrupt_on_another_thread_is_the_handlers_own(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(KeyboardInterrupt()))))
    engine.enqueue(receipt("hello"))

    script = threading.Thread(target=engine.run_due)
    script.start()
    script.join(WAIT_S)

    assert engine.tasks()[0].attempts == 1


MINUTE = timedelta(minutes=1)


def test_rule_12_a_blocking_handler_over_its_timeout_is_told_and_shown_with_its_stack(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler, timeout=MINUTE)))
    engine.start()
    task_id = engine.enqueue(receipt("hello")).task_id
    handler.wait_begun("hello")

    callboard_clock.advance(MINUTE)
    assert engine.health().overdue == []
    callboard_clock.advance(timedelta(seconds=1))

    [overdue] = engine.health().overdue
    assert (overdue.task_id, overdue.kind) == (task_id, "acme.receipts.SendReceipt")
    assert overdue.running_ns == 61 * SECOND_NS
    assert "in __call__" in overdue.stack and "acting.py" in overdue.stack
    eventually(lambda: handler.contexts["hello"].cancelled)
    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert engine.health().overdue == []


def test_rule_12_a_coroutine_over_its_timeout_is_cancelled_which_is_a_failed_attempt(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    begun = threading.Event()
    seen: list[bool] = []

    async def handler(message: Any, ctx: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled)

    engine = make_engine(Plugin(receipts(handler, timeout=MINUTE)))
    engine.start()
    engine.enqueue(receipt("hello"))
    assert begun.wait(WAIT_S)

    callboard_clock.advance(MINUTE + timedelta(seconds=1))

    assert engine.wait_idle(WAIT_S)
    assert seen == [True]
    [task] = engine.tasks()
    assert task.attempts == 1
    assert "time was over" in str(task.last_error)


def test_rule_12_a_coroutines_own_cancellation_is_a_failed_attempt_too(make_engine: MakeEngine) -> None:
    async def handler(message: Any, ctx: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("hello"))
        assert engine.wait_idle(WAIT_S)
        assert engine.tasks()[0].attempts == 1


def test_rule_12_a_wall_clock_that_jumps_is_no_timeout(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler, timeout=MINUTE)))
    engine.start()
    engine.enqueue(receipt("hello"))
    handler.wait_begun("hello")

    callboard_clock.jump(DAY)

    assert engine.health().overdue == []
    handler.let_go()


def test_rule_12_the_default_timeout_is_five_minutes() -> None:
    assert receipts(Scripted()).timeout == timedelta(minutes=5)
