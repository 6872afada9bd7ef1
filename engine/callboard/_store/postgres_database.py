"""Our own PostgreSQL database: how connections are made, kept for the next thread, and ended."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import peewee
import psycopg

_PREPARE_AFTER = 2
"""How often a statement runs before the server is asked to keep its plan, which is half of a short one's time."""


class OwnConnection:
    """A connection of ours, and what we know of it.

    Attributes:
        raw: psycopg's connection, in autocommit mode.
        knows_insert: whether it was told to keep the plan of `DirectInsert`.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """Wrap a connection that is open."""
        self.raw = connection
        self.knows_insert = False
        self._wait = _waiting(connection.fileno())

    def is_at_rest(self) -> bool:
        """Return whether it is open and in no transaction."""
        return self.raw.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def has_ended(self) -> bool:
        """Return whether it is of no more use: to one that is idle a server speaks only when it has ended it.

        Peewee asks the server instead, which costs each enqueue a way there and back.
        """
        return self.raw.closed or self.speaks(0)

    def speaks(self, within_ms: int) -> bool:
        """Return whether there is something to read, or the connection has ended; wait for it for so long."""
        return bool(self._wait(within_ms))


def _waiting(descriptor: int) -> Callable[[int], Any]:
    """Return what waits for so many milliseconds until there is something to read, and tells whether there is.

    The objects of `selectors` cost an enqueue four times what the system's own call does.
    """
    if not hasattr(select, "poll"):  # Windows, where `select` takes any descriptor
        return lambda within_ms: select.select([descriptor], [], [], within_ms / 1000)[0]
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return waiting.poll


class OwnDatabase(peewee.PostgresqlDatabase):
    """Keeps connections for the threads to come, and can be retired.

    Peewee's pool keeps books on connections in use, their ages and who waits, of which nothing is wanted here: to
    take a connection and to give it back was a tenth of an enqueue. A thread may give its own back when nobody
    will ask for one any more.
    """

    is_direct: bool | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        """Keep none yet."""
        super().__init__(*args, **options)
        self._idle: deque[OwnConnection] = deque()
        self._is_retired = False

    def _initialize_connection(self, connection: Any) -> None:
        """Have the server keep plans, unless a pooler hands the session on to somebody who has none of them.

        A pooler makes up the process that it names to its clients.
        """
        self._state.own = OwnConnection(connection)  # type: ignore[attr-defined]
        if self.is_direct is None:
            [(pid,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
            self.is_direct = pid == connection.info.backend_pid
        if self.is_direct:
            connection.prepare_threshold = _PREPARE_AFTER

    def begin(self, isolation_level: str | None = None) -> None:
        """Begin a transaction; unprepared, since the isolation level may bring further statements with it."""
        level = "" if isolation_level is None else f" TRANSACTION ISOLATION LEVEL {isolation_level}"
        raw(self).execute(f"BEGIN{level}", prepare=False)

    def connect(self, reuse_if_open: bool = False) -> bool:
        """Have the calling thread connected, by a kept connection if there is one; return whether it was not."""
        state = self._state  # type: ignore[attr-defined]
        if state.closed and (own := self.take()) is not None:
            state.reset()
            state.set_connection(own.raw)
            state.own = own
            return True
        return bool(super().connect(reuse_if_open))

    def take(self) -> OwnConnection | None:
        """Return a kept connection, for the caller alone until `keep` gets it back; `None` if there is none."""
        try:
            while (own := self._idle.pop()).has_ended():
                own.raw.close()
        except IndexError:
            return None
        return own

    def keep(self, own: OwnConnection) -> None:
        """Keep a connection for others, or close it if it is of no more use."""
        if not own.is_at_rest():
            own.raw.close()
            return
        self._idle.append(own)
        if self._is_retired:
            self.close_idle()

    def close(self) -> bool:
        """Keep the calling thread's connection for others, or close it if it is of no more use."""
        state = self._state  # type: ignore[attr-defined]
        if state.closed or self.in_transaction():
            return bool(super().close())
        self.keep(state.own)
        state.reset()
        return True

    def manual_close(self) -> None:
        """Close the calling thread's connection for good."""
        super().close()

    def close_idle(self) -> None:
        """Close the connections that are kept."""
        with suppress(IndexError):
            while True:
                self._idle.pop().raw.close()

    def retire(self) -> None:
        """Keep nothing any more.

        After a restart of the server none of the connections is good, and each would cost its user an error.
        """
        self._is_retired = True
        self.close_idle()


def raw(database: peewee.Database) -> Any:
    """Return the calling thread's psycopg connection."""
    return database.connection()  # type: ignore[no-untyped-call]
