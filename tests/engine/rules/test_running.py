"""Rules 6, 9 and 10: which due rows run, how recurring ones go on, and whose outcome counts."""

from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    pass_by,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.rows import sql

from callboard import NEVER_NS, DeadReason, Defer, Discard, Done, RescheduleAt, RetryPolicy, TaskState
from callboard._codec import encode, hash_of
from callboard._lifecycle import NO_DONE
from callboard.testing import FakeClock
from callboard.wire import KpRotation

HOUR = timedelta(hours=1)
HOUR_NS = 3_600 * 10**9


# Rule 6

_FLAWS: list[tuple[str, dict[str, Any]]] = [
    (DeadReason.EXPIRED, {"expires_at_ns": 1}),
    (DeadReason.EXHAUSTED, {"attempts": 20}),
    (DeadReason.MALFORMED, {"data": b""}),
    (TaskState.DEFERRED, {"kind": "acme.unheard.Of"}),
    (DeadReason.MALFORMED, {"data": encode(KpRotation())}),
    ("ran", {}),
]
"""What each check of rule 6 says of a row that it stops, in their order."""


@pytest.mark.parametrize("check", range(len(_FLAWS)))
def test_rule_06_the_checks_on_a_due_row_come_in_their_order(
    check: int, make_engine: MakeEngine, callboard_clock: FakeClock, callboard_database: str
) -> None:
    """Each row fails one check and every later one."""
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    engine.migrate()
    now_ns = callboard_clock.now_ns()
    row: dict[str, Any] = {
        "kind": RECEIPT,
        "identity": b"\x22" * 32,
        "data": encode(receipt("hello")),
        "max_attempts": 20,
        "created_at_ns": now_ns - HOUR_NS,
        "expires_at_ns": now_ns + HOUR_NS,
        "next_attempt_at_ns": now_ns,
    }
    for _, flaw in reversed(_FLAWS[check:]):
        row |= flaw
    row["data_hash"] = hash_of(row["data"])
    sql(
        callboard_database,
        f"INSERT INTO callboard_task ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
        *row.values(),
    )

    engine.run_due()

    verdicts = [dead.reason for dead in engine.dead_tasks()] + [task.state for task in engine.tasks()]
    assert verdicts + ["ran"] * len(handler.played) == [_FLAWS[check][0]]


def test_rule_06_a_row_that_expires_at_this_very_moment_does_not_run(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("late"), expires_after=HOUR)
    engine.enqueue(receipt("in time"), expires_after=HOUR + timedelta(microseconds=1))
    callboard_clock.advance(HOUR)

    engine.run_due()

    assert handler.played == ["in time"]
    assert [dead.reason for dead in engine.dead_tasks()] == [DeadReason.EXPIRED]


def test_rule_06_a_row_that_is_not_due_is_not_touched(make_engine: MakeEngine) -> None:
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("later"), not_before=HOUR, expires_after=timedelta(0))
    before = engine.tasks()

    assert engine.run_due() == 0

    assert engine.tasks() == before


# Rule 9


def test_rule_09_reschedule_at_keeps_the_row_and_moves_its_deadline(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Scripted(RescheduleAt(HOUR), RescheduleAt(callboard_clock.now_ns() + 5 * HOUR_NS))
    engine = make_engine(Plugin(receipts(handler, recurring=True)))
    start_ns = callboard_clock.now_ns()
    task_id = engine.enqueue(receipt("again")).task_id

    for runs, at_ns in [(1, start_ns + HOUR_NS), (2, start_ns + 5 * HOUR_NS)]:
        engine.run_due()
        [task] = engine.tasks()
        assert (task.id, task.state, task.next_attempt_at_ns) == (task_id, TaskState.PENDING, at_ns)
        assert len(handler.played) == runs
        callboard_clock.advance(HOUR)


def test_rule_09_reschedule_at_sets_attempts_to_0(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    handler = Scripted(ValueError("once"), ValueError("twice"), RescheduleAt(HOUR))
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("again"))

    seen = []
    for _ in range(3):
        engine.run_due()
        seen.append(engine.tasks()[0].attempts)
        callboard_clock.advance(HOUR)

    assert seen == [1, 2, 0]
    assert engine.tasks()[0].last_error is None


@pytest.mark.parametrize("outcome", [Done(), None])
def test_rule_09_done_from_a_recurring_handler_is_a_failed_attempt_that_says_so(
    outcome: Any, make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(Scripted(outcome), recurring=True)))
    engine.enqueue(receipt("again"))

    engine.run_due()

    [task] = engine.tasks()
    assert (task.attempts, task.last_error) == (1, NO_DONE)
    assert task.next_attempt_at_ns == callboard_clock.now_ns() + 2 * 10**9


def test_rule_09_a_recurring_task_never_exhausts(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    handler = Scripted(ValueError("no"))
    engine = make_engine(Plugin(receipts(handler, recurring=True, retry=RetryPolicy(max_attempts=2))))
    engine.enqueue(receipt("again"))

    for runs in range(1, 51):
        assert engine.run_due() == 1
        [task] = engine.tasks()
        assert task.attempts == runs
        callboard_clock.advance(timedelta(minutes=1))

    assert engine.dead_tasks() == []


@pytest.mark.parametrize("options", [{}, {"expires_after": HOUR}], ids=["by itself", "when told to"])
def test_rule_09_a_recurring_task_never_expires(
    options: dict[str, Any], make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Scripted(RescheduleAt(HOUR))
    engine = make_engine(Plugin(receipts(handler, recurring=True)))
    engine.enqueue(receipt("again"), **options)
    assert engine.tasks()[0].expires_at_ns == NEVER_NS or options

    for _ in range(2):
        callboard_clock.advance(timedelta(days=36_500))
        assert engine.run_due() == 1

    assert engine.dead_tasks() == []


def test_rule_09_a_recurring_task_may_discard_itself(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(Discard("the account is gone")), recurring=True)))
    engine.enqueue(receipt("again"))

    engine.run_due()

    assert engine.tasks() == []
    assert engine.dead_tasks()[0].reason == DeadReason.DISCARDED


# Rule 10


def test_rule_10_a_token_changes_only_when_the_row_is_claimed(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Scripted(ValueError("no"), Defer(HOUR), RescheduleAt(HOUR))
    engine = make_engine(Plugin(receipts(handler)))
    message = receipt("hello")
    engine.enqueue(message)
    tokens = [engine.tasks()[0].token]

    for _ in range(3):
        engine.run_due()
        engine.enqueue(message)
        engine.pull_in(message, not_later_than_ns=callboard_clock.now_ns() + 1)
        tokens.append(engine.tasks()[0].token)
        callboard_clock.advance(HOUR)

    assert tokens == [0, 1, 2, 3]


def test_rule_10_a_request_or_a_pull_in_during_a_run_leaves_its_token(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    message = receipt("hello")
    engine.enqueue(message)
    handler.wait_begun("hello")

    engine.enqueue(message)
    engine.pull_in(message, not_later_than_ns=1)

    assert engine.tasks()[0].token == handler.contexts["hello"].task.token == 1
    handler.let_go()


def test_rule_10_a_row_that_a_dead_engine_left_running_gets_a_new_token(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("hello"))
    sql(callboard_database, "UPDATE callboard_task SET state = 'running', token = 7, owner = 99")

    engine.start()

    handler.wait_begun("hello")
    assert engine.tasks()[0].token == 9  # one more for the rescue, one more for the claim
    handler.let_go()


def test_rule_10_a_stale_outcome_is_dropped_with_what_it_buffered_row_by_row(make_engine: MakeEngine) -> None:
    inside = Blocking()
    followed = Scripted()

    def handler(message: Any, ctx: Any) -> Any:
        ctx.enqueue(thread(message.text))
        return inside(message, ctx)

    engine = make_engine(Plugin(receipts(handler), threads(followed)))
    engine.start()
    answers = engine.enqueue_many([receipt("one"), receipt("two"), receipt("three")])
    inside.wait_begun("one", "two", "three")

    assert answers[1].task_id is not None
    engine.cancel(answers[1].task_id)
    inside.let_go()

    assert engine.wait_idle(WAIT_S)
    assert sorted(followed.played) == ["one", "three"]
    assert [(dead.task_id, dead.reason) for dead in engine.dead_tasks()] == [
        (answers[1].task_id, DeadReason.CANCELLED)
    ]
    assert engine.tasks() == []
    assert engine.health().counters["stale"] == 1


def test_rule_10_the_outcome_of_an_earlier_run_does_not_count_for_a_later_one(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    task_id = engine.enqueue(receipt("hello")).task_id
    handler.wait_begun("hello")

    sql(
        callboard_database, "UPDATE callboard_task SET token = token + 1"
    )  # as another node does that takes the row over
    handler.let_go()
    eventually(lambda: engine.health().counters["stale"] == 1)

    [task] = engine.tasks()
    assert (task.id, task.state, task.token) == (task_id, TaskState.RUNNING, 2)


def test_rule_10_a_row_that_vanished_is_not_an_error(make_engine: MakeEngine, callboard_database: str) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    with logged("WARNING") as messages:
        engine.start()
        engine.enqueue(receipt("hello"))
        handler.wait_begun("hello")
        sql(callboard_database, "DELETE FROM callboard_task")
        handler.let_go("hello")
        assert engine.wait_idle(WAIT_S)
        pass_by(engine, handler, "next")

    assert messages == []
    assert engine.health().database_error is None
    assert engine.dead_tasks() == []
