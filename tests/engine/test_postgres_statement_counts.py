"""What a thousand no-op tasks cost on PostgreSQL, counted as on SQLite: above all how often the server is asked.

Every way to the server and back is time in which nothing else of the scheduler happens, so the bounds for one task
are exact.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peewee
import pytest
from tests.engine.acting import MakeEngine, Plugin, eventually, logged, receipt, receipts
from tests.postgres import postgres_url, psycopg

from callboard import Engine, EnqueueStatus
from callboard._store.postgres import PostgresStore

__all__ = ["postgres_url"]

TASKS = 1_000

RUNS = ("Query", "Execute")
"""The messages of PostgreSQL's protocol that run a statement; others prepare it or ask for the answer."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="psycopg can have libpq trace on Linux only")


class Asked:
    """Everything that connections send to the server, as libpq itself traces it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._traces: list[Path] = []
        self._skipped: dict[Path, int] = {}

    def listen(self, connection: Any) -> None:
        """Trace a connection from now on."""
        trace = self._folder / f"trace-{len(self._traces)}"
        self._traces.append(trace)
        connection.pgconn.trace(os.open(trace, os.O_WRONLY | os.O_CREAT))  # whose it is from now on
        connection.pgconn.set_trace_flags(psycopg.pq.Trace.SUPPRESS_TIMESTAMPS)

    def forget(self) -> None:
        self._skipped = {trace: len(trace.read_bytes()) for trace in self._traces}

    def statements(self) -> int:
        """Return how many statements were sent since the last `forget`, each BEGIN and COMMIT among them."""
        sent = "".join(
            trace.read_bytes()[self._skipped.get(trace, 0) :].decode(errors="replace") for trace in self._traces
        )
        return sum(line.startswith("F\t") and line.split("\t")[2] in RUNS for line in sent.splitlines())


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked(tmp_path)
    connect: Callable[..., Any] = peewee.Psycopg3Adapter.connect

    def traced(*args: Any, **options: Any) -> Any:
        connection = connect(*args, **options)
        asked.listen(connection)
        return connection

    monkeypatch.setattr(peewee.Psycopg3Adapter, "connect", traced)
    return asked


def no_ops(handler: Callable[..., None] = lambda message, ctx: None) -> Plugin:
    return Plugin(receipts(handler))


@pytest.fixture
def engine(make_engine: MakeEngine, postgres_url: str, asked: Asked) -> Engine:
    """Return an engine that has made its tables and knows its statements."""
    engine = make_engine(no_ops(), database=postgres_url)
    engine.enqueue(receipt("first", b"group"))
    assert engine.run_due() == 1
    return engine


def fill(engine: Engine, groups: int) -> None:
    engine.enqueue_many(receipt(str(number), b"%d" % (number % groups)) for number in range(TASKS))


# Counted: 28; in one group 279, since 32 of its tasks are claimed at a time.
@pytest.mark.parametrize(("groups", "most"), [(1, 650), (100, 120), (TASKS, 120)])
def test_a_thousand_tasks_cost_few_statements(engine: Engine, asked: Asked, groups: int, most: int) -> None:
    fill(engine, groups)
    asked.forget()
    assert engine.run_due() == TASKS
    assert asked.statements() <= most


def test_enqueueing_is_one_statement(engine: Engine, asked: Asked) -> None:
    asked.forget()
    engine.enqueue(receipt("second"))
    assert asked.statements() == 1


def test_enqueueing_a_thousand_is_few_statements(engine: Engine, asked: Asked) -> None:
    asked.forget()
    fill(engine, 100)
    assert asked.statements() == 3  # the transaction and one INSERT


def test_a_task_that_a_host_commits_costs_no_more_statements_than_it_must(
    engine: Engine, postgres_url: str, asked: Asked
) -> None:
    asked.forget()
    assert engine.run_due() == 0
    idle = asked.statements()

    with psycopg.connect(postgres_url) as connection:
        asked.listen(connection)
        asked.forget()
        connection.execute("SELECT 'of the host''s own'")
        before = asked.statements()
        answer = engine.enqueue(receipt("a host's", b"group"), connection=connection)
        assert answer.status == EnqueueStatus.ACCEPTED
        # A look whether the transaction is sound, a savepoint, the row, the savepoint's end.
        assert asked.statements() - before == 4
    asked.forget()
    assert engine.run_due() == 1

    # The claim's ten: BEGIN, try-lock, read inbox, insert, delete, heads, search with locks, take, start, COMMIT.
    # The end's four: BEGIN, hold, delete, COMMIT. One more pass, so the heads once more than when idle.
    assert asked.statements() - idle == 15


# Counted: 33 to 37. As on SQLite, how many outcomes share a transaction depends on how fast they come.
@pytest.mark.parametrize("groups", [100, TASKS])
def test_a_started_engine_shares_its_statements_among_many_tasks(
    engine: Engine, asked: Asked, groups: int
) -> None:
    fill(engine, groups)
    asked.forget()
    engine.start()
    assert engine.wait_idle(60)
    assert engine.health().counters["done"] == TASKS
    assert asked.statements() <= 600


class Polls:
    """Counts how often an idle engine asks for the data's version, which is no statement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        data_version = PostgresStore.data_version

        def counted(store: PostgresStore) -> int:
            version = data_version(store)
            self.made += 1
            return version

        monkeypatch.setattr(PostgresStore, "data_version", counted)
        monkeypatch.setattr(PostgresStore, "poll_interval_s", 0.005)

    def wait_for(self, number: int) -> None:
        wanted = self.made + number
        eventually(lambda: self.made >= wanted)


# A look every 30 s, in case that a notification was lost: the version of the tables, the heads and the nodes.
def test_an_idle_engine_runs_no_statement_but_three_every_half_minute(
    engine: Engine, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = Polls(monkeypatch)
    engine.start()
    assert engine.wait_idle(60)
    for _ in range(5):  # the start's own notifications come when they come
        asked.forget()
        polls.wait_for(20)
        if not asked.statements():
            break
    assert asked.statements() == 0

    engine._core.store._next_look_s = 0.0  # type: ignore[attr-defined]
    polls.wait_for(20)
    assert asked.statements() == 3


def test_nothing_is_logged_for_tasks_that_go_well(engine: Engine) -> None:
    fill(engine, 100)
    with logged("TRACE") as messages:
        assert engine.run_due() == TASKS
    assert messages == []
