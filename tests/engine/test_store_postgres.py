"""The store on PostgreSQL keeps the contract, and has autovacuum come often enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.postgres import postgres_url, sql

from callboard import Engine
from callboard.stores import Store
from callboard.testing.store_contract import MakeStore, StoreContract

__all__ = ["postgres_url"]


class TestPostgres(StoreContract):
    examples = 20
    gives_hints = True

    @pytest.fixture
    def make_store(self, postgres_url: str) -> Iterator[MakeStore]:
        from callboard._store.postgres import open_postgres

        made: list[Store] = []

        def make() -> Store:
            made.append(open_postgres(postgres_url))
            return made[-1]

        yield make
        for store in made:
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
