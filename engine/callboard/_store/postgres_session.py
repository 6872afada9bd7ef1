"""Run SQL in a transaction on one PostgreSQL connection, and turn what psycopg raises into store errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import peewee
import psycopg
from playhouse.pool import MaxConnectionsExceeded
from psycopg import errors

from callboard._store.interface import Row
from callboard.errors import DatabaseUnavailableError, SchemaError, StoreError

_MARK = re.compile(r"\?(\d*)((?:::[\w ]+\[\])?)")
_CROWDED = ("too many clients", "too many connections", "connection slots are reserved")
"""What a server says that lets nobody in any more; of a connection that fails, psycopg knows no SQLSTATE."""

_LOST = ("08", "57P")
"""How the SQLSTATEs begin of connections that are lost and of servers that stop."""
_ENDED = ("40001", "40P01")
"""Serialization failure, deadlock."""

_HINT = re.compile(r" (?:INDEXED BY \w+|NOT INDEXED)")


@lru_cache(maxsize=1024)
def spoken(sql: str) -> tuple[str, tuple[int, ...] | None]:
    """Return a statement as psycopg takes it, and which parameter each of its marks stands for."""
    order: list[int] = []

    def place(mark: re.Match[str]) -> str:
        order.append(int(mark[1]) - 1 if mark[1] else len(order))
        # Arrays go in binary: as text psycopg escapes each of their bytes in Python, two thirds of a bulk enqueue.
        return f"%b{mark[2]}" if mark[2] else "%s"

    text = _MARK.sub(place, _HINT.sub("", sql))
    return text, None if order == list(range(len(order))) else tuple(order)


def own_cursor(connection: Any) -> psycopg.Cursor[Row]:
    """Return a cursor of psycopg's own class, whatever the host has set for a connection.

    Rows come in binary: a third of the client's share of a claim was to read their numbers and bytes as text.
    """
    cursor = psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row)
    cursor.format = psycopg.pq.Format.BINARY
    return cursor


class PostgresSession:
    """Statements on a psycopg connection; parameters are written `?`, or `?1` and so on."""

    def __init__(
        self,
        connection: Any,
        where: str,
        after_commit: Callable[[Any], Any] | None = None,
        handed: Any = None,
        cursor: psycopg.Cursor[Row] | None = None,
    ) -> None:
        """Run statements.

        Args:
            connection: a psycopg connection.
            where: the database as messages name it.
            after_commit: registers a call with whatever library owns the connection.
            handed: the connection as its owner knows it, if that is another object.
            cursor: an `own_cursor` of the connection that no other session uses meanwhile, if there is one.
        """
        self.connection = connection if handed is None else handed
        self._where = where
        self._after_commit = after_commit
        self._raw = connection
        self._cursor = own_cursor(connection) if cursor is None else cursor

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""
        self._execute(sql, params)
        try:
            return list(self._cursor.fetchall())
        except psycopg.Error as error:
            raise translate(error, self._where) from error

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        self._execute(sql, params)
        return int(self._cursor.rowcount)

    def _execute(self, sql: str, params: Sequence[Any]) -> None:
        text, order = spoken(sql)
        values = params if order is None else [params[place] for place in order]
        try:
            self._cursor.execute(text, values or None)
        except psycopg.Error as error:
            raise translate(error, self._where) from error

    def script(self, sql: str) -> None:
        """Run the statements of a script, as they are written."""
        try:
            # As text, since only so the server takes several statements at once.
            self._cursor.execute(sql.encode(), prepare=False, binary=False)
        except psycopg.Error as error:
            raise translate(error, self._where) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of `rows`, on one way to the server and back."""
        if not rows:
            return
        text, order = spoken(sql)
        try:
            self._cursor.executemany(
                text, rows if order is None else [[row[place] for place in order] for row in rows]
            )
        except psycopg.Error as error:
            raise translate(error, self._where) from error

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Register `call` with the owning library, if it has a commit hook."""
        if self._after_commit is None:
            return False
        self._after_commit(call)
        return True


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise what the database raises as a `StoreError` that names it."""
    try:
        yield
    except (psycopg.Error, peewee.PeeweeException, MaxConnectionsExceeded) as error:
        raise translate(error, where) from error


_OWN_SCHEMA = (
    "give Callboard a schema of its own (CREATE SCHEMA callboard) and name it in the URL:"
    " ?options=-csearch_path%3Dcallboard"
)


def translate(error: BaseException, where: str) -> StoreError:
    """Return the `StoreError` for a driver's exception; `where` names the database, without a password."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, psycopg.Error):
        cause = cause.__cause__ or cause.__context__
    text = str(error if cause is None else cause).strip().partition("\n")[0]
    if isinstance(error, MaxConnectionsExceeded):
        return DatabaseUnavailableError(f"{where}: all connections of the pool are in use; give it more ({text})")
    if (
        isinstance(cause, psycopg.OperationalError)
        and cause.sqlstate is None
        and (refused := _refused(text, where))
    ):
        return refused
    match cause:
        case errors.UndefinedColumn():
            return SchemaError(
                f"{where} has tables of another version ({text}); run `callboard migrate` or Engine.migrate(), or,"
                f" if they are another application's, {_OWN_SCHEMA}"
            )
        case errors.UndefinedTable():
            return SchemaError(
                f"{where} has no Callboard tables of this version where its search_path leads; run"
                f" `callboard migrate` or Engine.migrate() ({text})"
            )
        case errors.InsufficientPrivilege():
            return StoreError(
                f"{where} refuses this user: {text}; the role needs USAGE on the schema and its sequences and"
                " SELECT, INSERT, UPDATE and DELETE on the tables, and CREATE on the schema to migrate"
            )
        case errors.DuplicateTable() | errors.DuplicateObject() | errors.DuplicateFunction():
            return SchemaError(
                f"{where} has something of this name that Callboard did not make: {text}; {_OWN_SCHEMA}"
            )
        case errors.InvalidSchemaName():
            return SchemaError(
                f"{where} has no schema where its search_path leads; make it with CREATE SCHEMA, or name another"
                f" ({text})"
            )
        case errors.SerializationFailure() | errors.DeadlockDetected() | errors.LockNotAvailable():
            return DatabaseUnavailableError(f"{where} ended this transaction for another's; try again ({text})")
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
            return _keeps_out(text, where)
        case errors.DiskFull():
            return DatabaseUnavailableError(f"{where} has no room to grow; free some disk space ({text})")
        case errors.ReadOnlySqlTransaction():
            return DatabaseUnavailableError(f"{where} is read-only; give the primary's address ({text})")
        case psycopg.OperationalError() if any(sign in text for sign in _CROWDED):
            return DatabaseUnavailableError(
                f"{where} has no connection left for us; end others, raise max_connections or lower workers"
                f" ({text})"
            )
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return DatabaseUnavailableError(f"{where} is out of reach; check that the server runs ({text})")
    return StoreError(f"{where}: {text}")


def is_no_fault_of_the_caller(error: BaseException) -> bool:
    """Return whether a driver's exception tells of a lost connection, or of a transaction ended for another's."""
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate in _ENDED or error.sqlstate.startswith(_LOST)
    )


_KEPT_OUT = ("authentication failed", "no password supplied", "pg_hba.conf", "permission denied for database")


def _refused(text: str, where: str) -> StoreError | None:
    """Return the error for a connection that was not made; libpq tells only in words why, mostly English ones."""
    if any(sign in text for sign in _KEPT_OUT) or re.search(r'role ".*" does not exist', text):
        return _keeps_out(text, where)
    if re.search(r'database ".*" does not exist', text):
        return DatabaseUnavailableError(
            f"{where} does not exist; check the name in the URL, or make one with CREATE DATABASE ({text})"
        )
    return None


def _keeps_out(text: str, where: str) -> StoreError:
    return DatabaseUnavailableError(
        f"{where} does not let this user in; check the user, the password (in the URL, PGPASSWORD or ~/.pgpass)"
        f" and the server's pg_hba.conf ({text})"
    )
