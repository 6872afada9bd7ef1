"""Find the store for what a host gives as its database."""

from __future__ import annotations

import peewee

from callboard._store.interface import Store
from callboard._store.sqlite import open_sqlite


def open_store(database: str | peewee.Database | Store, synchronous: str) -> Store:
    """Return the store for a URL or for the host's own peewee database, or the store that was given itself.

    It connects to nothing.

    Raises:
        ConfigurationError: the URL or the database is of a sort that this build does not know.
    """
    if isinstance(database, Store) and not isinstance(database, type):
        return database
    return open_sqlite(database, synchronous)
