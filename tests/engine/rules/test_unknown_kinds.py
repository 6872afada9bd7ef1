"""Rules 16 to 18: rows that this build cannot run wait for one that can, and are in nobody's way."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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
    logged,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.messages import ReceiptThread, SendReceipt
from tests.engine.rows import path_of, payload, sql, write_by_hand

from callboard import (
    Defer,
    Done,
    Engine,
    EnqueueStatus,
    FinishedTask,
    RetryPolicy,
    TaskContext,
    TaskKind,
)
from callboard._actors import claiming, rounds
from callboard._store.session import SqliteSession, raw_connection
from callboard._store.sqlite_tasks import SqliteTasks
from callboard.testing import FakeClock
from callboard.wire import KpRotation

THREAD = "acme.receipts.ReceiptThread"
NEWER_FIELD = b"\xfa\x07\x03new"
"""An envelope that carries field 127: a kind that only a newer build knows, of no plugin."""

SECOND_NS = 10**9
HOUR = timedelta(hours=1)
HOUR_NS = 3_600 * SECOND_NS
DAY = timedelta(days=1)
DAY_NS = 24 * HOUR_NS


class Mailer:
    """A service that a host may lack."""


class ThreadTexts:
    """A handler of threads that remembers which it was called with."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, message: ReceiptThread, ctx: TaskContext) -> None:
        self.texts.append(message.receipt.text)


class WatchedClock(FakeClock):
    """A clock that notes the deadlines for which somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited_ns: set[int] = set()

    def seconds_until(self, deadline_ns: int) -> float | None:
        self.awaited_ns.add(deadline_ns)
        return super().seconds_until(deadline_ns)


class Ended:
    """A hook that tells when tasks end, and how."""

    def __init__(self) -> None:
        self.reasons: list[Any] = []
        self.ended = threading.Event()

    def hook(self) -> Callable[..., None]:
        def tasks_finished(finished: list[FinishedTask]) -> None:
            self.reasons += [each.dead_reason for each in finished]
            self.ended.set()

        return tasks_finished


def enqueue_unknown(engine: Engine, *texts: str, **options: Any) -> None:
    """Enqueue threads, which most engines here have no handler for."""
    for text in texts:
        engine.enqueue(thread(text), allow_unknown=True, **options)


# Rule 16


def test_rule_16_a_due_row_of_an_unknown_kind_is_deferred_for_an_hour_with_its_attempts_as_they_were(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    enqueue_unknown(engine, "unknown")
    sql(callboard_database, "UPDATE callboard_task SET attempts = 3, last_error = 'oops'")
    [before] = engine.tasks()

    engine.run_due()

    assert engine.tasks() == [
        before._replace(state="deferred", next_attempt_at_ns=callboard_clock.now_ns() + HOUR_NS)
    ]
    assert engine.dead_tasks() == []


def test_rule_16_a_row_of_an_unknown_kind_that_a_crash_left_is_deferred_like_any_other(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    engine = make_engine()
    enqueue_unknown(engine, "unknown", expires_after=2 * HOUR)
    sql(callboard_database, "UPDATE callboard_task SET alone = 1")
    [before] = engine.tasks()

    with logged("WARNING") as log:
        engine.run_due()

    assert engine.tasks() == [
        before._replace(state="deferred", next_attempt_at_ns=callboard_clock.now_ns() + HOUR_NS)
    ]
    assert len(log) == 1
    callboard_clock.advance(2 * HOUR)
    engine.run_due()
    assert [dead.reason for dead in engine.dead_tasks()] == ["expired"]
    assert engine.tasks() == []


def test_rule_17_a_row_that_a_crash_left_and_another_node_deferred_still_runs_alone(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    ignorant = make_engine()
    enqueue_unknown(ignorant, "a", "b")
    sql(callboard_database, "UPDATE callboard_task SET alone = 1")
    ignorant.run_due()
    running: list[int] = []
    engine = make_engine(
        Plugin(threads(lambda message, ctx: running.append(len(ctx.engine.tasks(state="running")))))
    )

    engine.run_due()

    assert running == [1, 1]


def test_rule_16_a_row_of_an_unknown_kind_that_is_not_due_waits_as_it_is(make_engine: MakeEngine) -> None:
    engine = make_engine()
    enqueue_unknown(engine, "unknown", not_before=HOUR)
    before = engine.tasks()

    engine.run_due()

    assert engine.tasks() == before


def test_rule_16_a_row_whose_payload_carries_a_field_of_a_newer_build_is_deferred(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())))
    engine.migrate()
    write_by_hand(callboard_database, RECEIPT, NEWER_FIELD, attempts=3)
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert sent.played == ["read"]
    [task] = engine.tasks()
    assert (task.state, task.attempts) == ("deferred", 3)
    assert task.next_attempt_at_ns == callboard_clock.now_ns() + HOUR_NS


@pytest.mark.parametrize("of_newer_builds", [False, True])
def test_rule_16_all_such_rows_are_deferred_in_one_statement_and_one_warning(
    make_engine: MakeEngine, callboard_database: str, of_newer_builds: bool
) -> None:
    host = SqliteHost(callboard_database)
    engine = make_engine(Plugin(receipts(Scripted())), database=host.database)
    engine.migrate()
    kind = RECEIPT if of_newer_builds else THREAD
    ids = [
        write_by_hand(
            callboard_database, kind, NEWER_FIELD[:-1] + b"%d" % n if of_newer_builds else payload(thread(str(n)))
        )
        for n in range(8)
    ]

    with logged("WARNING") as log, host.traced() as statements:
        engine.run_due()

    assert [task.state for task in engine.tasks()] == ["deferred"] * 8
    assert len([text for text in statements if "SET state = 'deferred'" in text]) == 1
    [line] = log
    assert line.startswith(f"WARNING 8 task(s) of kind {kind} deferred for an hour")
    assert f"(ids {', '.join(map(str, ids[:5]))}, …)" in line


class SqliteHost:
    """A host's own database, on whose connection a test watches statements."""

    def __init__(self, url: str) -> None:
        self.database = peewee.SqliteDatabase(path_of(url))

    @contextmanager
    def traced(self) -> Iterator[list[str]]:
        statements: list[str] = []
        with self.database.connection_context():
            raw_connection(self.database).set_trace_callback(statements.append)
            yield statements


def test_rule_16_there_is_one_warning_for_a_kind_and_hour(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    blocking = Blocking()
    with logged("WARNING") as log, make_engine(Plugin(receipts(blocking))) as engine:

        def defer(*texts: str) -> None:
            """Have the unknown rows of these texts deferred."""
            before = len(engine.tasks(state="deferred"))
            enqueue_unknown(engine, *texts)
            eventually(lambda: len(engine.tasks(state="deferred")) == before + len(texts))

        defer("a")
        defer("b", "c")
        assert len(log) == 1
        callboard_clock.advance(timedelta(minutes=59))
        defer("d")
        assert len(log) == 1
        engine.enqueue(KpRotation(), allow_unknown=True)
        eventually(lambda: len(log) == 2)
        assert "kp_rotation" in log[1]
        callboard_clock.advance(timedelta(minutes=2))
        eventually(lambda: len(log) == 3)
        assert log[2].startswith(f"WARNING 3 task(s) of kind {THREAD}")


def test_rule_16_a_row_that_a_crash_left_is_warned_of_once_an_hour_like_any_other(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    enqueue_unknown(make_engine(), "unknown", expires_after=DAY)
    sql(callboard_database, "UPDATE callboard_task SET alone = 1")
    with logged("WARNING") as log, make_engine(Plugin(receipts(Scripted()))) as engine:
        eventually(lambda: len(log) == 1)
        enqueue_unknown(engine, "within the hour")
        eventually(lambda: not engine.tasks(state="pending"))
        assert len(log) == 1
        callboard_clock.advance(timedelta(minutes=61))
        eventually(lambda: len(log) == 2)


def test_rule_16_the_hour_over_the_row_is_looked_at_and_deferred_again(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    with make_engine() as engine:
        enqueue_unknown(engine, "unknown")
        assert engine.wait_idle(WAIT_S)
        for _ in range(3):
            callboard_clock.advance(HOUR)
            deadline_ns = callboard_clock.now_ns() + HOUR_NS
            eventually(lambda at=deadline_ns: engine.tasks()[0].next_attempt_at_ns == at)  # type: ignore[misc]

        [task] = engine.tasks()
        assert (task.state, task.attempts) == ("deferred", 0)


@pytest.mark.parametrize("expires_after", [timedelta(minutes=30), timedelta(hours=30)])
def test_rule_16_its_expiry_still_bounds_its_life_and_ends_the_sleep(
    make_engine: MakeEngine, expires_after: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended()
    clock = WatchedClock()
    monkeypatch.setattr(rounds, "FIRST_LOOK_NS", (100 * HOUR_NS, 100 * HOUR_NS))  # nothing else ends the sleep
    with make_engine(Plugin(tasks_finished=ended.hook()), clock=clock) as engine:
        enqueue_unknown(engine, "unknown", expires_after=expires_after)
        assert engine.wait_idle(WAIT_S)
        [task] = engine.tasks()
        assert task.state == "deferred"
        next_ns = min(task.expires_at_ns, task.next_attempt_at_ns)
        eventually(lambda: next_ns in clock.awaited_ns)

        clock.advance(expires_after)
        assert ended.ended.wait(WAIT_S)

        assert engine.tasks() == []
        [dead] = engine.dead_tasks()
        assert (dead.reason, dead.data) == ("expired", payload(thread("unknown")))
        assert engine.health().counters["dead"] == 1


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        pytest.param({"expires_at_ns": 1}, "expired", id="expired"),
        pytest.param({"attempts": 20, "max_attempts": 20}, "exhausted", id="exhausted"),
        pytest.param({"data": b""}, "malformed", id="empty"),
    ],
)
def test_rule_16_a_row_of_an_unknown_kind_that_cannot_succeed_anywhere_is_not_deferred(
    make_engine: MakeEngine, callboard_database: str, columns: dict[str, Any], reason: str
) -> None:
    engine = make_engine()
    engine.migrate()
    row = {"data": payload(thread("unknown")), **columns}
    write_by_hand(callboard_database, THREAD, **row)

    engine.run_due()

    assert engine.tasks() == []
    assert [dead.reason for dead in engine.dead_tasks()] == [reason]


def test_rule_16_no_rescue_touches_a_deferred_row(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    engine = make_engine()
    enqueue_unknown(engine, "unknown")
    engine.run_due()
    before = engine.tasks()
    callboard_clock.advance(timedelta(minutes=30))

    with make_engine() as next_engine:
        assert next_engine.wait_idle(WAIT_S)
        assert next_engine.tasks() == before


def test_rule_16_no_retention_and_no_clock_set_back_touches_a_deferred_row(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    rounds = threading.Event()

    def reconcile(reason: str) -> None:
        if reason == "interval":
            rounds.set()

    with make_engine(Plugin(reconcile=reconcile), dead_retention=timedelta(0)) as engine:
        enqueue_unknown(engine, "unknown", expires_after=timedelta(days=900))
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(timedelta(days=100))
        assert rounds.wait(WAIT_S)
        eventually(lambda: engine.tasks()[0].next_attempt_at_ns == callboard_clock.now_ns() + HOUR_NS)
        before = engine.tasks()
        callboard_clock.jump(-timedelta(days=50))
        assert engine.wait_idle(WAIT_S)

        assert engine.tasks() == before


def test_rule_16_enqueueing_its_identity_again_only_raises_requests(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine = make_engine()
    enqueue_unknown(engine, "unknown")
    engine.run_due()
    [before] = engine.tasks()
    callboard_clock.advance(timedelta(minutes=1))

    answer = engine.enqueue(thread("unknown"), allow_unknown=True)
    engine.run_due()

    assert answer == (before.id, EnqueueStatus.MERGED)
    assert engine.tasks() == [before._replace(requests=2)]


def test_rule_16_the_defer_outcome_is_an_ordinary_future_deadline_that_counts_no_attempt_and_nobody_overruns(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    plugin = Plugin(receipts(handler := Scripted(Defer(2 * HOUR), Done())))
    engine = make_engine(plugin)
    engine.enqueue(receipt("read"))
    engine.run_due()

    [task] = engine.tasks()
    assert (task.state, task.attempts) == ("pending", 0)
    assert task.next_attempt_at_ns == callboard_clock.now_ns() + 2 * HOUR_NS
    callboard_clock.advance(HOUR)
    with make_engine(plugin) as next_engine:
        assert next_engine.wait_idle(WAIT_S)
        assert handler.played == ["read"]
        callboard_clock.advance(HOUR)
        eventually(lambda: handler.played == ["read", "read"])


def test_rule_16_a_kind_whose_service_the_host_lacks_is_deferred_like_an_unknown_one(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    plugin = Plugin(receipts(handler := Scripted(), requires=(Mailer,)))
    engine = make_engine(plugin)
    engine.enqueue(receipt("read"))
    engine.run_due()
    assert handler.played == []
    [task] = engine.tasks()
    assert (task.state, task.attempts) == ("deferred", 0)

    make_engine(plugin, services={Mailer: Mailer()}).run_due()

    assert handler.played == ["read"]


# Rule 17


def test_rule_17_a_node_that_knows_the_kind_claims_deferred_rows_as_soon_as_it_starts(
    make_engine: MakeEngine,
) -> None:
    ignorant = make_engine()
    enqueue_unknown(ignorant, "a", "b")
    ignorant.run_due()

    with make_engine(Plugin(threads(played := ThreadTexts()))) as engine:
        assert engine.wait_idle(WAIT_S)
        assert engine.tasks() == []

    assert sorted(played.texts) == ["a", "b"]


def test_rule_17_a_node_that_knows_the_kind_claims_rows_that_others_defer_while_it_runs(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    with make_engine(Plugin(threads(played := ThreadTexts()))) as engine:
        assert engine.wait_idle(WAIT_S)
        for text in ("a", "b"):  # what another node does before this one sees the row
            deferred = {"state": "deferred", "next_attempt_at_ns": callboard_clock.now_ns() + HOUR_NS}
            write_by_hand(callboard_database, THREAD, payload(thread(text)), **deferred)
            eventually(lambda text=text: text in played.texts)  # type: ignore[misc]


def test_rule_17_a_row_that_this_node_cannot_decode_is_not_taken_up_before_its_hour(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    with make_engine(Plugin(receipts(handler := Scripted()))) as engine:
        write_by_hand(callboard_database, RECEIPT, NEWER_FIELD)
        eventually(lambda: engine.tasks(state="deferred"))
        [before] = engine.tasks()
        callboard_clock.advance(timedelta(minutes=10))  # whoever took it up would put it off by these
        write_by_hand(callboard_database, RECEIPT, payload(receipt("read")))
        eventually(lambda: handler.played == ["read"])
        assert engine.wait_idle(WAIT_S)

        assert engine.tasks() == [before]


def test_rule_17_a_row_that_was_deferred_gets_group_and_policy_from_the_kind_of_the_node_that_claims_it(
    make_engine: MakeEngine,
) -> None:
    ignorant = make_engine()
    enqueue_unknown(ignorant, "unknown")
    ignorant.run_due()
    policy = RetryPolicy(max_attempts=7, initial=timedelta(seconds=9), expires_after=DAY)
    claimed: list[Any] = []

    def handle(message: Any, ctx: TaskContext) -> Defer:
        claimed.append(ctx.task)
        return Defer(HOUR)

    engine = make_engine(Plugin(TaskKind(ReceiptThread, handle, group_id=lambda message: b"g", retry=policy)))
    engine.run_due()

    [task] = engine.tasks()
    for row in (claimed[0], task):
        assert (row.group_id, row.max_attempts, row.initial_backoff_ns) == (b"g", 7, 9 * SECOND_NS)
        assert row.expires_at_ns == row.created_at_ns + DAY_NS


# Rule 18


BACKLOG = 20_000


@pytest.mark.parametrize("state", ["pending", "deferred"])
def test_rule_18_a_big_backlog_of_unknown_rows_does_not_slow_the_claim_of_known_ones(
    make_engine: MakeEngine, callboard_database: str, state: str
) -> None:
    make_engine().migrate()
    write_by_hand(callboard_database, RECEIPT, payload(receipt("read")))
    without = claim_cost(callboard_database)
    with closing(sqlite3.connect(path_of(callboard_database))) as connection, connection:
        connection.executemany(
            "INSERT INTO callboard_task (kind, identity, data, data_hash, state) VALUES (?, ?, x'78', x'78', ?)",
            [(THREAD, b"%d" % number, state) for number in range(BACKLOG)],
        )

    with_backlog = claim_cost(callboard_database)

    assert with_backlog < without + 200


def claim_cost(url: str) -> int:
    """Return how many instructions SQLite executes to find what a node that knows only receipts can claim."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    with closing(sqlite3.connect(path_of(url))) as connection:
        session, tasks = SqliteSession(connection, url), SqliteTasks()
        connection.set_progress_handler(step, 1)
        assert RECEIPT in tasks.heads(session, [RECEIPT], 1).pending
        [task] = tasks.due(session, [RECEIPT], 1, 2**62, 10, grouped_only=False)
        tasks.start(session, [task.id], 1, 1)
    return steps


def test_rule_18_known_rows_run_before_the_whole_backlog_has_been_set_aside(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "SET_ASIDE_BATCH", 10)
    left: list[int] = []

    def send(message: SendReceipt, ctx: TaskContext) -> None:
        left.append(len(ctx.engine.tasks(kind=THREAD, state="pending")))

    engine = make_engine(Plugin(receipts(send)))
    enqueue_unknown(engine, *map(str, range(35)))
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert left == [25]
    assert len(engine.tasks(kind=THREAD, state="deferred")) == 35
