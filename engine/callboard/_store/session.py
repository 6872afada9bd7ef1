"""Run SQL in a transaction on one connection: what the rest of the store is written against."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import peewee

from callboard._store.failures import translate
from callboard._store.interface import Row
from callboard._store.migrating import statements
from callboard.errors import StoreError

_NUMBERED = re.compile(r"\?(\d+)")


@lru_cache(maxsize=1024)
def _plain(sql: str) -> tuple[str, tuple[int, ...]]:
    return _NUMBERED.sub("?", sql), tuple(int(number) - 1 for number in _NUMBERED.findall(sql))


def plain(sql: str, params: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return a statement without numbered marks, of which Python 3.12.0 and 3.12.1 warn, and its parameters."""
    text, order = _plain(sql)
    return text, [params[place] for place in order] if order else params


_NOT_UTF_8 = "Could not decode to UTF-8"  # what Python's sqlite3 says of it


def _readable(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


class SqliteSession:
    """Statements on a `sqlite3` connection."""

    def __init__(
        self, connection: sqlite3.Connection, where: str, after_commit: Callable[[Any], Any] | None = None
    ) -> None:
        """Wrap `connection` to `where`; `after_commit` registers a call with whatever library owns it."""
        self.connection = connection
        self._where = where
        self._after_commit = after_commit
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # the host may have set one that does not make tuples

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""
        try:
            return self._fetched(sql, params)
        except sqlite3.Error as error:
            raise translate(error, self._where) from error

    def _fetched(self, sql: str, params: Sequence[Any]) -> list[Row]:
        try:
            return self._cursor.execute(*plain(sql, params)).fetchall()
        except sqlite3.OperationalError as error:
            if _NOT_UTF_8 not in str(error):
                raise
        # SQLite takes any bytes for a text. One row of them must not stand in the way of all others.
        usual = self.connection.text_factory
        self.connection.text_factory = _readable
        try:
            return self._cursor.execute(*plain(sql, params)).fetchall()
        finally:
            self.connection.text_factory = usual

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        try:
            return self._cursor.execute(*plain(sql, params)).rowcount
        except sqlite3.Error as error:
            raise translate(error, self._where) from error

    def script(self, sql: str) -> None:
        """Run the statements of a script, as they are written."""
        try:
            for statement in statements(sql):
                self._cursor.execute(statement)
        except sqlite3.Error as error:
            # What is wrong with the script's own words must not be taken for what they name, such as a lock.
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
                raise StoreError(f"{self._where}: {error}") from error
            raise translate(error, self._where) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of `rows`."""
        try:
            order = _plain(sql)[1]
            rows = [[row[place] for place in order] for row in rows] if order else rows
            self._cursor.executemany(_plain(sql)[0], rows)
        except sqlite3.Error as error:
            raise translate(error, self._where) from error

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Register `call` with the owning library, if it has a commit hook."""
        if self._after_commit is None:
            return False
        self._after_commit(call)
        return True


@contextmanager
def peewee_session(database: peewee.Database, where: str) -> Iterator[SqliteSession]:
    """Open a session on the calling thread's connection, joining its transaction if it has one.

    A thread that had no connection has none afterwards, so that none is left behind in the host's threads.
    """
    with connected(database, where):
        transaction = database.atomic("IMMEDIATE")
        with translated(where):
            transaction.__enter__()
        try:
            yield SqliteSession(raw_connection(database), where, database.after_commit)
        except BaseException:
            with suppress(peewee.PeeweeException, sqlite3.Error):  # it would hide what went wrong
                transaction.__exit__(*sys.exc_info())
            raise
        try:
            transaction.__exit__(None, None, None)
        except (peewee.PeeweeException, sqlite3.Error) as error:
            raise translate(_first(error), where) from error


def raw_connection(database: peewee.Database) -> sqlite3.Connection:
    """Return the calling thread's open connection."""
    connection: sqlite3.Connection = database.connection()  # type: ignore[no-untyped-call]
    return connection


@contextmanager
def connected(database: peewee.Database, where: str) -> Iterator[None]:
    """Have the calling thread connected, and as it was afterwards."""
    with translated(where):
        opened = database.connect(reuse_if_open=True)
    try:
        yield
    finally:
        if opened:
            database.close()


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise what the database raises as a `StoreError` that names it."""
    try:
        yield
    except (peewee.PeeweeException, sqlite3.Error) as error:
        raise translate(error, where) from error


def _first(error: Exception) -> Exception:
    """Return why a commit failed. Where SQLite has rolled back by itself, peewee fails to do so once more."""
    while "cannot rollback" in str(error) and isinstance(error.__context__, Exception):
        error = error.__context__
    return error
