"""The real store on the real file, where one node waits for another's transaction in the simulation's time.

Before and after each commit it asks whether the process is killed there, and has the change looked at.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from playhouse.pool import PooledSqliteDatabase

from callboard._store.session import SqliteSession
from callboard._store.sqlite import SqliteStore
from callboard._task import NewTask
from callboard.errors import DatabaseUnavailableError

if TYPE_CHECKING:
    from tests.simulation.node import SimulatedNode

_BUSY_TIMEOUT_NS = 5 * 10**9


class _Database(PooledSqliteDatabase):
    """A database whose connections can all be closed at once, as the end of a process does."""

    def __init__(self, path: str) -> None:
        self._opened: dict[int, sqlite3.Connection] = {}
        # A killed process leaves the operating system what it wrote, so the disk need not have it; and what would
        # wait for a lock here would wait for ever.
        pragmas = {"synchronous": "OFF", "busy_timeout": 0}
        super().__init__(  # type: ignore[no-untyped-call]
            path, pragmas=pragmas, max_connections=None, check_same_thread=False
        )

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = super()._connect()
        self._opened[id(connection)] = connection
        return connection

    def kill(self) -> None:
        for connection in self._opened.values():
            with suppress(sqlite3.ProgrammingError):  # closed by its thread before
                connection.rollback()  # first: a statement that is left standing keeps a closed one open
            connection.close()


class SimulatedStore(SqliteStore):
    """One process's view of the file."""

    def __init__(self, node: SimulatedNode, path: str) -> None:
        self._node = node
        self.own = _Database(path)
        super().__init__(lambda: self.own, owned=True)

    @contextmanager
    def transaction(self) -> Iterator[SqliteSession]:
        if self.in_transaction():
            with super().transaction() as session:
                yield session
            return
        world = self._node.world
        act = world.stage.current
        if world.writer is not None:
            world.stage.pause(lambda: world.writer is None, _BUSY_TIMEOUT_NS)
            if world.writer is not None:
                raise DatabaseUnavailableError(f"{self.where} is locked by another connection")
        world.writer = act
        try:
            with super().transaction() as session:
                yield session
                world.dither()
                self._node.may_crash()
            world.book.look(self._node)
        finally:
            if world.writer is act:
                world.writer = None
        self._node.may_crash()

    def insert_now(self, new: NewTask) -> int | None:
        with self.transaction() as session:
            return self.tasks.insert(session, new)

    def kill(self) -> None:
        """Close every connection, and the locks on files, as the end of the process does."""
        self.own.kill()
        self.nodes.forget()

    def forget(self) -> Any:
        raise AssertionError("nobody forks here")
