"""Run SQL on the host's own PostgreSQL connection, in the host's own transaction: `connection=`.

The host may hand over a psycopg 3 connection, a peewee database, a SQLAlchemy connection or session on psycopg, or
Django's connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import peewee
import psycopg

from callboard._store.host_connection import comes_from, sqlalchemy_connection, watch_sqlalchemy
from callboard._store.interface import Session
from callboard._store.postgres_session import PostgresSession, translated
from callboard.errors import ConfigurationError

_FOREIGN = "the database of connection="


@contextmanager
def session_on(connection: Any) -> Iterator[Session]:
    """Open a session on the host's connection, in its transaction or else in one of our own.

    Raises:
        ConfigurationError: nobody here knows what `connection` is.
    """
    if isinstance(connection, psycopg.Connection):
        with translated(_FOREIGN), _in_transaction(connection) as session:
            yield session
    elif isinstance(connection, peewee.PostgresqlDatabase):
        with translated(_FOREIGN), connection.atomic():
            raw = connection.connection()  # type: ignore[no-untyped-call]
            yield PostgresSession(raw, _FOREIGN, connection.after_commit, handed=raw)
    elif (core := sqlalchemy_connection(connection)) is not None:
        raw = core.connection.dbapi_connection
        if not isinstance(raw, psycopg.Connection):
            raise _refusal(f"SQLAlchemy's connection of {type(raw).__module__}")
        core.exec_driver_sql("SELECT 1")  # through which SQLAlchemy learns that a transaction has begun
        yield PostgresSession(raw, _FOREIGN, lambda call: watch_sqlalchemy(core, call), handed=core)
    elif comes_from(connection, "django") and hasattr(connection, "alias"):
        with _django_session(connection) as session:
            yield session
    else:
        raise _refusal(f"{type(connection).__module__}.{type(connection).__qualname__}")


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(
        "connection= takes a psycopg 3 connection, a peewee database, a SQLAlchemy connection or session on"
        f" postgresql+psycopg, or Django's connection, not {what}"
    )


@contextmanager
def _in_transaction(connection: psycopg.Connection[Any]) -> Iterator[PostgresSession]:
    """Join the transaction that is open, or that the first statement begins; where none would begin, make one."""
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if not (idle and connection.autocommit):
        yield PostgresSession(connection, _FOREIGN)
        return
    committed: list[Callable[[], None]] = []
    with connection.transaction():
        yield PostgresSession(connection, _FOREIGN, committed.append)
    for call in committed:
        call()


@contextmanager
def _django_session(connection: Any) -> Iterator[PostgresSession]:
    from django.db import transaction

    alias = connection.alias
    with transaction.atomic(using=alias):
        connection.ensure_connection()
        raw = connection.connection
        if not isinstance(raw, psycopg.Connection):
            raise _refusal(f"Django's connection of {type(raw).__module__}")
        yield PostgresSession(raw, _FOREIGN, lambda call: transaction.on_commit(call, using=alias))
