"""persist-queue on SQLite."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.peers.contract import Handler, Peer, TaskFailed, Unable, payload
from persistqueue import SQLiteAckQueue


class PersistQueue(Peer):
    """A queue with acknowledgements, and the loop that its users write, in one thread.

    It runs no handlers, knows no later and no retries but `nack`: what it shows is what a queue alone costs.
    """

    name = "persist-queue"
    database = "sqlite"
    distributions = ("persist-queue",)
    settings = "SQLiteAckQueue(multithreading=True), WAL, SQLite's synchronous=FULL; one thread gets, runs, acks"
    runs_handlers = False
    slowness = 5

    def __init__(self, place: str, handler: Handler) -> None:
        """Make the tables; it wants a folder."""
        super().__init__(place, handler)
        self._queue = SQLiteAckQueue(str(Path(place).parent / "queue"), multithreading=True)

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Put. Groups mean nothing to it."""
        for number in numbers:
            self._queue.put(payload(number))

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Have none."""
        raise Unable("has no bulk enqueue")

    def start(self) -> None:
        """Start the loop."""
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            item = self._queue.get(raw=True)
            try:
                self.handler(int(item["data"]))
            except TaskFailed:
                self._queue.nack(item)
            else:
                self._queue.ack(item)

    def left(self) -> int:
        """Return what is not acknowledged."""
        return int(self._queue.ready_count() + self._queue.unack_count())
