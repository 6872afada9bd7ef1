"""procrastinate on PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import psycopg
from benchmarks.peers.contract import payload
from benchmarks.peers.on_loop import LoopPeer
from procrastinate import App, PsycopgConnector, RetryStrategy

CONCURRENCY = 10


class Procrastinate(LoopPeer):
    """An app with the psycopg connector and a worker for coroutines.

    It has a lock for each group of tasks, too, and is given none: that spares it work that Callboard does.
    """

    name = "procrastinate"
    database = "postgres"
    distributions = ("procrastinate", "psycopg")
    settings = f"PsycopgConnector, LISTEN/NOTIFY (the default); concurrency={CONCURRENCY} (default 1, slower)"
    slowness = 5

    async def open(self) -> None:
        """Make the tables."""
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        connector = PsycopgConnector(conninfo=self.place, min_size=4, max_size=20)
        self._app = App(connector=connector)
        retry = RetryStrategy(max_attempts=3, wait=0)
        self._task = self._app.task(name="noop", retry=retry)(self._handle)
        await self._app.open_async()
        self._watcher = psycopg.connect(self.place, autocommit=True)
        if self._watcher.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() == (None,):
            await self._app.schema_manager.apply_schema_async()

    async def _handle(self, data: str) -> None:
        self.handler(int(data))

    async def put(self, number: int) -> None:
        """Defer a job."""
        await self._task.defer_async(data=payload(number).decode())

    async def put_many(self, numbers: Sequence[int]) -> None:
        """Defer jobs in one statement."""
        await self._task.batch_defer_async(*({"data": payload(number).decode()} for number in numbers))

    def enqueue_later(self, count: int) -> None:
        """Defer jobs in batches, to be run in 30 days."""

        async def defer() -> None:
            later = self._task.configure(schedule_in={"days": 30})
            for _ in range(0, count, 10_000):
                await later.batch_defer_async(*[{"data": payload(0).decode()}] * min(count, 10_000))

        self.run(defer())

    async def work(self) -> None:
        """Run the worker."""
        await self._app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)

    def left(self) -> int:
        """Count its live jobs that are not for later."""
        row = self._watcher.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
            " AND coalesce(scheduled_at < now(), true)"
        ).fetchone()
        return int(row[0]) if row else 0
