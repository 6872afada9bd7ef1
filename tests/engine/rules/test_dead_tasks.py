"""Rules 4 and 5: a task that cannot succeed is kept with its reason, and malformed ones stop nothing."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    MakeEngine,
    Plugin,
    Scripted,
    logged,
    receipt,
    receipts,
    thread,
)
from tests.engine.rows import payload, sql, write_by_hand

from callboard import (
    DeadReason,
    DeadTask,
    Defer,
    Discard,
    Done,
    Engine,
    EnqueueStatus,
    FinishedTask,
    RetryPolicy,
)
from callboard.testing import FakeClock

THREAD = "acme.receipts.ReceiptThread"
SECOND_NS = 10**9
DAY = timedelta(days=1)


# Rule 4


def test_rule_04_a_finished_one_shot_is_deleted(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(Done(), None))))
    engine.enqueue_many([receipt("returns Done"), receipt("returns nothing")])

    engine.run_due()

    assert engine.tasks() == []
    assert engine.dead_tasks() == []


def test_rule_04_deaths_in_a_hosts_transaction_are_counted_and_told(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    told: list[FinishedTask] = []
    watcher = Plugin(receipts(Scripted()), tasks_finished=lambda finished: told.extend(finished))
    with make_engine(watcher) as engine:
        cancelled = engine.enqueue(receipt("cancelled"), not_before=DAY)
        expired = engine.enqueue(receipt("expired"), not_before=DAY, expires_after=timedelta(hours=1))
        callboard_clock.advance(timedelta(hours=2))
        assert cancelled.task_id is not None
        assert engine.cancel(cancelled.task_id)
        assert engine.enqueue(receipt("expired"), not_before=DAY).status == EnqueueStatus.INSERTED

        assert engine.wait_idle(WAIT_S)
        assert engine.health().counters["dead"] == 2

    assert [(ended.task.id, ended.dead_reason) for ended in told] == [
        (cancelled.task_id, DeadReason.CANCELLED),
        (expired.task_id, DeadReason.EXPIRED),
    ]


class Dying(NamedTuple):
    """One way for a task to end in the dead-task table: what happens to it, and what its handler does."""

    reason: str
    error: str | None
    outcome: Any = None
    update: str = "last_error = NULL"
    days: int = 0


@pytest.mark.parametrize(
    "dying",
    [
        pytest.param(Dying("exhausted", "ZeroDivisionError", ZeroDivisionError()), id="exhausted"),
        pytest.param(Dying("expired", None, days=2), id="expired"),
        pytest.param(Dying("expired", "oops", update="last_error = 'oops'", days=2), id="expired-after-failing"),
        pytest.param(Dying("malformed", "does not decode", update="data = x'ff'"), id="malformed"),
        pytest.param(Dying("discarded", "unwanted", Discard("unwanted")), id="discarded"),
    ],
)
def test_rule_04_a_task_that_cannot_succeed_moves_to_the_dead_table(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock, dying: Dying
) -> None:
    policy = RetryPolicy(max_attempts=1, expires_after=DAY)
    engine = make_engine(Plugin(receipts(Scripted(dying.outcome), retry=policy)))
    task_id = engine.enqueue(receipt("read", b"g"), origin="here").task_id
    data = sql(callboard_database, f"UPDATE callboard_task SET {dying.update} RETURNING data")[0][0]
    callboard_clock.advance(timedelta(days=dying.days))

    with engine:
        assert engine.wait_idle(WAIT_S)
        assert engine.health().counters["dead"] == 1
        assert engine.tasks() == []
        [dead] = engine.dead_tasks()

    assert (dead.task_id, dead.kind, dead.group_id, dead.data) == (task_id, RECEIPT, b"g", data)
    assert (dead.reason, dead.origin, dead.died_at_ns) == (dying.reason, "here", callboard_clock.now_ns())
    assert (dead.last_error is None) if dying.error is None else (dying.error in (dead.last_error or ""))


def test_rule_04_a_cancelled_task_moves_to_the_dead_table(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(handler := Scripted())))
    task_id = engine.enqueue(receipt("read")).task_id
    assert task_id is not None

    assert engine.cancel(task_id)
    engine.run_due()

    assert handler.played == []
    [dead] = engine.dead_tasks()
    assert (dead.task_id, dead.reason, dead.data) == (task_id, "cancelled", payload(receipt("read")))


def bury_one(engine: Engine, text: str = "read", **options: Any) -> DeadTask:
    """Enqueue a task whose handler raises ZeroDivisionError once, and return it dead."""
    engine.enqueue(receipt(text), **options)
    engine.run_due()
    [dead] = engine.dead_tasks()
    return dead


def test_rule_04_a_dead_task_retried_by_hand_has_attempts_and_expiry_afresh(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    policy = RetryPolicy(max_attempts=1, expires_after=DAY)
    handler = Scripted(ZeroDivisionError(), Defer(timedelta(hours=1)))
    engine = make_engine(Plugin(receipts(handler, retry=policy)))
    dead = bury_one(engine)
    callboard_clock.advance(timedelta(days=2))

    answer = engine.retry_dead(dead.id)

    assert answer is not None
    assert answer.status == EnqueueStatus.INSERTED
    assert engine.dead_tasks() == []
    task = engine.task(answer.task_id or 0)
    assert task is not None
    assert (task.attempts, task.last_error, task.data) == (0, None, dead.data)
    assert task.expires_at_ns == callboard_clock.now_ns() + 86_400 * SECOND_NS
    engine.run_due()
    assert handler.played == ["read", "read"]


def test_rule_04_a_dead_task_retried_by_hand_merges_into_a_live_one(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(ZeroDivisionError(), None), retry=RetryPolicy(max_attempts=1))))
    dead = bury_one(engine)
    live = engine.enqueue(receipt("read"))

    assert engine.retry_dead(dead.id) == (live.task_id, EnqueueStatus.MERGED)

    assert engine.dead_tasks() == []
    assert [task.id for task in engine.tasks()] == [live.task_id]


def test_rule_04_a_dead_task_whose_key_lives_with_another_payload_stays_dead(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(ZeroDivisionError(), None), retry=RetryPolicy(max_attempts=1))))
    dead = bury_one(engine, key="k")
    live = engine.enqueue(receipt("seen"), key="k")

    assert engine.retry_dead(dead.id) == (live.task_id, EnqueueStatus.CONFLICT)

    assert [each.id for each in engine.dead_tasks()] == [dead.id]


def test_rule_04_a_dead_task_that_is_not_there_is_reported(make_engine: MakeEngine) -> None:
    assert make_engine().retry_dead(1) is None


def by_interval(done: threading.Event) -> Callable[..., None]:
    """Return a hook that tells when the rounds of every six hours were made: they prune, then reconcile."""

    def reconcile(reason: str) -> None:
        if reason == "interval":
            done.set()

    return reconcile


@pytest.mark.parametrize(
    ("options", "days", "left"),
    [
        pytest.param({}, 29, 1, id="kept for 30 days by default"),
        pytest.param({}, 31, 0, id="and no longer"),
        pytest.param({"dead_retention": timedelta(days=7)}, 6, 1, id="kept for as long as the host says"),
        pytest.param({"dead_retention": timedelta(days=7)}, 8, 0, id="and no longer than that"),
        pytest.param({"dead_retention": None}, 3_000, 1, id="kept for ever"),
    ],
)
def test_rule_04_dead_tasks_are_pruned_by_a_retention_period(
    make_engine: MakeEngine, callboard_clock: FakeClock, options: dict[str, Any], days: int, left: int
) -> None:
    rounds = threading.Event()
    plugin = Plugin(receipts(Scripted(Discard("unwanted"))), reconcile=by_interval(rounds))
    with make_engine(plugin, **options) as engine:
        engine.enqueue(receipt("read"))
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(timedelta(days=days))
        assert rounds.wait(WAIT_S)

        assert len(engine.dead_tasks()) == left


def test_rule_04_retention_prunes_no_live_task(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    rounds = threading.Event()
    policy = RetryPolicy(expires_after=timedelta(days=400))
    with make_engine(Plugin(receipts(Scripted(), retry=policy), reconcile=by_interval(rounds))) as engine:
        engine.enqueue(receipt("read"), not_before=timedelta(days=300))
        callboard_clock.advance(timedelta(days=200))
        assert rounds.wait(WAIT_S)

        assert len(engine.tasks()) == 1


# Rule 5


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"\xff\xff\xff", "the payload does not decode", id="no protobuf"),
        pytest.param(b"", "the payload is an empty Task", id="empty"),
        pytest.param(payload(thread("seen")), f"the payload is of kind '{THREAD}'", id="of another kind"),
        pytest.param(payload(receipt("read"))[:-1], "the payload does not decode", id="cut short"),
    ],
)
def test_rule_05_a_malformed_payload_is_logged_in_hex_dead_lettered_and_stops_nothing(
    make_engine: MakeEngine, callboard_database: str, data: bytes, why: str
) -> None:
    with logged("WARNING") as log, make_engine(Plugin(receipts(sent := Scripted()))) as engine:
        task_id = write_by_hand(callboard_database, RECEIPT, data)
        write_by_hand(callboard_database, RECEIPT, payload(receipt("good")))
        engine.enqueue(receipt("later"))
        assert engine.wait_idle(WAIT_S)
        [dead] = engine.dead_tasks()

    assert sorted(sent.played) == ["good", "later"]
    assert (dead.task_id, dead.reason, dead.data) == (task_id, "malformed", data)
    assert dead.last_error is not None
    assert why in dead.last_error
    [line] = log
    assert line.startswith(f"ERROR task {task_id} ({RECEIPT}) is malformed")
    assert line.endswith(f"payload {data.hex()}\n")


def test_rule_05_a_whole_batch_of_malformed_payloads_stops_nothing(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())))
    engine.migrate()
    for number in range(20):
        write_by_hand(callboard_database, RECEIPT, b"\xff%d" % number)
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert sent.played == ["read"]
    assert [dead.reason for dead in engine.dead_tasks()] == ["malformed"] * 20
