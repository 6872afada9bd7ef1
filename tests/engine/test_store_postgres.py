"""The store on PostgreSQL keeps the contract, and has autovacuum come often enough."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlencode

import pytest
from tests.engine.acting import eventually
from tests.postgres import postgres_url, psycopg, sql

from callboard import Engine
from callboard._store.postgres import open_postgres
from callboard._task import NewTask
from callboard.errors import SchemaError, StoreError
from callboard.stores import Store
from callboard.testing.store_contract import MakeStore, StoreContract

__all__ = ["postgres_url"]


class TestPostgres(StoreContract):
    examples = 20
    gives_hints = True

    @pytest.fixture
    def make_store(self, postgres_url: str) -> Iterator[MakeStore]:
        made: list[Store] = []

        def make() -> Store:
            made.append(open_postgres(postgres_url))
            return made[-1]

        yield make
        for store in made:
            store.close()


# Connections


def connections(postgres_url: str) -> int:
    [(count,)] = sql(
        postgres_url,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'callboard' AND datname = current_database()",
    )
    return int(count)


def in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_thread_uses_the_connection_of_the_one_before(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    store.prepare(0)

    for _ in range(3):
        in_a_thread(lambda: store.list_tasks(None, None, None, 1, 0))

    assert connections(postgres_url) == 1
    store.close()
    eventually(lambda: connections(postgres_url) == 0)


def test_a_connection_that_comes_back_after_the_close_is_closed(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    store.prepare(0)
    with store.reading():
        store.close()
        assert connections(postgres_url) == 1
    eventually(lambda: connections(postgres_url) == 0)


def test_a_connection_comes_back_only_if_no_transaction_is_left_on_it(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    store.prepare(0)
    with store.reading() as session:
        first = session.connection
        session.run("BEGIN")
        session.run("CREATE TABLE left_open ()")
    with store.reading() as session:
        assert session.connection is not first
        assert session.rows("SELECT 1 FROM pg_tables WHERE tablename = 'left_open'") == []
    store.close()


def test_a_migration_sets_when_autovacuum_comes(postgres_url: str) -> None:
    engine = Engine(postgres_url, plugins=[])
    engine.migrate()
    engine.stop()

    options = sql(
        postgres_url,
        "SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND reloptions IS NOT NULL"
        " AND relname LIKE 'callboard%'",
    )

    both = {
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_threshold=10000",
        "autovacuum_vacuum_cost_delay=0",
    }
    assert {table: set(settings) for table, settings in options} == {
        "callboard_task": both
        | {"autovacuum_vacuum_insert_scale_factor=0.2", "autovacuum_analyze_scale_factor=0.05"},
        "callboard_inbox": both,
    }


# The insert by libpq's own calls


def new_tasks() -> Iterator[NewTask]:
    """Yield rows with each column given, and with each left out that may be."""
    given = NewTask("kind", b"g\0", b"i" * 32, b"\0data", b"h" * 32, 20, 1, 2**63 - 1, 3, 4, 1.5, 5, "Zürich ☃")
    yield given
    yield given._replace(identity=b"j" * 32, data=b"x" * 10**6)
    nothing = dict.fromkeys(
        ("group_id", "max_attempts", "initial_backoff_ns", "backoff_factor", "max_backoff_ns", "origin")
    )
    yield given._replace(identity=b"k" * 32, **nothing)  # type: ignore[arg-type]


def test_a_task_that_is_inserted_at_once_has_the_row_of_one_in_a_transaction(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    store.prepare(0)
    columns = ", ".join(NewTask._fields)
    for new in new_tasks():
        assert store.insert_now(new) is not None
        assert store.insert_now(new) is None
        [direct] = sql(postgres_url, f"DELETE FROM callboard_task RETURNING {columns}")
        with store.transaction() as session:
            store.tasks.insert(session, new)
        [ordinary] = sql(postgres_url, f"DELETE FROM callboard_task RETURNING {columns}")
        assert direct == ordinary == new
    store.close()


def test_a_connection_whose_statements_were_forgotten_is_told_anew(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    store.prepare(0)
    first, second, _ = new_tasks()
    assert store.insert_now(first) is not None
    with store.reading() as session:
        session.run("DISCARD ALL")
    assert store.insert_now(second) is not None
    assert connections(postgres_url) == 1
    store.close()


def test_what_the_server_refuses_at_once_is_one_error_and_the_connection_stays(postgres_url: str) -> None:
    store = open_postgres(postgres_url)
    store.prepare(0)
    first, second, _ = new_tasks()
    assert store.insert_now(first) is not None
    with pytest.raises(StoreError, match="0x00"):
        store.insert_now(second._replace(origin="nu\0l"))
    sql(postgres_url, "ALTER TABLE callboard_task RENAME TO elsewhere")
    with pytest.raises(SchemaError, match="callboard migrate"):
        store.insert_now(second)
    sql(postgres_url, "ALTER TABLE elsewhere RENAME TO callboard_task")
    assert store.insert_now(second) is not None
    assert connections(postgres_url) == 1
    store.close()


# The wake


@pytest.mark.parametrize("schema", ["public", 'A "schema" with a long name, ' + "x" * 40])
def test_a_row_by_hand_wakes_the_engines_of_its_schema_even_when_that_has_been_renamed(
    postgres_url: str, schema: str
) -> None:
    quoted = '"' + schema.replace('"', '""') + '"'
    sql(postgres_url, f"CREATE SCHEMA IF NOT EXISTS {quoted}")
    query = urlencode({"options": "-csearch_path=" + quoted.replace(" ", "\\ ")}, quote_via=quote)
    engine = Engine(postgres_url + ("&" if "?" in postgres_url else "?") + query, plugins=[])
    engine.migrate()
    engine.stop()
    sql(postgres_url, f"ALTER SCHEMA {quoted} RENAME TO renamed")
    [(number,)] = sql(postgres_url, "SELECT 'renamed'::regnamespace::oid")
    with psycopg.connect(postgres_url, autocommit=True) as ears:
        ears.execute(f'LISTEN "callboard.{number}"')
        insert = (
            "INSERT INTO renamed.callboard_task (kind, identity, data, data_hash) VALUES ('kind', '\\x01', '', '')"
        )
        sql(postgres_url, insert)
        [notice] = ears.notifies(timeout=20, stop_after=1)
    assert notice.payload == "callboard_task"
