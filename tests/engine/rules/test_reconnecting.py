"""Rule 11: while the database is away the engine waits, fails nothing, and goes on when it is back."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import peewee
import pytest
from playhouse.pool import PooledSqliteDatabase
from tests.engine.acting import (
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    receipt,
    receipts,
)
from tests.engine.messages import SendReceipt

from callboard import DatabaseUnavailableError, RetryPolicy, TaskContext, TaskState
from callboard._actors import mailbox
from callboard._actors.alarm import Alarm
from callboard._actors.outbox import FLUSH_WITHIN_S
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "host.db")


@pytest.fixture
def impatient(path: str) -> peewee.SqliteDatabase:
    """The host's database, which waits 50 ms for a lock instead of 5 s."""
    return peewee.SqliteDatabase(path, timeout=0.05, pragmas={"journal_mode": "wal"})


@contextmanager
def locked(path: str) -> Iterator[sqlite3.Connection]:
    """Hold the one write lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("ROLLBACK")


def test_rule_11_a_database_that_is_away_fails_no_attempt(
    make_engine: MakeEngine, impatient: peewee.SqliteDatabase, path: str
) -> None:
    handler = Blocking()
    reasons: list[str] = []
    plugin = Plugin(receipts(handler), reconcile=lambda engine, reason: reasons.append(reason))
    engine = make_engine(plugin, database=impatient)
    engine.start()
    engine.enqueue(receipt("hello"))
    handler.wait_begun("hello")

    with locked(path):
        handler.let_go()
        eventually(lambda: engine.health().database_error is not None)
        assert path in str(engine.health().database_error)
        assert engine.tasks()[0].state == TaskState.RUNNING

    assert engine.wait_idle(WAIT_S)
    assert engine.health().counters == {"done": 1, "dead": 0, "failed": 0, "stale": 0}
    assert engine.health().database_error is None
    assert handler.begun == ["hello"]
    assert reasons == ["start", "reconnect"]


def test_rule_11_nothing_is_claimed_meanwhile(
    make_engine: MakeEngine, impatient: peewee.SqliteDatabase, path: str, callboard_clock: FakeClock
) -> None:
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)), database=impatient)
    engine.start()
    engine.enqueue(receipt("hello"), not_before=HOUR)
    assert engine.wait_idle(WAIT_S)

    with locked(path):
        callboard_clock.advance(HOUR)
        eventually(lambda: engine.health().database_error is not None)
        assert handler.played == []
        with pytest.raises(DatabaseUnavailableError, match="locked"):
            engine.enqueue(receipt("another"))

    assert engine.wait_idle(WAIT_S)
    assert handler.played == ["hello"]
    assert engine.health().counters["failed"] == 0


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the scheduler waits after each failure, in seconds; outcomes wait 5 ms."""
    noted: list[float] = []
    within = Alarm.within

    def note(alarm: Alarm, seconds: float) -> None:
        if seconds > FLUSH_WITHIN_S:
            noted.append(seconds)
        within(alarm, seconds)

    monkeypatch.setattr(Alarm, "within", note)
    return noted


def test_rule_11_tries_come_further_and_further_apart(
    make_engine: MakeEngine, impatient: peewee.SqliteDatabase, path: str, waits: list[float]
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), database=impatient)
    engine.start()
    engine.enqueue(receipt("hello"))
    handler.wait_begun("hello")

    with logged("ERROR") as messages, locked(path):
        handler.let_go()
        eventually(lambda: len(waits) == 3)

    assert waits[:3] == pytest.approx([0.1, 0.15, 0.225])
    assert len(messages) == 1
    assert engine.wait_idle(WAIT_S)


def test_rule_11_wakes_do_not_hasten_the_next_try(
    make_engine: MakeEngine,
    impatient: peewee.SqliteDatabase,
    path: str,
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mailbox, "backoff_ns", lambda *_: 3_600 * 10**9)
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), database=impatient)
    engine.start()
    engine.enqueue(receipt("hello"))
    handler.wait_begun("hello")
    runtime = engine._core.running
    assert runtime is not None

    with locked(path):
        handler.let_go()
        eventually(lambda: waits)
        for _ in range(3):
            engine.wake()
            eventually(lambda: not runtime.actor._woken)  # handled, and so is the one before

        assert waits == [3_600]
    engine.stop(timeout=0)


def test_rule_11_a_claim_that_cannot_be_written_is_not_run(
    make_engine: MakeEngine, impatient: peewee.SqliteDatabase, path: str
) -> None:
    """The row is still pending, with its attempts and token as they were."""
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)), database=impatient)
    engine.enqueue(receipt("hello"))
    before = engine.tasks()

    with locked(path), pytest.raises(DatabaseUnavailableError):
        engine.run_due()

    assert (engine.tasks(), handler.played) == (before, [])
    assert engine.run_due() == 1


@pytest.mark.parametrize("use", ["complete", "enqueue"])
def test_rule_11_a_handler_that_finds_the_database_away_has_not_failed(
    make_engine: MakeEngine, impatient: peewee.SqliteDatabase, path: str, callboard_clock: FakeClock, use: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    refusals: list[DatabaseUnavailableError] = []

    def send(message: SendReceipt, ctx: TaskContext) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        try:
            if use == "complete":
                with ctx.complete():
                    pass
            else:
                engine.enqueue(receipt("another"), not_before=HOUR)
        except DatabaseUnavailableError as error:
            refusals.append(error)
            raise

    engine = make_engine(Plugin(receipts(send, retry=RetryPolicy(max_attempts=1))), database=impatient)
    engine.start()
    engine.enqueue(receipt("hello"))
    assert begun.wait(WAIT_S)
    with locked(path):
        go_on.set()
        eventually(lambda: refusals)
    assert engine.wait_idle(WAIT_S)

    assert [(task.attempts, task.outages) for task in engine.tasks()] == [(0, 1)]
    callboard_clock.advance(timedelta(seconds=2))
    assert engine.wait_idle(WAIT_S)
    assert engine.health().counters["done"] == 1
    assert engine.dead_tasks() == []


class BreakableConnection(sqlite3.Connection):
    """A connection to a real file, on which nothing works any more once it is broken."""

    broken = False

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        if self.broken:
            raise sqlite3.OperationalError("disk I/O error")
        return super().cursor(*args, **kwargs)


@pytest.mark.parametrize("pooled", [False, True])
def test_rule_11_a_connection_that_broke_is_replaced(pooled: bool, make_engine: MakeEngine, path: str) -> None:
    connections: list[BreakableConnection] = []

    class Connection(BreakableConnection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            connections.append(self)

    database_class: Any = PooledSqliteDatabase if pooled else peewee.SqliteDatabase
    database = database_class(path, pragmas={"journal_mode": "wal"}, check_same_thread=False, factory=Connection)
    handler = Blocking()
    reasons: list[str] = []
    plugin = Plugin(receipts(handler), reconcile=lambda engine, reason: reasons.append(reason))
    engine = make_engine(plugin, database=database)
    engine.start()
    engine.enqueue(receipt("hello"))
    handler.wait_begun("hello")

    for connection in list(connections):
        connection.broken = True
    handler.let_go()
    eventually(lambda: reasons == ["start", "reconnect"])

    assert engine.wait_idle(WAIT_S)
    assert engine.health().counters == {"done": 1, "dead": 0, "failed": 0, "stale": 0}
    assert engine.health().database_error is None
