"""The raw limit on PostgreSQL: psycopg making the same changes to rows in the same batches, with no engine.

It flatters itself as the one on SQLite does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import psycopg
from benchmarks.peers.contract import Enqueued, Handler, Peer, Unable, payload
from benchmarks.peers.raw_sqlite import BATCH


class RawPostgres(Peer):
    """Bare psycopg."""

    name = "raw psycopg"
    runs_handlers = False
    database = "postgres"
    distributions = ("psycopg",)
    settings = f"synchronous_commit=on; claims and deletes {BATCH} rows by one statement with SKIP LOCKED"

    _INSERT = "INSERT INTO t (grp, due, state, data) VALUES (%s, 1, 0, %s)"
    _DELETE = (
        "DELETE FROM t WHERE id IN (SELECT id FROM t WHERE state = 0 AND due <= 2 ORDER BY due LIMIT %s"
        " FOR UPDATE SKIP LOCKED)"
    )

    def __init__(self, place: str, handler: Handler) -> None:
        """Make the table."""
        super().__init__(place, handler)
        self._connection = psycopg.connect(place, autocommit=True)
        self._connection.execute(
            "CREATE TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, grp TEXT, due BIGINT,"
            " state INTEGER, data BYTEA)"
        )
        self._connection.execute("CREATE INDEX t_due ON t (state, due)")

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Insert rows, each in its transaction."""
        for number in numbers:
            self._connection.execute(self._INSERT, (str(number % groups), payload(number)))

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Insert all rows with `executemany`, which pipelines them, in one transaction."""
        rows = [(str(number % groups), payload(number)) for number in numbers]
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(self._INSERT, rows)

    def enqueue_threads(self, numbers: Sequence[int], groups: int, threads: int) -> None:
        """Leave that to engines."""
        raise Unable("has one connection")

    def enqueue_paced(self, gaps_s: Sequence[float], *, wait: bool) -> list[Enqueued]:
        """Leave that to engines."""
        raise Unable("runs no handlers")

    def start(self) -> None:
        """Give the planner its statistics, as the server would after a while."""
        self._connection.execute("ANALYZE t")

    def wait(self, count: int) -> None:
        """Write the failed attempts of rows, and delete them, in batches."""
        for _ in range(self.handler.failures):
            for first in range(0, count, BATCH):
                self._connection.execute(
                    "UPDATE t SET due = due + 0 WHERE id > %s AND id <= %s", (first, first + BATCH)
                )
        while self._connection.execute(self._DELETE, (BATCH,)).rowcount:
            pass
