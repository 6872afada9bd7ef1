"""The SQLite file: its tables over the versions, rows that were written by hand, and what it is opened with."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import peewee
import pytest
from tests.engine.acting import RECEIPT, MakeEngine, Plugin, Scripted, receipt, receipts
from tests.engine.rows import path_of, payload, sql, write_by_hand

from callboard import (
    ConfigurationError,
    Defer,
    Engine,
    RetryPolicy,
    SchemaError,
    StoreError,
    SystemClock,
)
from callboard._store import migrating
from callboard._store.session import SqliteSession, raw_connection
from callboard._store.sqlite import SqliteStore, open_sqlite
from callboard._store.sqlite_tasks import SqliteTasks
from callboard.stores import Store

SECOND_NS = 10**9


# Migrations


def test_section_5_migrate_makes_the_tables_and_says_what_it_did(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine()

    done = engine.migrate()

    assert done == [f"{each.number:04} {each.title}" for each in migrating.shipped("migrations_sqlite")]
    tables = {name for (name,) in sql(callboard_database, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {
        "callboard_task",
        "callboard_dead_task",
        "callboard_group",
        "callboard_group_member",
        "callboard_pending_remove",
        "callboard_node",
        "callboard_migration",
    } <= tables
    assert all(name.startswith(("callboard_", "sqlite_")) for name in tables)


def test_section_5_migrations_are_numbered_without_a_gap_and_say_who_can_work_on_what_they_leave() -> None:
    shipped = migrating.shipped("migrations_sqlite")

    assert [each.number for each in shipped] == list(range(1, len(shipped) + 1))
    assert all(1 <= each.compatible_with <= each.number for each in shipped)


def test_section_5_a_hosts_tables_in_the_same_file_are_left_alone(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    sql(callboard_database, "CREATE TABLE note (text TEXT)")
    sql(callboard_database, "INSERT INTO note VALUES ('the host was here')")

    make_engine(Plugin(receipts(Scripted()))).enqueue(receipt("read"))

    assert sql(callboard_database, "SELECT * FROM note") == [("the host was here",)]


def test_a_migration_that_fails_half_way_leaves_nothing(make_engine: MakeEngine, callboard_database: str) -> None:
    sql(callboard_database, "CREATE TABLE callboard_stamp (not_ours TEXT)")  # in the way of the last statement

    with pytest.raises(StoreError, match=r"callboard\.db: table callboard_stamp already exists"):
        make_engine().migrate()

    assert sql(callboard_database, "SELECT name FROM sqlite_master") == [("callboard_stamp",)]


def test_an_engine_migrates_on_its_first_enqueue(make_engine: MakeEngine, callboard_database: str) -> None:
    make_engine(Plugin(receipts(Scripted()))).enqueue(receipt("read"))

    assert len(sql(callboard_database, "SELECT * FROM callboard_migration")) == len(
        migrating.shipped("migrations_sqlite")
    )


# Claims


@pytest.mark.parametrize("number", [1, 500, 501, 1_200])
def test_any_number_of_kinds_may_be_due_at_once(
    make_engine: MakeEngine, callboard_database: str, number: int
) -> None:
    make_engine().migrate()
    kinds = [f"acme.Kind{each}" for each in range(number)]
    for index, kind in enumerate(kinds[-3:]):
        write_by_hand(callboard_database, kind, b"%d" % index, next_attempt_at_ns=9 - index)

    with closing(sqlite3.connect(path_of(callboard_database))) as connection:
        session = SqliteSession(connection, callboard_database)
        found = SqliteTasks().due(session, kinds, 1, 10, 2, grouped_only=False)

    assert [task.kind for task in found] == kinds[-3:][::-1][:2]


# A newer engine's database


def written_by_a_newer_engine(url: str, compatible_with: int) -> None:
    sql(
        url,
        "INSERT INTO callboard_migration (name, number, title, compatible_with, applied_at_ns)"
        " VALUES ('callboard', 999, 'what is to come', ?, 1)",
        compatible_with,
    )


def test_section_5_a_database_written_by_a_newer_engine_is_refused_and_left_untouched(
    make_engine: MakeEngine, callboard_database: str, tmp_path: Path
) -> None:
    make_engine().migrate()
    written_by_a_newer_engine(callboard_database, compatible_with=999)
    before = contents(tmp_path)
    engine = make_engine(Plugin(receipts(Scripted())))

    refusal = rf"{path_of(callboard_database)} was written by a newer Callboard .*`pip install -U callboard`"
    enqueue = partial(engine.enqueue, receipt("read"))
    for use in (engine.start, engine.migrate, engine.run_due, engine.tasks, enqueue):
        with pytest.raises(SchemaError, match=refusal):
            use()

    assert contents(tmp_path) == before


def test_section_5_a_database_written_by_a_newer_engine_that_says_it_is_compatible_is_used(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    make_engine().migrate()
    written_by_a_newer_engine(callboard_database, compatible_with=1)
    engine = make_engine(Plugin(receipts(sent := Scripted())))

    engine.enqueue(receipt("read"))
    engine.run_due()

    assert sent.played == ["read"]
    assert engine.migrate() == []


def test_section_5_migrations_of_others_in_our_table_are_not_ours(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    make_engine().migrate()
    sql(callboard_database, "INSERT INTO callboard_migration VALUES ('acme', 999, 'receipts', 999, 1)")

    assert make_engine().migrate() == []


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder; SQLite's index of the log is rewritten by mere reading."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


# Rows that were written by hand


def test_section_5_a_row_can_be_written_by_hand_with_plain_sql(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())))
    engine.migrate()
    write_by_hand(callboard_database, RECEIPT, payload(receipt("read")))

    engine.run_due()

    assert sent.played == ["read"]
    assert engine.tasks() == []


def test_section_5_a_row_written_by_hand_gets_group_and_policy_from_the_kind_of_the_node_that_claims_it(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    policy = RetryPolicy(timedelta(seconds=3), 2, timedelta(seconds=9), 4, expires_after=timedelta(hours=1))
    handler = Scripted(Defer(timedelta(minutes=1)))
    engine = make_engine(Plugin(receipts(handler, retry=policy)), clock=SystemClock())
    engine.migrate()
    write_by_hand(callboard_database, RECEIPT, payload(receipt("read", b"g")))

    engine.run_due()

    [task] = engine.tasks()
    assert (task.group_id, task.max_attempts) == (b"g", 4)
    assert (task.initial_backoff_ns, task.backoff_factor, task.max_backoff_ns) == (3 * SECOND_NS, 2, 9 * SECOND_NS)
    assert task.expires_at_ns == task.created_at_ns + 3_600 * SECOND_NS


def test_section_5_a_row_written_by_hand_keeps_the_columns_that_it_gives(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted(Defer(timedelta(minutes=1)), ZeroDivisionError()))))
    engine.migrate()
    columns: dict[str, Any] = {"group_id": b"other", "max_attempts": 9, "expires_at_ns": 2**62, "origin": "hand"}
    write_by_hand(callboard_database, RECEIPT, payload(receipt("read", b"g")), **columns)

    engine.run_due()

    [task] = engine.tasks()
    assert {name: getattr(task, name) for name in columns} == columns


def test_a_row_with_senseless_numbers_runs_and_fails_without_harm(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(handler := Scripted(ZeroDivisionError()))))
    engine.migrate()
    columns: dict[str, Any] = {
        "attempts": -5,
        "max_attempts": 3,
        "initial_backoff_ns": -(2**63),
        "backoff_factor": 9e999,
        "max_backoff_ns": 2**63 - 1,
    }
    write_by_hand(callboard_database, RECEIPT, payload(receipt("read")), **columns)
    engine.enqueue(receipt("after"))

    engine.run_due()

    assert sorted(set(handler.played)) == ["after", "read"]


# What the file is opened with


@pytest.mark.parametrize(
    ("options", "level"), [({}, 2), ({"synchronous": "FULL"}, 2), ({"synchronous": "NORMAL"}, 1)]
)
def test_a_database_given_by_url_is_in_wal_mode_and_as_synchronous_as_was_asked(
    make_engine: MakeEngine, options: dict[str, Any], level: int
) -> None:
    engine = make_engine(**options)
    engine.migrate()

    with engine.transaction() as tx:
        assert tx.connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert tx.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("synchronous", ["OFF", "full", "", None, 2])
def test_another_synchronous_is_refused(callboard_database: str, synchronous: Any) -> None:
    with pytest.raises(ConfigurationError, match="synchronous must be 'FULL' or 'NORMAL'"):
        Engine(callboard_database, synchronous=synchronous)


def test_a_transaction_takes_the_write_lock_as_it_begins(make_engine: MakeEngine, callboard_database: str) -> None:
    engine = make_engine()
    engine.migrate()

    with (
        engine.transaction(),
        closing(sqlite3.connect(path_of(callboard_database), timeout=0)) as rival,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        rival.execute("BEGIN IMMEDIATE")


def test_the_hosts_own_database_keeps_its_settings(make_engine: MakeEngine, callboard_database: str) -> None:
    pragmas = {"journal_mode": "truncate", "synchronous": 1}
    database = peewee.SqliteDatabase(path_of(callboard_database), pragmas=pragmas)
    engine = make_engine(Plugin(receipts(sent := Scripted())), database=database)

    engine.enqueue(receipt("read"))
    engine.run_due()

    assert sent.played == ["read"]
    with database.connection_context():
        assert raw_connection(database).execute("PRAGMA journal_mode").fetchone() == ("truncate",)
        assert raw_connection(database).execute("PRAGMA synchronous").fetchone() == (1,)


def test_an_enqueue_leaves_no_connection_behind_on_the_hosts_own_database(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    database = peewee.SqliteDatabase(path_of(callboard_database))
    engine = make_engine(Plugin(receipts(Scripted())), database=database)

    engine.enqueue(receipt("read"))
    engine.tasks()
    assert database.is_closed()

    database.connect()
    engine.enqueue(receipt("seen"))
    assert not database.is_closed()
    database.close()


@pytest.mark.parametrize(
    "database",
    [
        "sqlite:///:memory:",
        "sqlite:///",
        "sqlite:///file::memory:?cache=shared",
        "sqlite:///file:callboard?mode=memory&cache=shared",
        peewee.SqliteDatabase(":memory:"),
        peewee.SqliteDatabase("file::memory:?cache=shared", uri=True),
    ],
)
def test_a_database_in_memory_is_refused(database: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"in-memory SQLite database.*give a file"):
        Engine(database)


def test_an_engine_runs_on_a_store_that_somebody_brings(make_engine: MakeEngine, callboard_database: str) -> None:
    store: Store = SqliteStore(lambda: peewee.SqliteDatabase(path_of(callboard_database)))
    engine = make_engine(Plugin(receipts(sent := Scripted())), database=store)

    engine.enqueue(receipt("read"))
    engine.run_due()

    assert sent.played == ["read"]
    assert engine.health().database == store.where


@pytest.mark.parametrize(
    "database",
    [
        "",
        "service.db",
        "sqlite://service.db",
        "mysql://localhost/x",
        None,
        7,
        peewee.MySQLDatabase("x"),
        SqliteStore,
    ],
)
def test_another_sort_of_database_is_refused_saying_what_is_taken(database: Any) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"sqlite:///service\.db.*or a peewee SqliteDatabase or PostgresqlDatabase, or an object with all",
    ):
        Engine(database)


def test_a_connection_that_comes_back_after_the_close_is_closed(callboard_database: str) -> None:
    """A thread may outlive its engine's stop; what nobody closes is a warning when it is collected."""
    store = open_sqlite(callboard_database, "FULL")
    with store.reading() as session:
        store.close()
        connection = session.connection
        assert session.rows("SELECT 1") == [(1,)]

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
