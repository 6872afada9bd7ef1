"""The page of tables has every column of the tables that are there, with its type, on each store."""

from __future__ import annotations

import re

import pytest
from tests import pages
from tests.engine.either_store import callboard_database
from tests.engine.rows import is_postgres, sql

from callboard import Engine

__all__ = ["callboard_database"]

PAGE = "docs/reference/tables.md"
TABLES = re.findall(r"^## (callboard_\w+)$", pages.read(PAGE), re.MULTILINE)

SQLITE_COLUMNS = 'SELECT name, type, "notnull" OR pk, dflt_value IS NOT NULL FROM pragma_table_info(?)'
POSTGRES_COLUMNS = (
    "SELECT column_name, upper(data_type), is_nullable = 'NO', column_default IS NOT NULL"
    " FROM information_schema.columns WHERE table_name = ? ORDER BY ordinal_position"
)


@pytest.fixture
def migrated(callboard_database: str) -> str:
    """Return the URL of a database with its tables."""
    engine = Engine(callboard_database, plugins=[])
    engine.migrate()
    engine.stop()
    return callboard_database


def test_the_columns_are_those_of_the_page(migrated: str) -> None:
    where = "PostgreSQL" if is_postgres(migrated) else "SQLite"
    query = POSTGRES_COLUMNS if is_postgres(migrated) else SQLITE_COLUMNS
    shown = {
        name: {pages.plain(row["column"]): pages.plain(row[where]) for row in rows if row[where]}
        for name, rows in zip(TABLES, pages.tables(PAGE), strict=True)
    }

    found = {
        name: {
            column: f"{kind}{'' if required else '?'}{'=' if has_default else ''}"
            for column, kind, required, has_default in sql(migrated, query, name)
        }
        for name in TABLES
    }

    assert found == shown


def test_there_is_no_table_that_the_page_lacks(migrated: str) -> None:
    listed = (
        "SELECT tablename FROM pg_tables WHERE tablename LIKE 'callboard%'"
        if is_postgres(migrated)
        else "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'callboard%'"
    )
    expected = set(TABLES) if is_postgres(migrated) else set(TABLES) - {"callboard_inbox"}

    assert {name for (name,) in sql(migrated, listed)} == expected


@pytest.mark.parametrize("rows", pages.tables(PAGE), ids=TABLES)
def test_every_column_has_a_meaning(rows: list[dict[str, str]]) -> None:
    assert all(row["meaning"] for row in rows)
