"""The DATABASE argument, and reading a database without changing a byte of it."""

from __future__ import annotations

import os
from pathlib import Path

import click
import peewee

from callboard._store.sqlite import MIGRATIONS, SqliteStore, open_sqlite
from callboard.errors import DatabaseUnavailableError, SchemaError


def url_of(text: str) -> str:
    """Return the URL of a database that is given by its URL or by its file's path."""
    return text if "://" in text else f"sqlite:///{text}"


database_argument = click.argument("database", type=url_of, metavar="DATABASE")


def open_for_reading(url: str) -> SqliteStore:
    """Return the store of a database that exists and has this build's tables.

    Its connections are read-only: a listing must not make a file, migrate one, or set the pragmas with which
    the engine opens its own.

    Raises:
        ConfigurationError: the URL is of a sort that this build does not know.
        StoreError: the database is missing, unreadable, or has other tables.
    """
    described = open_sqlite(url, "FULL")
    path, where = described.path, described.where
    if not described.exists():
        raise DatabaseUnavailableError(
            f"{where} is a folder; give the path of a file in it"
            if os.path.isdir(path)
            else f"{where} does not exist; check the path, or make one with `callboard migrate {path}`"
        )
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    store = SqliteStore(lambda: peewee.SqliteDatabase(uri, uri=True))
    store.where = where
    with store.reading() as session:
        if MIGRATIONS.pending(session, where):
            raise SchemaError(f"{where} has no up-to-date Callboard tables; run `callboard migrate {path}`")
    return store
