"""Chancy on PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from benchmarks.peers.contract import Handler, payload
from benchmarks.peers.on_loop import LoopPeer
from chancy import Chancy as App
from chancy import Queue, Worker, job
from chancy.plugins.retry import RetryPlugin

CONCURRENCY = 100

_current: list[Handler] = []
"""The handler: a job is a function that can be imported, so it cannot have the handler with it."""


@job()  # type: ignore[untyped-decorator, unused-ignore]
async def run_job(*, data: str) -> None:
    """Run a job."""
    _current[0](int(data))


class Chancy(LoopPeer):
    """A worker with its executor for coroutines and its default plugins."""

    name = "Chancy"
    database = "postgres"
    distributions = ("chancy", "psycopg")
    settings = (
        f"AsyncExecutor, concurrency={CONCURRENCY}, eager_polling (the defaults are processes, their number, and"
        " none, all slower); notifications (the default)"
    )
    slowness = 5

    async def open(self) -> None:
        """Make the tables and declare the queue."""
        logging.disable(logging.WARNING)
        _current[:] = [self.handler]
        self._app = App(self.place, plugins=[RetryPlugin()])
        await self._app.__aenter__()
        await self._app.migrate()
        await self._app.declare(
            Queue("default", concurrency=CONCURRENCY, executor=App.Executor.Async, eager_polling=True)
        )
        self._watcher = psycopg.connect(self.place, autocommit=True)

    def _job(self, number: int) -> Any:
        new = run_job.job.with_kwargs(data=payload(number).decode())
        if not self.handler.failures:
            return new
        at_once = {"backoff": 0, "backoff_jitter": [0, 0]}
        return new.with_max_attempts(1 + self.handler.failures).with_meta({"retry_settings": at_once})

    async def put(self, number: int) -> None:
        """Push a job."""
        await self._app.push(self._job(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        """Push jobs in one transaction."""
        async for _ in self._app.push_many([self._job(number) for number in numbers]):
            pass

    def enqueue_later(self, count: int) -> None:
        """Push jobs in batches, to be run in 30 days."""

        async def push() -> None:
            later = self._job(0).with_scheduled_at(datetime.now(UTC) + timedelta(days=30))
            for _ in range(0, count, 10_000):
                async for _ in self._app.push_many([later] * min(count, 10_000), batch_size=10_000):
                    pass

        self.run(push())

    async def work(self) -> None:
        """Run the worker until it is cancelled."""
        async with Worker(self._app, register_signal_handlers=False) as worker:
            await worker.wait_for_shutdown()

    def left(self) -> int:
        """Count its live jobs that are not for later."""
        row = self._watcher.execute(
            "SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')"
            " AND coalesce(scheduled_at <= now(), true)"
        ).fetchone()
        return int(row[0]) if row else 0
