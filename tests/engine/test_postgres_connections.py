"""Enqueue on the host's own PostgreSQL connection: each library, each of its ways to open a transaction.

A task appears if and only if the host's transaction commits; the wake follows the commit, and no rollback.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.acting import eventually, receipt, thread
from tests.engine.postgres_hosts import (
    EACH_LIBRARY,
    HOSTS,
    INBOX,
    LONG,
    NOTES,
    Host,
    PsycopgHost,
    WatchedEngine,
    engine,
)
from tests.postgres import postgres_url, psycopg, sql

from callboard import EnqueueStatus, SchemaError, StoreError, UnknownKindError

__all__ = ["engine", "postgres_url"]


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest, engine: WatchedEngine) -> Iterator[Host]:
    """Return a host on the engine's database, of each sort in turn."""
    host = HOSTS[request.param](engine.url)
    yield host
    host.close()


@pytest.fixture
def ears(engine: WatchedEngine) -> Iterator[Any]:
    """Return a connection that listens as engines do."""
    with psycopg.connect(engine.url, autocommit=True) as connection:
        connection.execute(f'LISTEN "{channel(engine.url)}"')
        yield connection


def channel(url: str) -> str:
    """Return where the engines of a schema notify each other."""
    return "callboard." + str(sql(url, "SELECT 'public'::regnamespace::oid")[0][0])


def heard(ears: Any, url: str) -> list[str]:
    """Return what was notified until now: notifications come in the order of the commits."""
    sql(url, f"""NOTIFY "{channel(url)}", 'now'""")
    told: list[str] = []
    while "now" not in told:
        told += [notice.payload for notice in ears.notifies(timeout=20, stop_after=1)]
    return told[:-1]


# Each library


def test_rule_02_a_task_appears_with_the_hosts_rows_and_then_the_wake(
    engine: WatchedEngine, host: Host, ears: Any
) -> None:
    with host.transaction():
        host.note("before")
        answer = engine.enqueue(receipt("read"), connection=host.connection)
        host.note("after")
        assert sql(engine.url, INBOX) == []
        assert engine.woken == []
        assert heard(ears, engine.url) == []

    assert answer == (None, EnqueueStatus.ACCEPTED)
    assert len(sql(engine.url, INBOX)) == 1
    assert sql(engine.url, NOTES) == [("before",), ("after",)]
    assert heard(ears, engine.url) == ["callboard_inbox"]
    assert engine.woken == ([1] if host.tells_of_commits else [])


def test_rule_02_a_task_that_is_the_transactions_first_statement_is_part_of_it(
    engine: WatchedEngine, host: Host
) -> None:
    with pytest.raises(ZeroDivisionError), host.transaction():
        engine.enqueue(receipt("read"), connection=host.connection)
        raise ZeroDivisionError
    assert sql(engine.url, INBOX) == []

    with host.transaction():
        engine.enqueue(receipt("read"), connection=host.connection)
        assert sql(engine.url, INBOX) == []
    assert len(sql(engine.url, INBOX)) == 1


def test_rule_02_after_a_rollback_there_is_neither_task_nor_wake(
    engine: WatchedEngine, host: Host, ears: Any
) -> None:
    with pytest.raises(ZeroDivisionError), host.transaction():
        host.note("never")
        engine.enqueue(receipt("one"), connection=host.connection)
        engine.enqueue_many([receipt("two"), receipt("three")], connection=host.connection)
        raise ZeroDivisionError

    assert (sql(engine.url, INBOX), sql(engine.url, NOTES)) == ([], [])
    with host.transaction():
        host.note("the next transaction")
    assert engine.woken == []
    assert heard(ears, engine.url) == []


def test_a_started_engine_that_is_idle_runs_what_a_host_enqueued(engine: WatchedEngine, host: Host) -> None:
    with engine:
        assert engine.wait_idle(20)
        with host.transaction():
            engine.enqueue(receipt("one"), connection=host.connection)
            engine.enqueue_many([receipt("two"), receipt("three")], connection=host.connection)

        # No look at the tables without a notice is due by then.
        eventually(lambda: engine.health().counters["done"] == 3)
    assert sorted(engine.handler.played) == ["one", "three", "two"]


def test_rule_02_group_events_and_pull_ins_are_part_of_the_hosts_transaction(
    engine: WatchedEngine, host: Host
) -> None:
    later_ns = engine.clock.now_ns() + 10**12
    with pytest.raises(ZeroDivisionError), host.transaction():
        with engine.transaction(connection=host.connection) as tx:
            tx.group(b"g").created("me", members=["ada"], super_admins=["me"])
        raise ZeroDivisionError
    assert engine.group(b"g").state() is None

    with host.transaction():
        host.note("before")
        with engine.transaction(connection=host.connection) as tx:
            tx.group(b"g").created("me", members=["ada"], super_admins=["me"])
            tx.group(b"g").leave_requested("ada", b"message")
            tx.enqueue(receipt("read"), not_before=later_ns)
            assert tx.pull_in(receipt("read"), not_later_than_ns=later_ns - 10)
        host.note("after")
        assert engine.group(b"g").state() is None

    state = engine.group(b"g").state()
    assert state is not None
    assert state.has_pending_leave_request
    assert engine.run_due() == 0
    assert [task.next_attempt_at_ns for task in engine.tasks()] == [later_ns - 10]


def test_rule_02_what_is_refused_leaves_the_transaction_usable(engine: WatchedEngine, host: Host) -> None:
    with host.transaction():
        host.note("before")
        with pytest.raises(UnknownKindError):
            engine.enqueue(thread("nobody's"), connection=host.connection)
        with pytest.raises(StoreError, match="brevity"):
            engine.enqueue(receipt(LONG), connection=host.connection)
        host.note("after")

    assert sql(engine.url, NOTES) == [("before",), ("after",)]
    assert sql(engine.url, INBOX) == []
    assert engine.woken == []


@pytest.mark.parametrize("library", EACH_LIBRARY)
def test_a_database_without_our_tables_is_refused_and_the_transaction_goes_on(
    engine: WatchedEngine, library: str
) -> None:
    sql(engine.url, "ALTER TABLE callboard_inbox RENAME TO elsewhere")
    host = EACH_LIBRARY[library](engine.url)
    with host.transaction():
        host.note("before")
        with pytest.raises(SchemaError, match=r"connection= has no Callboard tables .* run `callboard migrate`"):
            engine.enqueue(receipt("read"), connection=host.connection)
        host.note("after")
    host.close()

    assert sql(engine.url, NOTES) == [("before",), ("after",)]


def test_an_error_of_the_hosts_own_comes_out_as_it_is(engine: WatchedEngine) -> None:
    host = PsycopgHost(engine.url)
    with (
        pytest.raises(psycopg.errors.UndefinedTable, match="nowhere"),
        host.transaction(),
        engine.transaction(connection=host.connection) as tx,
    ):
        tx.enqueue(receipt("read"))
        host.run("SELECT * FROM nowhere")
    host.close()

    assert sql(engine.url, INBOX) == []
