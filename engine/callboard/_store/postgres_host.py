"""Run SQL on the host's own PostgreSQL connection, in the host's own transaction: `connection=`.

The host may hand over a psycopg 3 connection, a peewee database, a SQLAlchemy connection or session on psycopg, or
Django's connection; psycopg's and SQLAlchemy's asynchronous ones can only be awaited. Whatever the library, the
statements go to the psycopg connection underneath, which alone knows whether a transaction is open on the server;
its settings are not ours to change. What is written is a savepoint in that transaction, because a statement that
fails (where the tables are missing, say) would otherwise end the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import peewee
import psycopg
from psycopg.pq import TransactionStatus

from callboard._store.host_connection import (
    AWAIT,
    comes_from,
    is_sqlalchemys_async,
    sqlalchemy_connection,
    watch_sqlalchemy,
)
from callboard._store.interface import Session
from callboard._store.postgres_inbox import ACCEPT
from callboard._store.postgres_session import PostgresSession, spoken, translate, translated
from callboard._task import Enqueued, EnqueueStatus, NewTask
from callboard.errors import ConfigurationError

_FOREIGN = "the database of connection="

_LOOK = "SELECT 1"
"""Begins the host's transaction, where psycopg does so with the first statement, and ends a pipeline's delays."""

_Hook = Callable[[Callable[[], None]], Any]


def session_on(connection: Any) -> AbstractContextManager[Session]:
    """Open a session on the host's connection, in its transaction or else in one of our own.

    Raises:
        ConfigurationError: nobody here knows what `connection` is, or it is on no PostgreSQL, or not on psycopg 3.
    """
    if isinstance(connection, psycopg.Connection):
        return _session(connection)
    if is_awaited(connection):
        raise ConfigurationError(AWAIT)
    if isinstance(connection, peewee.Database):
        return _peewee_session(connection)
    with _connecting():
        core = sqlalchemy_connection(connection)
    if core is not None:
        return _sqlalchemy_session(core)
    if comes_from(connection, "django") and hasattr(connection, "alias"):
        return _django_session(connection)
    raise _refusal(f"{type(connection).__module__}.{type(connection).__qualname__}")


def is_awaited(connection: Any) -> bool:
    """Return whether it is an asynchronous connection, or SQLAlchemy's session on one."""
    return isinstance(connection, psycopg.AsyncConnection) or is_sqlalchemys_async(connection)


async def accept_on(connection: Any, new: Sequence[NewTask]) -> list[Enqueued]:
    """Append tasks to the inbox on an asynchronous connection, as `session_on` and `accept` do on others."""
    raw = connection if isinstance(connection, psycopg.AsyncConnection) else await _sqlalchemys(connection)
    text, _ = spoken(ACCEPT)
    with translated(_FOREIGN):
        async with psycopg.AsyncCursor(raw, row_factory=psycopg.rows.tuple_row) as cursor:
            if not _is_ours(raw):
                await cursor.execute(_LOOK)
                await cursor.fetchall()
            async with raw.transaction():
                await cursor.executemany(text, new)
    return [Enqueued(None, EnqueueStatus.ACCEPTED)] * len(new)


async def _sqlalchemys(connection: Any) -> psycopg.AsyncConnection[Any]:
    """Return the connection under one of SQLAlchemy's, or under its session, which begins its transaction."""
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    core = connection
    with _connecting():
        if isinstance(connection, (AsyncSession, async_scoped_session)):
            core = await connection.connection()
        if not isinstance(core, AsyncConnection):
            raise _refusal(f"{type(connection).__module__}.{type(connection).__qualname__}")
        raw = (await core.get_raw_connection()).driver_connection
        if not isinstance(raw, psycopg.AsyncConnection):
            raise _refusal(f"SQLAlchemy's on {core.dialect.name}+{core.dialect.driver}")
        if not core.in_transaction():
            await core.begin()  # as its own first statement would, so that its commit is one
    return raw


def _is_ours(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether no transaction is open, and none would be begun: then it is for us to make one."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


@contextmanager
def _session(
    raw: psycopg.Connection[Any], after_commit: _Hook | None = None, handed: Any = None
) -> Iterator[PostgresSession]:
    """Be a part of the transaction that is open, or that psycopg begins now; where it would not, make one.

    Args:
        raw: psycopg's connection.
        after_commit: how the library that owns it takes calls to be made after its commit.
        handed: the connection as the host knows it, if that is another object.
    """
    committed: list[Callable[[], None]] = []
    with translated(_FOREIGN):
        ours = _is_ours(raw)
        session = PostgresSession(raw, _FOREIGN, committed.append if ours else after_commit, handed)
        if not ours:
            session.rows(_LOOK)
        block = raw.transaction()
        block.__enter__()
    try:
        yield session
    except BaseException as error:
        with suppress(psycopg.Error):  # it would hide what went wrong
            block.__exit__(type(error), error, error.__traceback__)
        raise
    with translated(_FOREIGN):
        block.__exit__(None, None, None)
    for call in committed:
        call()


@contextmanager
def _peewee_session(database: peewee.Database) -> Iterator[PostgresSession]:
    """Use the calling thread's connection; a thread that had none has none afterwards."""
    adapter = getattr(database, "_adapter", None)
    if not isinstance(adapter, peewee.Psycopg3Adapter):
        driver = "" if adapter is None else " on psycopg2 (give it prefer_psycopg3=True)"
        raise _refusal(f"a peewee {type(database).__name__}{driver}")
    with translated(_FOREIGN):
        opened = database.connect(reuse_if_open=True)
    try:
        raw = database.connection()  # type: ignore[no-untyped-call]
        # In `manual_commit` peewee learns of no commit.
        tells = database.in_transaction() and not isinstance(database.top_transaction(), peewee._manual)  # type: ignore[no-untyped-call]
        with _session(raw, database.after_commit if tells else None, raw) as session:
            yield session
    finally:
        if opened:
            database.close()


@contextmanager
def _sqlalchemy_session(core: Any) -> Iterator[PostgresSession]:
    raw = core.connection.dbapi_connection
    if not isinstance(raw, psycopg.Connection):
        raise _refusal(f"SQLAlchemy's on {core.dialect.name}+{core.dialect.driver}")
    if not core.in_transaction():
        core.begin()  # as its own first statement would, so that its commit is one
    with _session(raw, partial(watch_sqlalchemy, core), core) as session:
        yield session


@contextmanager
def _django_session(connection: Any) -> Iterator[PostgresSession]:
    from django.db import transaction

    if connection.vendor != "postgresql":
        raise _refusal(f"Django's on {connection.vendor}")
    with _connecting():
        connection.ensure_connection()
    raw = connection.connection
    if not isinstance(raw, psycopg.Connection):
        raise _refusal(f"Django's on {type(raw).__module__}")
    # Outside of `atomic` Django learns of no commit.
    tells = connection.in_atomic_block
    with _session(raw, partial(transaction.on_commit, using=connection.alias) if tells else None) as session:
        yield session


@contextmanager
def _connecting() -> Iterator[None]:
    """Raise what a library makes of psycopg's errors as what we make of them."""
    try:
        yield
    except Exception as error:
        if isinstance(error.__cause__, psycopg.Error):
            raise translate(error, _FOREIGN) from error
        raise


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(
        "on PostgreSQL connection= takes a psycopg 3 connection, a peewee database with prefer_psycopg3=True, a"
        f" SQLAlchemy connection or session on postgresql+psycopg, or Django's connection, not {what}"
    )
