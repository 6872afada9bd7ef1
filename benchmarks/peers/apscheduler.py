"""APScheduler 3 with its SQLAlchemy store on SQLite."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from benchmarks.peers.contract import Handler, Peer, Unable, payload

_current: list[Handler] = []
"""The handler: a stored job is a function that can be imported, so it cannot have the handler with it."""


def run_job(data: bytes) -> None:
    """Run a job."""
    _current[0](int(data))


class ApScheduler(Peer):
    """A scheduler with a persistent store: each task is a job for a date, which it was not made for.

    It takes a job out of the store before it runs it, so a crash loses the job.
    """

    name = "APScheduler"
    database = "sqlite"
    distributions = ("APScheduler", "SQLAlchemy")
    settings = "SQLAlchemyJobStore, SQLite's default journal and synchronous=FULL; 10 worker threads (the default)"
    retries = "has no retries"
    slowness = 10

    def __init__(self, place: str, handler: Handler) -> None:
        """Make the tables."""
        super().__init__(place, handler)
        _current[:] = [handler]
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
        self._scheduler = BackgroundScheduler(
            jobstores={"default": SQLAlchemyJobStore(url=f"sqlite:///{place}")},
            job_defaults={"misfire_grace_time": None},
        )
        self._scheduler.start(paused=True)

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Add jobs that are due. Groups mean nothing to it."""
        for number in numbers:
            self._scheduler.add_job(run_job, "date", run_date=datetime.now(UTC), args=(payload(number),))

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Have none."""
        raise Unable("has no bulk enqueue")

    def enqueue_recurring(self, numbers: Iterable[int]) -> None:
        """Add jobs that recur each second."""
        for number in numbers:
            self._scheduler.add_job(run_job, "interval", seconds=1, args=(payload(number),))

    def start(self) -> None:
        """Let it run."""
        self._scheduler.resume()

    def left(self) -> int:
        """Return how many jobs are stored."""
        return len(self._scheduler.get_jobs())
