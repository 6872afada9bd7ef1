"""Find the store for what a host gives as its database."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import peewee

from callboard._store.interface import Store
from callboard._store.sqlite import open_sqlite
from callboard.errors import ConfigurationError

if TYPE_CHECKING:
    from callboard._store.postgres import PostgresStore


def open_store(database: str | peewee.Database | Store, synchronous: str) -> Store:
    """Return the store for a URL or for the host's own peewee database, or the store that was given itself.

    It connects to nothing.

    Raises:
        ConfigurationError: the URL or the database is of a sort that this build does not know.
    """
    if isinstance(database, Store) and not isinstance(database, type):
        return database
    if isinstance(database, peewee.PostgresqlDatabase) or is_postgres_url(database):
        store: PostgresStore = _postgres().open_postgres(database)
        return store
    return open_sqlite(database, synchronous)


def open_postgres_for_reading(url: str) -> PostgresStore:
    """Return the store of a PostgreSQL database that exists and has this build's tables; it cannot write.

    Raises:
        ConfigurationError: the URL cannot be read, or psycopg is missing.
        StoreError: the database is missing, out of reach, or has other tables.
    """
    store: PostgresStore = _postgres().open_postgres_for_reading(url)
    return store


def is_postgres_url(database: object) -> bool:
    """Return whether it is a URL that PostgreSQL's own tools take, too."""
    return isinstance(database, str) and database.startswith(("postgresql://", "postgres://"))


def _postgres() -> ModuleType:
    try:
        from callboard._store import postgres  # psycopg is an extra, and slow to import
    except ImportError as error:
        raise ConfigurationError(
            f"a PostgreSQL database needs psycopg 3: pip install 'callboard[postgres]' ({error})"
        ) from error
    return postgres
