"""What a thousand no-op tasks cost, counted instead of timed, so that it is the same on every machine.

The bounds are several times what was counted when they were set, and far below one for each task: they catch
work that came to be done for each task, not a statement more in a pass.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from loguru import logger
from playhouse.pool import PooledSqliteDatabase
from tests.engine.messages import ReceiptThread, SendReceipt

from callboard import Engine, FinishedTask, TaskKind, hookimpl
from callboard._store.sqlite import SqliteStore

TASKS = 1_000

MakeEngine = Callable[..., Engine]

LOOK = "PRAGMA data_version"
"""How an idle engine asks SQLite whether another connection has written; not a query on its tables."""


class Statements:
    """Every statement of every connection that an engine opens, as SQLite itself reports them."""

    def __init__(self, path: Path) -> None:
        self._changed = threading.Condition()
        self._seen: list[str] = []
        self.database: Any = PooledSqliteDatabase(  # type: ignore[no-untyped-call]
            path,
            pragmas={"journal_mode": "wal", "synchronous": "full"},
            check_same_thread=False,
            factory=self._connect,
        )

    def _connect(self, *args: Any, **options: Any) -> sqlite3.Connection:
        connection = sqlite3.Connection(*args, **options)
        connection.set_trace_callback(self._see)
        return connection

    def _see(self, statement: str) -> None:
        with self._changed:
            # RETURNING is a trigger inside SQLite, whose run for each row is reported as the statement again.
            if "RETURNING" not in statement or self._seen[-1:] != [statement]:
                self._seen.append(statement)
            self._changed.notify_all()

    def forget(self) -> None:
        with self._changed:
            self._seen.clear()

    def wait_for_looks(self, count: int) -> None:
        """Wait until the engine has looked so many times since the last `forget`."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._seen.count(LOOK) >= count, 20), self._seen

    def counted(self) -> dict[str, int]:
        """Return how many statements began with each word."""
        with self._changed:
            words = [statement.split(maxsplit=1)[0].upper() for statement in self._seen]
        return {word: words.count(word) for word in sorted(set(words))}

    def on_tables(self) -> list[str]:
        with self._changed:
            return [statement for statement in self._seen if "callboard_" in statement]


class NoOps:
    """A plugin of tasks that do nothing."""

    def __init__(self, handler: Callable[..., None] = lambda message, ctx: None) -> None:
        self._handler = handler

    @hookimpl
    def callboard_task_kinds(self) -> list[TaskKind[SendReceipt]]:
        return [TaskKind(SendReceipt, self._handler, group_id=lambda message: message.group_id or None)]


class Told(NoOps):
    """It notes how many tasks ended with each call of its hook."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    @hookimpl
    def callboard_tasks_finished(self, finished: Sequence[FinishedTask]) -> None:
        self.batches.append(len(finished))


@pytest.fixture
def statements(tmp_path: Path) -> Statements:
    return Statements(tmp_path / "counted.db")


@contextmanager
def log_records() -> Iterator[list[Any]]:
    records: list[Any] = []
    sink = logger.add(records.append, level=0, filter="callboard")
    logger.enable("callboard")
    try:
        yield records
    finally:
        logger.disable("callboard")
        logger.remove(sink)


def fill(engine: Engine, groups: int) -> None:
    """Enqueue a thousand tasks over so many groups; 0 is for tasks without one."""
    engine.enqueue_many(
        SendReceipt(text=str(number), group_id=b"%d" % (number % groups) if groups else b"")
        for number in range(TASKS)
    )


# Counted: 8 transactions with 39 statements; without groups 11 with 60; in one group 39 with 259, since 32 of its
# tasks are claimed at a time.
@pytest.mark.parametrize(
    ("groups", "most_transactions", "most_statements"),
    [(0, 25, 200), (1, 75, 650), (100, 25, 200), (TASKS, 25, 200)],
)
def test_a_thousand_tasks_cost_few_statements(
    make_engine: MakeEngine, statements: Statements, groups: int, most_transactions: int, most_statements: int
) -> None:
    engine = make_engine(NoOps(), database=statements.database)
    fill(engine, groups)
    statements.forget()
    assert engine.run_due() == TASKS
    counted = statements.counted()
    assert counted["BEGIN"] == counted["COMMIT"] <= most_transactions, counted
    assert sum(counted.values()) <= most_statements, counted


def test_a_group_with_many_due_rows_is_stepped_over_in_few_statements(
    make_engine: MakeEngine, statements: Statements
) -> None:
    """What falls behind is parked by the thousand, so that later tasks of other groups wait for few claims."""
    order: list[str] = []
    engine = make_engine(NoOps(lambda message, ctx: order.append(message.text)), database=statements.database)
    fill(engine, 1)
    engine.enqueue_many(SendReceipt(text=f"more {number}", group_id=b"0") for number in range(4 * TASKS))
    engine.enqueue(SendReceipt(text="other", group_id=b"1"))
    statements.forget()

    assert engine.run_due() == 5 * TASKS + 1

    parking = [text for text in statements.on_tables() if "SET parked = 1" in text]
    assert len(parking) == 2
    assert order.index("other") <= 64


# Counted: 7 to 37. How many outcomes share a transaction depends on how fast they come, within 5 ms of the
# first; the bound leaves a machine two seconds for what takes 0.05.
@pytest.mark.parametrize("groups", [0, 1, 100, TASKS])
def test_a_started_engine_commits_outcomes_in_batches(
    make_engine: MakeEngine, statements: Statements, groups: int
) -> None:
    engine = make_engine(NoOps(), database=statements.database)
    fill(engine, groups)
    statements.forget()
    engine.start()
    assert engine.wait_idle(60)
    assert engine.health().counters["done"] == TASKS
    assert statements.counted()["COMMIT"] <= 400, statements.counted()


def test_plugins_are_told_of_ended_tasks_in_batches(make_engine: MakeEngine, statements: Statements) -> None:
    plugin = Told()
    engine = make_engine(plugin, database=statements.database)
    fill(engine, 100)
    engine.run_due()
    assert sum(plugin.batches) == TASKS
    assert len(plugin.batches) <= 10


def test_nothing_is_logged_for_tasks_that_go_well(make_engine: MakeEngine, statements: Statements) -> None:
    engine = make_engine(NoOps(), database=statements.database)
    fill(engine, 100)
    engine.enqueue(ReceiptThread(), allow_unknown=True)  # which is warned of, so the log was listened to
    with log_records() as records:
        assert engine.run_due() == TASKS
    assert [record.record["level"].name for record in records] == ["WARNING"]


def test_enqueueing_is_one_statement(make_engine: MakeEngine, statements: Statements) -> None:
    engine = make_engine(NoOps(), database=statements.database)
    engine.enqueue(SendReceipt(text="first: it migrates"))
    statements.forget()
    engine.enqueue(SendReceipt(text="second"))
    assert statements.counted() == {"INSERT": 1}


def test_an_idle_engine_runs_no_statement_on_its_tables(
    make_engine: MakeEngine, statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.005)
    engine = make_engine(NoOps(), database=statements.database)
    fill(engine, 100)
    engine.enqueue(SendReceipt(text="tomorrow"), not_before=timedelta(days=1))
    engine.start()
    assert engine.wait_idle(60)
    for _ in range(5):  # the first looks find this thread's commits, and a busy machine comes to that late
        statements.forget()
        statements.wait_for_looks(20)
        if not statements.on_tables():
            return
    pytest.fail(f"it does not come to rest: {statements.on_tables()}")
