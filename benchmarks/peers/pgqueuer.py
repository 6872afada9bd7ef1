"""pgqueuer on PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
from benchmarks.peers.contract import TaskFailed, payload
from benchmarks.peers.on_loop import LoopPeer
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.queries import Queries

BATCH = 100


class Pgqueuer(LoopPeer):
    """A queue on asyncpg, the fastest of its drivers, with one connection to enqueue and one to work."""

    name = "pgqueuer"
    database = "postgres"
    distributions = ("pgqueuer", "asyncpg")
    settings = f"AsyncpgDriver, LISTEN/NOTIFY (the default); batch_size={BATCH} (default 10, slower)"

    async def open(self) -> None:
        """Make the tables."""
        logging.getLogger("pgqueuer").setLevel(logging.CRITICAL)
        self._queries = Queries(AsyncpgDriver(await asyncpg.connect(self.place)))
        self._watcher = psycopg.connect(self.place, autocommit=True)
        if self._watcher.execute("SELECT to_regclass('pgqueuer')").fetchone() == (None,):
            await self._queries.install()
        self._queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.place)))
        self._queuer.entrypoint("noop")(self._handle)

    async def _handle(self, job: Any) -> None:
        try:
            self.handler(int(job.payload))
        except TaskFailed as error:
            raise RetryRequested() from error

    async def put(self, number: int) -> None:
        """Enqueue a job."""
        await self._queries.enqueue("noop", payload(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        """Enqueue jobs in one statement."""
        await self._queries.enqueue(
            ["noop"] * len(numbers), [payload(number) for number in numbers], [0] * len(numbers)
        )

    def enqueue_later(self, count: int) -> None:
        """Enqueue jobs in batches, to be run in 30 days."""

        async def enqueue() -> None:
            later = [timedelta(days=30)] * min(count, 10_000)
            for _ in range(0, count, 10_000):
                await self._queries.enqueue(
                    ["noop"] * len(later), [payload(0)] * len(later), [0] * len(later), later
                )

        self.run(enqueue())

    async def work(self) -> None:
        """Run the queue manager."""
        await self._queuer.qm.run(batch_size=BATCH)

    def left(self) -> int:
        """Count its jobs that are not for later."""
        row = self._watcher.execute("SELECT count(*) FROM pgqueuer WHERE execute_after < now()").fetchone()
        return int(row[0]) if row else 0
