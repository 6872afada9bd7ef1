"""Run SQL on somebody's connection, inside a transaction that may be the host's own.

The host may hand over a `sqlite3` connection, a peewee database, a SQLAlchemy connection or session, or
Django's connection. Each library is only touched when the host already uses it, so none is imported here.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import peewee

from callboard._store.failures import translate
from callboard.errors import ConfigurationError

Row = tuple[Any, ...]

_FOREIGN = "the database of connection="


class Session(Protocol):
    """Run statements in one open transaction."""

    @property
    def connection(self) -> Any:
        """The connection, for a caller's own statements in the same transaction."""
        ...

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""
        ...

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        ...

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of `rows`."""
        ...

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Have `call` made once this transaction has committed; `False` where nothing can tell."""
        ...


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
            return self._cursor.execute(sql, params).fetchall()
        except sqlite3.Error as error:
            raise translate(error, self._where) from error

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        try:
            return self._cursor.execute(sql, params).rowcount
        except sqlite3.Error as error:
            raise translate(error, self._where) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of `rows`."""
        try:
            self._cursor.executemany(sql, rows)
        except sqlite3.Error as error:
            raise translate(error, self._where) from error

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Register `call` with the owning library, if it has a commit hook."""
        if self._after_commit is None:
            return False
        self._after_commit(call)
        return True


class SqlAlchemySession:
    """Statements on a SQLAlchemy connection, through which SQLAlchemy learns that a transaction began."""

    def __init__(self, connection: Any) -> None:
        """Wrap a `sqlalchemy.Connection`."""
        self.connection = connection

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""
        return [tuple(row) for row in self._execute(sql, tuple(params))]

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return int(self._execute(sql, tuple(params)).rowcount)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of `rows`."""
        if rows:
            self._execute(sql, [tuple(row) for row in rows])

    def _execute(self, sql: str, params: tuple[Any, ...] | list[tuple[Any, ...]]) -> Any:
        from sqlalchemy.exc import DBAPIError

        try:
            return self.connection.exec_driver_sql(sql, params)
        except DBAPIError as error:
            raise translate(error.orig or error, _FOREIGN) from error

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Listen for this connection's next commit; a rollback takes the listener away."""
        from sqlalchemy import event

        connection = self.connection

        def committed(_connection: Any) -> None:
            forget()
            call()

        def rolled_back(_connection: Any) -> None:
            forget()

        def forget() -> None:
            event.remove(connection, "commit", committed)
            event.remove(connection, "rollback", rolled_back)

        event.listen(connection, "commit", committed)
        event.listen(connection, "rollback", rolled_back)
        return True


@contextmanager
def session_on(connection: Any) -> Iterator[Session]:
    """Open a session on the host's connection, in its transaction or else in one of our own.

    Raises:
        ConfigurationError: nobody here knows what `connection` is.
    """
    if isinstance(connection, sqlite3.Connection):
        # Autocommit and no transaction: without one of our own each statement would commit by itself.
        implicit = connection.isolation_level is not None or connection.in_transaction
        with nullcontext() if implicit else _own_transaction(connection):
            yield SqliteSession(connection, _FOREIGN)
    elif isinstance(connection, peewee.Database):
        with peewee_session(connection, _FOREIGN) as session:
            yield session
    elif _comes_from(connection, "sqlalchemy"):
        yield SqlAlchemySession(connection.connection() if hasattr(connection, "get_bind") else connection)
    elif _comes_from(connection, "django"):
        with _django_session(connection) as session:
            yield session
    else:
        raise ConfigurationError(
            "connection= takes a sqlite3 connection, a peewee database, a SQLAlchemy connection or session, or"
            f" Django's connection, not {type(connection).__module__}.{type(connection).__qualname__}"
        )


@contextmanager
def peewee_session(database: peewee.Database, where: str) -> Iterator[SqliteSession]:
    """Open a session on the calling thread's connection, joining its transaction if it has one.

    A thread that had no connection has none afterwards, so that none is left behind in the host's threads.
    """
    with connected(database, where):
        transaction = database.atomic("IMMEDIATE")
        with _translated(where):
            transaction.__enter__()
        try:
            yield SqliteSession(raw_connection(database), where, database.after_commit)
        except BaseException:
            transaction.__exit__(*sys.exc_info())
            raise
        with _translated(where):
            transaction.__exit__(None, None, None)


def raw_connection(database: peewee.Database) -> sqlite3.Connection:
    """Return the calling thread's open connection."""
    connection: sqlite3.Connection = database.connection()  # type: ignore[no-untyped-call]
    return connection


@contextmanager
def connected(database: peewee.Database, where: str) -> Iterator[None]:
    """Have the calling thread connected, and as it was afterwards."""
    with _translated(where):
        opened = database.connect(reuse_if_open=True)
    try:
        yield
    finally:
        if opened:
            database.close()


@contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except (peewee.PeeweeException, sqlite3.Error) as error:
        raise translate(error, where) from error


@contextmanager
def _own_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    with _translated(_FOREIGN):
        connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    with _translated(_FOREIGN):
        connection.commit()


@contextmanager
def _django_session(connection: Any) -> Iterator[SqliteSession]:
    from django.db import transaction

    alias = connection.alias
    with transaction.atomic(using=alias):
        yield SqliteSession(connection.connection, _FOREIGN, lambda call: transaction.on_commit(call, using=alias))


def _comes_from(connection: Any, package: str) -> bool:
    return any(base.__module__.partition(".")[0] == package for base in type(connection).__mro__)
