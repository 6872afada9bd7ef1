"""The store on PostgreSQL keeps the contract, and has autovacuum come often enough."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from tests.engine.acting import eventually
from tests.postgres import postgres_url, sql

from callboard import Engine
from callboard._store.postgres import open_postgres
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
