"""Hear of commits on PostgreSQL: a thread and a connection that wait for notifications.

A notification is a hint. When the connection is lost some may have been missed, so the next look at the data's
version raises; the engine then does what it does after any lost connection: it reads everything anew.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from callboard._store.postgres_session import translate
from callboard.errors import StoreError

_CHANNEL = "SELECT 'callboard.' || relnamespace FROM pg_class WHERE oid = 'callboard_inbox'::regclass"
_PATIENCE_S = 5.0
"""How long a stop waits for a thread that may be connecting to a server that does not answer."""

_AGAIN_S = 1.0
"""How long it waits before it connects again."""


class Listener:
    """One engine's ear.

    Attributes:
        migrations: how many notifications told of a migration, or may have been missed.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        is_own: Callable[[int], bool],
        where: str,
        changed: Callable[[], None],
    ) -> None:
        """Listen, and call `changed` when somebody else notifies.

        Args:
            connect: returns a new connection.
            is_own: tells of a server's process whether its commits need not be told.
            where: the database as messages name it.
            changed: called on the listener's thread.
        """
        self._is_own = is_own
        self._connect = connect
        self._where = where
        self._changed = changed
        self._stopped = threading.Event()
        self._stop_here, self._stop_there = socket.socketpair()
        self._count = 0
        self.migrations = 0
        self._told = False
        self._lost: StoreError | None = None
        self._thread = threading.Thread(target=self._work, name="callboard-listener", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and its connection."""
        self._stopped.set()
        self._stop_here.send(b"\0")
        self._thread.join(_PATIENCE_S)
        if not self._thread.is_alive():
            self._stop_here.close()
            self._stop_there.close()

    def heard(self) -> int:
        """Return how many notifications have come.

        Raises:
            StoreError: the connection has been lost since the last call.
        """
        self._told = False  # first: what comes from now on is told anew
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost
        return self._count

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._connect() as connection:
                    self._listen(connection)
            except Exception as error:  # or nobody would listen any more, and nobody would know
                self._lost = translate(error, self._where)
                self._tell()
                self._stopped.wait(_AGAIN_S)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        [(channel,)] = connection.execute(_CHANNEL).fetchall()
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self.migrations += 1  # perhaps
        self._tell()  # of what was committed before it listened
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._stop_there, selectors.EVENT_READ)
            while not self._stopped.is_set():
                selector.select()
                heard = list(connection.notifies(timeout=0))
                self.migrations += sum(notice.payload == "callboard_migration" for notice in heard)
                if any(not self._is_own(notice.pid) for notice in heard):
                    self._tell()

    def _tell(self) -> None:
        """Count what was heard, and tell of it once until somebody asks."""
        self._count += 1
        if not self._told:
            self._told = True
            self._changed()
