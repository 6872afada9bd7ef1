"""Run SQL on the host's own connection, in the host's own transaction: `connection=`.

The host may hand over a `sqlite3` connection, a peewee database, a SQLAlchemy connection or session, or
Django's connection. Each library is only touched when the host already uses it, so none is imported here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import peewee

from callboard._store.failures import translate
from callboard._store.interface import Row, Session
from callboard._store.session import SqliteSession, peewee_session, plain, translated
from callboard.errors import ConfigurationError

_FOREIGN = "the database of connection="

AWAIT = (
    "an asynchronous connection can only be awaited: `await engine.aenqueue(message, connection=...)` or"
    " `aenqueue_many`"
)
"""What to do with such a connection, in an error."""


@contextmanager
def session_on(connection: Any) -> Iterator[Session]:
    """Open a session on the host's connection, in its transaction or else in one of our own.

    Raises:
        ConfigurationError: nobody here knows what `connection` is, or it is not on SQLite.
    """
    if isinstance(connection, sqlite3.Connection):
        with translated(_FOREIGN), _sqlite3_session(connection) as session:
            yield session
    elif isinstance(connection, peewee.SqliteDatabase):
        with peewee_session(connection, _FOREIGN) as session:
            yield session
    elif (core := sqlalchemy_connection(connection)) is not None:
        if core.dialect.name != "sqlite":
            raise _refusal(f"SQLAlchemy's on {core.dialect.name}")
        yield SqlAlchemySession(core)
    elif comes_from(connection, "django") and hasattr(connection, "alias"):
        if connection.vendor != "sqlite":
            raise _refusal(f"Django's on {connection.vendor}")
        with _django_session(connection) as session:
            yield session
    elif sqlalchemys_lender(connection) is not None:
        raise ConfigurationError(AWAIT)
    else:
        raise _refusal(f"{type(connection).__module__}.{type(connection).__qualname__}")


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(
        "on SQLite connection= takes a sqlite3 connection, a peewee database, a SQLAlchemy connection or session,"
        f" or Django's connection, not {what}"
    )


@contextmanager
def _sqlite3_session(connection: sqlite3.Connection) -> Iterator[SqliteSession]:
    text_factory, connection.text_factory = connection.text_factory, str  # as `row_factory`: the host's own
    try:
        if connection.in_transaction or not _commits_each_statement(connection):
            yield SqliteSession(connection, _FOREIGN)
        else:
            with _own_transaction(connection) as session:
                yield session
    finally:
        connection.text_factory = text_factory


def _commits_each_statement(connection: sqlite3.Connection) -> bool:
    # The attribute is Python 3.12's; unless it is set, and before, `isolation_level` decides.
    autocommit = getattr(connection, "autocommit", None)
    return autocommit is True or (autocommit is not False and connection.isolation_level is None)


@contextmanager
def _own_transaction(connection: sqlite3.Connection) -> Iterator[SqliteSession]:
    committed: list[Callable[[], None]] = []
    session = SqliteSession(connection, _FOREIGN, committed.append)
    # In SQL, because the methods `commit` and `rollback` do nothing on a connection with autocommit=True.
    session.run("BEGIN IMMEDIATE")
    try:
        yield session
        session.run("COMMIT")
    except BaseException:
        if connection.in_transaction:
            session.run("ROLLBACK")
        raise
    for call in committed:
        call()


def sqlalchemy_connection(connection: Any) -> Any | None:
    """Return the SQLAlchemy connection that `connection` is or uses, if it is SQLAlchemy's at all."""
    if not comes_from(connection, "sqlalchemy"):
        return None
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, (Session, scoped_session)):
        connection = connection.connection()
    return connection if isinstance(connection, Connection) else None


def is_sqlalchemys_async(connection: Any) -> bool:
    """Return whether it is of SQLAlchemy's asynchronous part, which cannot be imported everywhere to ask it."""
    return any(base.__module__.startswith("sqlalchemy.ext.asyncio.") for base in type(connection).__mro__)


def sqlalchemys_lender(connection: Any) -> Any | None:
    """Return SQLAlchemy's asynchronous connection or session, if that is what `connection` is or stands for."""
    if not is_sqlalchemys_async(connection):
        return None
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(connection, async_scoped_session):
        connection = connection()
    return connection if isinstance(connection, (AsyncConnection, AsyncSession)) else None


@contextmanager
def _django_session(connection: Any) -> Iterator[SqliteSession]:
    from django.db import transaction

    alias = connection.alias
    with transaction.atomic(using=alias):
        yield SqliteSession(connection.connection, _FOREIGN, lambda call: transaction.on_commit(call, using=alias))


def comes_from(connection: Any, package: str) -> bool:
    """Return whether an object is of a class of `package`, without importing that."""
    return any(base.__module__.partition(".")[0] == package for base in type(connection).__mro__)


class SqlAlchemySession:
    """Statements on a SQLAlchemy connection, through which SQLAlchemy learns that a transaction began."""

    def __init__(self, connection: Any) -> None:
        """Wrap a `sqlalchemy.Connection`."""
        self.connection = connection

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""
        return [tuple(row) for row in self._execute_one(sql, params)]

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return int(self._execute_one(sql, params).rowcount)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of `rows`."""
        if rows:
            text = plain(sql, rows[0])[0]
            self._execute(text, [tuple(plain(sql, row)[1]) for row in rows])

    def _execute_one(self, sql: str, params: Sequence[Any]) -> Any:
        text, values = plain(sql, params)
        return self._execute(text, tuple(values))

    def _execute(self, sql: str, params: tuple[Any, ...] | list[tuple[Any, ...]]) -> Any:
        from sqlalchemy.exc import DBAPIError

        try:
            return self.connection.exec_driver_sql(sql, params)
        except DBAPIError as error:
            raise translate(error.orig or error, _FOREIGN) from error

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Have `call` made after the commit, as `watch_sqlalchemy` does."""
        watch_sqlalchemy(self.connection, call)
        return True


def watch_sqlalchemy(connection: Any, call: Callable[[], None]) -> None:
    """Have `call` made once this transaction has committed and the connection is closed or begins another.

    SQLAlchemy tells of a commit just before it, and of nothing right after it. A session gives its connection back
    with each commit, so there it makes no difference; whoever commits on a connection and keeps it open is served
    by the poll.
    """
    from sqlalchemy import event

    connection.info.setdefault(_PENDING, []).append(call)
    # Listening twice is listening once. Nothing is taken away again, which SQLAlchemy forbids in a listener.
    event.listen(connection, "commit", _committing)
    event.listen(connection, "rollback", _rolled_back)
    event.listen(connection, "begin", _begun)
    event.listen(connection.engine.pool, "checkin", _checked_in)


_PENDING = "callboard.pending"
_COMMITTED = "callboard.committed"
"""Keys of what SQLAlchemy keeps for a connection: calls whose transaction is open, and is being committed."""


def _committing(connection: Any) -> None:
    connection.info[_COMMITTED] = connection.info.pop(_PENDING, [])


def _rolled_back(connection: Any) -> None:
    connection.info.pop(_PENDING, None)
    connection.info.pop(_COMMITTED, None)  # the commit failed


def _begun(connection: Any) -> None:
    _make_calls(connection.info)


def _checked_in(_dbapi_connection: Any, record: Any) -> None:
    _make_calls(record.info)


def _make_calls(info: dict[Any, Any]) -> None:
    for call in info.pop(_COMMITTED, ()):
        call()
