"""huey on SQLite."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from benchmarks.peers.contract import Handler, Peer, Unable, payload
from huey import SqliteHuey


class Huey(Peer):
    """A queue in an SQLite file and a consumer with one worker thread, in this process.

    One worker is its default, and faster than four: they would wait for each other's transactions. It takes a
    task out of the table before it runs it, so a crash loses the task: one transaction for each where Callboard
    needs a claim and an end.
    """

    name = "huey"
    database = "sqlite"
    distributions = ("huey",)
    settings = "SqliteHuey(fsync=True); 1 worker thread (the default), no periodic tasks; results are not kept"

    def __init__(self, place: str, handler: Handler) -> None:
        """Make the tables."""
        super().__init__(place, handler)
        logging.getLogger("huey").setLevel(logging.CRITICAL)
        self._huey = SqliteHuey("bench", filename=place, fsync=True)
        self._task = self._huey.task(retries=3, retry_delay=0)(self._handle)

    def _handle(self, data: bytes) -> None:
        self.handler(int(data))

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Call the task. Groups mean nothing to it."""
        for number in numbers:
            self._task(payload(number))

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Have none."""
        raise Unable("has no bulk enqueue")

    def enqueue_later(self, count: int) -> None:
        """Schedule tasks through huey's storage in one transaction: one by one it takes minutes."""
        due = datetime.now() + timedelta(days=30)
        data = self._huey.serialize_task(self._task.s(payload(0)))
        with self._huey.storage.db(commit=True) as cursor:
            cursor.executemany(
                "INSERT INTO schedule (queue, data, timestamp) VALUES (?, ?, ?)",
                ((self._huey.storage.name, data, due.timestamp() + number) for number in range(count)),
            )

    def start(self) -> None:
        """Start the consumer's threads."""
        self._consumer = self._huey.create_consumer(periodic=False)
        self._consumer.start()

    def left(self) -> int:
        """Ask huey how many tasks wait."""
        return int(self._huey.pending_count())
