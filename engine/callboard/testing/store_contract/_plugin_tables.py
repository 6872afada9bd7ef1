"""The contract's tests of plugins' tables, which a store need not take: then they are skipped."""

from __future__ import annotations

from functools import partial

import pytest

from callboard.errors import StoreError
from callboard.stores import Migration, PluginTables
from callboard.testing.store_contract._steps import NOW_NS, ContractTests, MakeStore, Steps, at_once

PLUGIN = "acme"
NOTES = "CREATE TABLE acme_note (text TEXT)"


def tables_of(steps: Steps) -> PluginTables:
    """Return the store of `steps`, if it takes tables of plugins."""
    if not isinstance(steps.store, PluginTables):
        pytest.skip("this store takes no tables of plugins")
    return steps.store


def migrate(steps: Steps, number: int, sql: str, compatible_with: int | None = None) -> bool:
    """Run one of the plugin's migrations."""
    tables = tables_of(steps)
    migration = Migration(tables.dialect, number, f"step {number}", sql, compatible_with or number)
    return tables.migrate_plugin(PLUGIN, migration, NOW_NS)


def written(steps: Steps) -> list[str]:
    """Return what is in the plugin's table."""
    with steps.store.reading() as session:
        return [text for (text,) in session.rows("SELECT text FROM acme_note ORDER BY text")]


class PluginTablesTests(ContractTests):
    """`PluginTables`: each migration is run once, whole, and recorded together with what it did."""

    def test_a_plugins_migration_is_run_once_and_recorded(self, steps: Steps, other: Steps) -> None:
        assert PLUGIN not in tables_of(steps).recorded()

        assert migrate(steps, 1, f"{NOTES}; INSERT INTO acme_note VALUES ('made')")
        assert not migrate(other, 1, "INSERT INTO acme_note VALUES ('made again')")

        assert written(other) == ["made"]
        assert tables_of(other).recorded()[PLUGIN] == (1, 1)

    def test_of_each_series_the_latest_number_and_the_greatest_compatible_with_are_recorded(
        self, steps: Steps
    ) -> None:
        engines = tables_of(steps).recorded()
        migrate(steps, 1, NOTES)
        migrate(steps, 2, "INSERT INTO acme_note VALUES ('two')", compatible_with=2)
        migrate(steps, 3, "INSERT INTO acme_note VALUES ('three')", compatible_with=1)

        assert tables_of(steps).recorded() == {**engines, PLUGIN: (3, 2)}

    def test_of_a_plugins_migration_that_fails_nothing_is_left(self, steps: Steps, other: Steps) -> None:
        with pytest.raises(StoreError):
            migrate(steps, 1, f"{NOTES}; INSERT INTO acme_missing VALUES ('never')")

        assert PLUGIN not in tables_of(other).recorded()
        assert migrate(other, 1, NOTES)
        assert written(other) == []

    def test_a_plugins_migration_inside_a_transaction_is_rolled_back_with_it(
        self, steps: Steps, other: Steps
    ) -> None:
        with pytest.raises(ZeroDivisionError), steps.store.transaction():
            migrate(steps, 1, NOTES)
            raise ZeroDivisionError

        assert PLUGIN not in tables_of(other).recorded()
        assert migrate(other, 1, NOTES)

    def test_of_those_that_run_a_plugins_migration_at_once_one_does(
        self, steps: Steps, make_store: MakeStore
    ) -> None:
        rivals = [Steps(make_store()) for _ in range(4)]

        done = at_once(*(partial(migrate, rival, 1, NOTES) for rival in rivals))

        assert sorted(done) == [False, False, False, True]
        assert tables_of(steps).recorded()[PLUGIN] == (1, 1)

    def test_a_plugins_statements_are_run_as_they_are_written(self, steps: Steps) -> None:
        migrate(steps, 1, f"{NOTES}; INSERT INTO acme_note VALUES ('100 % of what? %s; ?1')")

        assert written(steps) == ["100 % of what? %s; ?1"]
