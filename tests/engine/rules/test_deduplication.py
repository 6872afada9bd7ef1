"""Rules 13 to 15: one live row for one identity, no request swallowed, and deadlines that are only pulled in."""

import sqlite3
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import peewee
import pytest
from tests.engine.acting import (
    RECEIPT,
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
from tests.engine.messages import SendReceipt
from tests.engine.rows import path_of, payload, sql

from callboard import (
    Defer,
    Discard,
    Done,
    Enqueued,
    EnqueueStatus,
    RescheduleAt,
    RetryPolicy,
    ServiceUnavailable,
    Task,
    TaskContext,
    TaskState,
)
from callboard._codec import hash_of, keyed_identity
from callboard._store.session import raw_connection
from callboard.testing import FakeClock

SECOND_NS = 10**9
HOUR = timedelta(hours=1)
HOUR_NS = 3_600 * SECOND_NS
DAY = timedelta(days=1)
DAY_NS = 24 * HOUR_NS


# Rule 13


def test_rule_13_an_identity_has_one_live_row(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())))

    first = engine.enqueue(receipt("read"))
    again = engine.enqueue(receipt("read"))
    of_many = engine.enqueue_many([receipt("read"), receipt("seen"), receipt("seen")])

    assert first.status == EnqueueStatus.INSERTED
    assert again == of_many[0] == (first.task_id, EnqueueStatus.MERGED)
    assert [answer.status for answer in of_many[1:]] == [EnqueueStatus.INSERTED, EnqueueStatus.MERGED]
    assert of_many[1].task_id == of_many[2].task_id
    assert len(engine.tasks()) == 2
    engine.run_due()
    assert sent.played == ["read", "seen"]


def test_rule_13_the_identity_is_the_payloads_hash_or_that_of_kind_and_key(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted()), threads(Scripted())))

    engine.enqueue(receipt("read"))
    engine.enqueue(receipt("read"), key="k")
    engine.enqueue(thread("read"), key="k")

    data = payload(receipt("read"))
    assert [(task.identity, task.data_hash) for task in engine.tasks(kind=RECEIPT)] == [
        (hash_of(data), hash_of(data)),
        (keyed_identity(RECEIPT, "k"), hash_of(data)),
    ]
    assert len(engine.tasks()) == 3


def test_rule_13_a_live_row_keeps_its_backoff(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    engine = make_engine(Plugin(receipts(handler := Scripted(ZeroDivisionError(), None))))
    engine.enqueue(receipt("read"))
    engine.run_due()
    [failed] = engine.tasks()

    assert engine.enqueue(receipt("read")).status == EnqueueStatus.MERGED
    engine.run_due()

    assert handler.played == ["read"]
    assert engine.tasks() == [failed._replace(requests=failed.requests + 1)]
    callboard_clock.advance(timedelta(seconds=2))
    engine.run_due()
    assert handler.played == ["read", "read"]


def test_rule_13_a_live_row_keeps_its_deadline(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.enqueue(receipt("read"), not_before=HOUR, expires_after=DAY)

    engine.enqueue(receipt("read"))
    engine.enqueue(receipt("read"), not_before=DAY)

    [task] = engine.tasks()
    assert task.next_attempt_at_ns == callboard_clock.now_ns() + HOUR_NS
    assert task.expires_at_ns == callboard_clock.now_ns() + DAY_NS


def test_rule_13_a_dead_row_does_not_block_a_new_one(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(Discard("unwanted")))))
    engine.enqueue(receipt("read"))
    engine.run_due()

    assert engine.enqueue(receipt("read")).status == EnqueueStatus.INSERTED
    engine.run_due()

    assert [dead.reason for dead in engine.dead_tasks()] == ["discarded", "discarded"]


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        pytest.param("expires_at_ns = 1", "expired", id="expired"),
        pytest.param("attempts = 20", "exhausted", id="exhausted"),
        pytest.param("expires_at_ns = 1, attempts = 20", "expired", id="both"),
        pytest.param("expires_at_ns = 1, state = 'deferred'", "expired", id="deferred-and-expired"),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_rule_13_a_row_that_is_up_but_not_swept_dies_in_the_enqueueing_transaction(
    make_engine: MakeEngine, callboard_database: str, update: str, reason: str, many: bool
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    old = engine.enqueue(receipt("read"))
    sql(callboard_database, f"UPDATE callboard_task SET last_error = 'oops', {update}")

    def enqueue() -> Enqueued:
        return engine.enqueue_many([receipt("read")])[0] if many else engine.enqueue(receipt("read"))

    with pytest.raises(ZeroDivisionError), engine.transaction():
        assert enqueue().status == EnqueueStatus.INSERTED
        raise ZeroDivisionError
    assert engine.dead_tasks() == []
    assert [task.id for task in engine.tasks()] == [old.task_id]

    new = enqueue()

    assert new.status == EnqueueStatus.INSERTED
    assert [(task.id, task.attempts) for task in engine.tasks()] == [(new.task_id, 0)]
    [dead] = engine.dead_tasks()
    assert (dead.task_id, dead.reason, dead.last_error) == (old.task_id, reason, "oops")


def test_rule_13_a_running_row_that_is_up_stays(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    handler = Blocking()
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("read"), expires_after=HOUR)
        handler.wait_begun("read")
        callboard_clock.advance(DAY)

        assert engine.enqueue(receipt("read")).status == EnqueueStatus.RERUN
        handler.let_go()
        assert engine.wait_idle(WAIT_S)

    assert handler.begun == ["read", "read"]


# Rule 14


class Again:
    """A handler that enqueues its own message while it runs, in its first runs, and plays one outcome for each."""

    def __init__(self, *outcomes: Any, runs: int = 1, times: int = 1) -> None:
        self._outcomes = outcomes
        self._runs = runs
        self._times = times
        self.claimed: list[Task] = []
        self.answers: list[Enqueued] = []

    def __call__(self, message: SendReceipt, ctx: TaskContext) -> Any:
        self.claimed.append(ctx.task)
        if len(self.claimed) <= self._runs:
            self.answers += [ctx.engine.enqueue(message) for _ in range(self._times)]
        outcome = self._outcomes[min(len(self.claimed), len(self._outcomes)) - 1]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.mark.parametrize("outcome", [Done(), None, Discard("unwanted"), RescheduleAt(DAY), Defer(DAY)])
def test_rule_14_a_request_that_a_run_may_not_have_seen_runs_it_again_whatever_its_outcome(
    make_engine: MakeEngine, outcome: Any
) -> None:
    engine = make_engine(Plugin(receipts(handler := Again(outcome, Done()))))
    task_id = engine.enqueue(receipt("read")).task_id

    engine.run_due()

    assert handler.answers == [(task_id, EnqueueStatus.RERUN)]
    assert len(handler.claimed) == 2
    assert engine.tasks() == []
    assert engine.dead_tasks() == []


def test_rule_14_a_request_that_comes_before_complete_commits_runs_it_again(make_engine: MakeEngine) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        runs.append(ctx.task.requests)
        if len(runs) == 1:
            ctx.engine.enqueue(message)
        with ctx.complete(Done()):
            pass

    runs: list[int] = []
    engine = make_engine(Plugin(receipts(send)))
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert runs == [1, 2]
    assert engine.tasks() == []


def test_rule_14_a_request_that_comes_after_complete_is_a_task_of_its_own(make_engine: MakeEngine) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        runs.append(ctx.task.id)
        with ctx.complete(Done()):
            pass
        if len(runs) == 1:
            answers.append(ctx.engine.enqueue(message).status)

    runs: list[int] = []
    answers: list[EnqueueStatus] = []
    engine = make_engine(Plugin(receipts(send)))
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert answers == [EnqueueStatus.INSERTED]
    assert len(set(runs)) == 2
    assert engine.tasks() == []


def test_rule_14_requests_during_one_run_are_one_rerun(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(handler := Again(Done(), times=3))))
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert len(handler.claimed) == 2


def test_rule_14_requests_during_a_rerun_run_it_once_more(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(handler := Again(Done(), runs=3))))
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert len(handler.claimed) == 4
    assert engine.tasks() == []


def test_rule_14_requests_before_the_claim_are_one_run(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(handler := Scripted())))
    for _ in range(3):
        engine.enqueue(receipt("read"))
    assert [task.requests for task in engine.tasks()] == [3]

    engine.run_due()

    assert handler.played == ["read"]


def test_rule_14_a_request_from_another_thread_during_a_run_runs_it_again(make_engine: MakeEngine) -> None:
    handler = Blocking()
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("read"))
        handler.wait_begun("read")
        assert engine.enqueue(receipt("read")).status == EnqueueStatus.RERUN
        handler.let_go()
        assert engine.wait_idle(WAIT_S)

    assert handler.begun == ["read", "read"]


@pytest.mark.parametrize("outcome", [RescheduleAt(0), Defer(0), Done()])
def test_rule_14_the_rerun_has_attempts_0_and_a_fresh_expiry(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock, outcome: Any
) -> None:
    handler = Again(outcome, Done())
    engine = make_engine(Plugin(receipts(handler, retry=RetryPolicy(expires_after=DAY))))
    engine.enqueue(receipt("read"))
    sql(callboard_database, "UPDATE callboard_task SET attempts = 5, last_error = 'oops'")
    callboard_clock.advance(HOUR)

    engine.run_due()

    first, rerun = handler.claimed
    assert (first.attempts, first.expires_at_ns) == (5, callboard_clock.now_ns() + DAY_NS - HOUR_NS)
    assert (rerun.attempts, rerun.expires_at_ns) == (0, callboard_clock.now_ns() + DAY_NS)
    assert rerun.last_error is None


@pytest.mark.parametrize(
    ("attempts", "error", "wait_ns"),
    [
        pytest.param(0, ZeroDivisionError("oops"), 2 * SECOND_NS, id="first"),
        pytest.param(3, ZeroDivisionError("oops"), 6_750_000_000, id="fourth"),
        pytest.param(19, ZeroDivisionError("oops"), 60 * SECOND_NS, id="last"),
        pytest.param(3, ServiceUnavailable("oops"), 2 * SECOND_NS, id="uncounted"),
    ],
)
def test_rule_14_a_rerun_after_a_failure_keeps_the_failed_attempts_backoff(
    make_engine: MakeEngine,
    callboard_database: str,
    callboard_clock: FakeClock,
    attempts: int,
    error: Exception,
    wait_ns: int,
) -> None:
    engine = make_engine(Plugin(receipts(handler := Again(error, Done()))))
    engine.enqueue(receipt("read"))
    sql(callboard_database, "UPDATE callboard_task SET attempts = ?", attempts)

    engine.run_due()

    assert len(handler.claimed) == 1
    [task] = engine.tasks()
    assert (task.attempts, task.next_attempt_at_ns) == (0, callboard_clock.now_ns() + wait_ns)
    assert "oops" in (task.last_error or "")
    assert task.expires_at_ns == callboard_clock.now_ns() + 3 * DAY_NS
    callboard_clock.advance(timedelta(microseconds=wait_ns // 1_000))
    engine.run_due()
    assert len(handler.claimed) == 2
    assert engine.tasks() == []


def test_rule_14_the_same_key_with_another_payload_is_a_conflict_and_changes_nothing(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(Plugin(receipts(handler := Scripted())))
    first = engine.enqueue(receipt("read"), key="k", origin="here", not_before=HOUR)
    before = engine.tasks()

    assert engine.enqueue(receipt("seen"), key="k", origin="there") == (first.task_id, EnqueueStatus.CONFLICT)

    assert engine.tasks() == before
    engine.run_due()
    assert handler.played == []


def test_rule_14_a_conflict_during_a_run_asks_for_no_rerun(make_engine: MakeEngine) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        answers.append(ctx.engine.enqueue(receipt("seen"), key="k").status)

    answers: list[EnqueueStatus] = []
    engine = make_engine(Plugin(receipts(send)))
    engine.enqueue(receipt("read"), key="k")

    engine.run_due()

    assert answers == [EnqueueStatus.CONFLICT]
    assert engine.tasks() == []


def test_rule_14_the_answer_is_the_same_on_a_hosts_connection(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    live = engine.enqueue(receipt("read"), key="k")

    with closing(sqlite3.connect(path_of(callboard_database))) as host:
        answers = [
            engine.enqueue(receipt("read"), key="k", connection=host),
            engine.enqueue(receipt("seen"), key="k", connection=host),
            engine.enqueue(receipt("new"), connection=host),
        ]
        host.execute("UPDATE callboard_task SET state = 'running' WHERE id = ?", (live.task_id,))
        answers.append(engine.enqueue(receipt("read"), key="k", connection=host))
        host.commit()

    new_id = answers[2].task_id
    assert answers == [
        (live.task_id, EnqueueStatus.MERGED),
        (live.task_id, EnqueueStatus.CONFLICT),
        (new_id, EnqueueStatus.INSERTED),
        (live.task_id, EnqueueStatus.RERUN),
    ]
    assert new_id in [task.id for task in engine.tasks()]


# Rule 15


@pytest.mark.parametrize(("asked_ns", "expected_ns"), [(-HOUR_NS, -HOUR_NS), (0, 0), (HOUR_NS, 0)])
def test_rule_15_pull_in_sets_the_minimum_of_the_current_and_the_given_deadline(
    make_engine: MakeEngine, callboard_clock: FakeClock, asked_ns: int, expected_ns: int
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    deadline_ns = callboard_clock.now_ns() + DAY_NS
    engine.enqueue(receipt("read"), not_before=deadline_ns)

    assert engine.pull_in(receipt("read"), not_later_than_ns=deadline_ns + asked_ns)

    [task] = engine.tasks()
    assert task.next_attempt_at_ns == deadline_ns + expected_ns
    assert task.requests == 1


def test_rule_15_pull_in_takes_a_message_a_key_or_an_identity(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(handler := Scripted())))
    for text, key in (("by message", None), ("by key", "k"), ("by identity", None), ("not at all", None)):
        engine.enqueue(receipt(text), key=key, not_before=DAY)
    now_ns = callboard_clock.now_ns()

    assert engine.pull_in(receipt("by message"), not_later_than_ns=now_ns)
    assert engine.pull_in("k", not_later_than_ns=now_ns)
    assert engine.pull_in(hash_of(payload(receipt("by identity"))), not_later_than_ns=now_ns)

    engine.run_due()
    assert sorted(handler.played) == ["by identity", "by key", "by message"]


def test_rule_15_pull_in_wakes_a_started_engine(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    with make_engine(Plugin(receipts(handler := Scripted()))) as engine:
        engine.enqueue(receipt("read"), not_before=DAY)
        assert engine.wait_idle(WAIT_S)
        assert handler.played == []

        engine.pull_in(receipt("read"), not_later_than_ns=callboard_clock.now_ns())
        assert engine.wait_idle(WAIT_S)

        assert handler.played == ["read"]


class PulledIn:
    """A handler whose first run pulls its own task in, at each of these times, before it ends as it is told."""

    def __init__(self, outcome: Any, *not_later_than_ns: int) -> None:
        self._outcome = outcome
        self._times_ns = not_later_than_ns
        self.runs = 0

    def __call__(self, message: SendReceipt, ctx: TaskContext) -> Any:
        self.runs += 1
        for at_ns in self._times_ns:
            assert ctx.engine.pull_in(message, not_later_than_ns=ctx.clock.now_ns() + at_ns)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize(
    ("outcome", "asked_ns", "expected_ns"),
    [
        pytest.param(RescheduleAt(DAY), [HOUR_NS], HOUR_NS, id="earlier than the outcome's"),
        pytest.param(RescheduleAt(HOUR), [DAY_NS], HOUR_NS, id="later than the outcome's"),
        pytest.param(
            RescheduleAt(DAY), [2 * HOUR_NS, HOUR_NS, 3 * HOUR_NS], HOUR_NS, id="the earliest of several"
        ),
        pytest.param(Defer(DAY), [HOUR_NS], HOUR_NS, id="after Defer"),
        pytest.param(ZeroDivisionError(), [SECOND_NS], SECOND_NS, id="after a failure"),
        pytest.param(ZeroDivisionError(), [HOUR_NS], 2 * SECOND_NS, id="after a failure, later than the backoff"),
    ],
)
def test_rule_15_a_pull_in_during_a_run_is_kept_apart_and_merged_when_it_ends(
    make_engine: MakeEngine, callboard_clock: FakeClock, outcome: Any, asked_ns: list[int], expected_ns: int
) -> None:
    engine = make_engine(Plugin(receipts(handler := PulledIn(outcome, *asked_ns))))
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert handler.runs == 1
    [task] = engine.tasks()
    assert (task.next_attempt_at_ns, task.pulled_in_ns) == (callboard_clock.now_ns() + expected_ns, None)


def test_rule_15_a_pull_in_during_a_run_does_not_touch_the_deadline_it_was_claimed_with(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        ctx.engine.pull_in(message, not_later_than_ns=5)
        seen.append(ctx.engine.task(ctx.task.id))

    seen: list[Task | None] = []
    engine = make_engine(Plugin(receipts(send)))
    engine.enqueue(receipt("read"))

    engine.run_due()

    [task] = seen
    assert task is not None
    assert (task.next_attempt_at_ns, task.pulled_in_ns) == (callboard_clock.now_ns(), 5)
    assert engine.tasks() == []  # a one-shot that is done needs no deadline


def test_rule_15_a_pull_in_during_a_run_is_kept_when_the_engine_dies(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(handler := Scripted())))
    engine.enqueue(receipt("read"), not_before=DAY)
    sql(callboard_database, "UPDATE callboard_task SET state = 'running', owner = 7")
    engine.pull_in(receipt("read"), not_later_than_ns=callboard_clock.now_ns())

    engine.run_due()

    assert handler.played == ["read"]


@pytest.mark.parametrize("target", [receipt("nobody's"), "no such key", b"\x11" * 32])
def test_rule_15_a_missing_target_is_reported_and_no_error(make_engine: MakeEngine, target: Any) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.enqueue(receipt("read"), not_before=DAY)
    before = engine.tasks()

    assert not engine.pull_in(target, not_later_than_ns=0)

    assert engine.tasks() == before


def test_rule_15_a_pull_in_is_one_statement(make_engine: MakeEngine, callboard_database: str) -> None:
    host = peewee.SqliteDatabase(path_of(callboard_database))
    engine = make_engine(Plugin(receipts(Scripted())), database=host)
    statements: list[str] = []

    with host.connection_context():
        engine.enqueue(receipt("read"), not_before=DAY)
        raw_connection(host).set_trace_callback(statements.append)
        engine.pull_in(receipt("read"), not_later_than_ns=0)

    assert [statement.split()[0] for statement in statements] == ["BEGIN", "UPDATE", "COMMIT"]


def test_rule_14_a_task_that_is_claimed_and_has_not_begun_need_not_run_twice(make_engine: MakeEngine) -> None:
    handler = Blocking()
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue_many([receipt("first", b"group"), receipt("second", b"group")])
        handler.wait_begun("first")
        eventually(lambda: {task.state for task in engine.tasks()} == {TaskState.RUNNING})

        answers = engine.enqueue_many([receipt("first", b"group"), receipt("second", b"group")])
        handler.let_go()
        assert engine.wait_idle(WAIT_S)

    assert [answer.status for answer in answers] == [EnqueueStatus.RERUN, EnqueueStatus.MERGED]
    assert sorted(handler.begun) == ["first", "first", "second"]


def test_rule_14_a_request_that_is_rolled_back_is_none(make_engine: MakeEngine) -> None:
    handler = Blocking()
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue_many([receipt("first", b"group"), receipt("second", b"group")])
        handler.wait_begun("first")
        eventually(lambda: {task.state for task in engine.tasks()} == {TaskState.RUNNING})

        with suppress(ZeroDivisionError), engine.transaction() as tx:
            assert tx.enqueue(receipt("second", b"group")).status == EnqueueStatus.MERGED
            raise ZeroDivisionError
        engine.enqueue(receipt("second", b"group"))
        handler.let_go("first")
        handler.wait_begun("second")
        engine.enqueue(receipt("second", b"group"))
        handler.let_go()
        assert engine.wait_idle(WAIT_S)

    assert handler.begun == ["first", "second", "second"]
