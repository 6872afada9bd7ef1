"""The DATABASE argument, reading a database without changing a byte, and changing rows of one that exists."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import peewee
from click.shell_completion import CompletionItem

from callboard._engine import Engine
from callboard._store.interface import Store
from callboard._store.opening import is_postgres_url, open_postgres_for_reading, open_store
from callboard._store.sqlite import MIGRATIONS, SqliteStore, open_sqlite
from callboard.errors import ConfigurationError, DatabaseUnavailableError, SchemaError

_SCHEME = re.compile(r"(sqlite|postgres|postgresql):", re.IGNORECASE)
_SETTINGS = re.compile(r"\b\w+ *= *\S+ +\w+ *=|\bpassword *=", re.IGNORECASE)


def url_of(text: str) -> str:
    """Return the URL of a database that is given by its URL or by its file's path.

    Raises:
        ConfigurationError: it is a URL that lacks its slashes, and no file of that name must be made; or a list
            of settings, which libpq's own tools take, of which one may be a password.
    """
    if "://" in text:
        return text
    if _SCHEME.match(text):
        raise ConfigurationError(
            "a database's URL has :// in it: sqlite:///service.db, postgresql://user@host/name"
        )
    if _SETTINGS.search(text):
        raise ConfigurationError("a database is given by its URL, postgresql://user@host/name, not by settings")
    return f"sqlite:///{text}"


def as_url(_context: click.Context, _argument: click.Parameter, text: str | None) -> str | None:
    """Be the callback of an argument that is a database."""
    return None if text is None else url_of(text)


def _files(_context: click.Context, _argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]  # the shell knows them


database_argument = click.argument("database", callback=as_url, metavar="DATABASE", shell_complete=_files)


def open_for_reading(url: str) -> Store:
    """Return the store of a database that exists and has this build's tables.

    Its connections are read-only: a listing must not make a file, migrate one, or set the pragmas with which
    the engine opens its own.

    Raises:
        ConfigurationError: the URL is of a sort that this build does not know.
        StoreError: the database is missing, unreadable, or has other tables.
    """
    return open_postgres_for_reading(url) if is_postgres_url(url) else _open_file_for_reading(url)


@contextmanager
def opened_for_changes(url: str, plugins: Sequence[Any] | None = ()) -> Iterator[Engine]:
    """Open an engine that runs nothing, on a database that exists and has this build's tables.

    Args:
        url: the database's.
        plugins: as `Engine` takes them; `None` for what must know which kinds are recurring.

    Raises:
        ConfigurationError: the URL is of a sort that this build does not know.
        StoreError: the database is missing, unreadable, or has other tables.
    """
    open_for_reading(url).close()  # an engine would make the file, and migrate
    engine = Engine(url, plugins=plugins, execute=False)
    engine.load_plugins()
    engine._core.plugin_tables.leave()  # whoever changes a task does not ask for tables
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def opened_store(url: str) -> Iterator[Store]:
    """Open the store of a database that exists and has this build's tables, for changes that need no engine.

    Raises:
        ConfigurationError: the URL is of a sort that this build does not know.
        StoreError: the database is missing, unreadable, or has other tables.
    """
    open_for_reading(url).close()
    store = open_store(url, "FULL")
    try:
        yield store
    finally:
        store.close()


def _open_file_for_reading(url: str) -> SqliteStore:
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
    # as the engine names it, and its nodes' locks
    store.path, store.where, store.nodes = path, where, described.nodes
    with store.reading() as session:
        if MIGRATIONS.pending(session, where):
            raise SchemaError(f"{where} has no up-to-date Callboard tables; run `callboard migrate {path}`")
    return store
