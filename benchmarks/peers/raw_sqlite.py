"""The raw limit on SQLite: `sqlite3` making the same changes to rows in the same batches, with no engine.

It flatters itself: the table has one index, a row has no identity and no group, nothing is looked for that is
known, and no handler runs. No engine can reach it.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Iterable, Sequence

from benchmarks.peers.contract import Enqueued, Handler, Peer, Unable, payload

BATCH = 100
"""Rows that a transaction deletes. Callboard's are larger, which flatters Callboard."""


class RawSqlite(Peer):
    """Bare `sqlite3`."""

    name = "raw sqlite3"
    runs_handlers = False
    database = "sqlite"
    settings = f"WAL, synchronous=FULL; prepared statements, deletes by id in transactions of {BATCH}"

    _INSERT = "INSERT INTO t (id, grp, due, state, data) VALUES (?, ?, 1, 0, ?)"

    def __init__(self, place: str, handler: Handler) -> None:
        """Make the table."""
        super().__init__(place, handler)
        self._rows: queue.SimpleQueue[int] | None = None
        self._connection = self._connect()
        self._connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, grp TEXT, due INTEGER, state INTEGER, data BLOB)"
        )
        self._connection.execute("CREATE INDEX t_due ON t (state, due)")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.place, isolation_level=None, timeout=60)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _row(self, number: int, groups: int) -> tuple[int, str, bytes]:
        return number + 1, str(number % groups), payload(number)  # SQLite would use ids of deleted rows again

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Insert rows, each in its transaction."""
        for number in numbers:
            self._connection.execute(self._INSERT, self._row(number, groups))
            if self._rows is not None:
                self._rows.put(number)

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Insert all rows with `executemany` in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._INSERT, [self._row(number, groups) for number in numbers])
        self._connection.execute("COMMIT")

    def enqueue_threads(self, numbers: Sequence[int], groups: int, threads: int) -> None:
        """Leave that to engines."""
        raise Unable("one connection is the limit, since SQLite writes one transaction at a time")

    def enqueue_paced(self, gaps_s: Sequence[float], *, wait: bool) -> list[Enqueued]:
        """Insert rows, and hand each to a bare thread that claims it, calls the handler and deletes it."""
        self._rows = queue.SimpleQueue()
        threading.Thread(target=self._claim, args=(self._rows,), daemon=True).start()
        return super().enqueue_paced(gaps_s, wait=wait)

    def _claim(self, rows: queue.SimpleQueue[int]) -> None:
        # As Callboard, it waits for no disk when it claims.
        claiming, ending = self._connect(), self._connect()
        claiming.execute("PRAGMA synchronous=NORMAL")
        for number in iter(rows.get, None):
            claiming.execute("UPDATE t SET state = 1 WHERE id = ?", (number + 1,))
            self.handler(number)
            ending.execute("DELETE FROM t WHERE id = ?", (number + 1,))

    def start(self) -> None:
        """Do it all in `wait`."""

    def wait(self, count: int) -> None:
        """Write the failed attempts of rows, and delete them, in batches; or wait for the bare thread."""
        if self._rows is not None:
            super().wait(count)
            return
        for first in range(1, count + 1, BATCH):
            ids = [(number,) for number in range(first, min(first + BATCH, count + 1))]
            for _ in range(self.handler.failures):
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("UPDATE t SET due = due + 1 WHERE id = ?", ids)
                self._connection.execute("COMMIT")
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("DELETE FROM t WHERE id = ?", ids)
            self._connection.execute("COMMIT")

    def left(self) -> int:
        """Count the rows."""
        return int(self._connection.execute("SELECT count(*) FROM t").fetchone()[0])
