"""The store on PostgreSQL keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.postgres import postgres_url

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
