"""The database of a round, and what a program of its own does there: on an SQLite file or on PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.engine.rows import is_postgres, path_of

SQLITE, POSTGRES = SORTS = ("sqlite", "postgres")


@contextmanager
def fresh(sort: str, folder: Path) -> Iterator[str]:
    """Return the URL of an empty database: a file in `folder`, or one on a server that goes with the block."""
    if sort == SQLITE:
        yield f"sqlite:///{folder / 'callboard.db'}"
        return
    from tests.postgres import new_database  # not everybody has what it needs

    with new_database() as url:
        yield url


@contextmanager
def transaction(url: str) -> Iterator[Any]:
    """Open a connection of one's own, and a transaction that is rolled back unless it was committed."""
    if is_postgres(url):
        import psycopg

        with closing(psycopg.connect(url)) as connection:
            yield connection
        return
    with closing(sqlite3.connect(path_of(url), isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        yield file


def execute(connection: Any, statement: str, *params: Any) -> Any:
    """Run a statement whose parameters are written `?` on a connection of either sort."""
    marks = statement if isinstance(connection, sqlite3.Connection) else statement.replace("?", "%s")
    return connection.execute(marks, params)


def is_away(error: BaseException) -> bool:
    """Return whether a driver says that the database cannot be had now, through no fault of the program's."""
    # Both drivers call it that, as their common standard has it.
    return any(base.__name__ == "OperationalError" for base in type(error).__mro__)
