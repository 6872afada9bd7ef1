"""DBOS, on SQLite and on PostgreSQL."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, ClassVar, Literal

import psycopg
from benchmarks.peers.contract import Handler, Peer, Unable, payload
from dbos import DBOS, DBOSClient

_LEFT = "SELECT count(*) FROM {}workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"


class DbosOnSqlite(Peer):
    """Workflows on a queue. It journals each workflow's steps, which Callboard does not do.

    It starts with `launch`, since it cannot run without listening to its queues; tasks are enqueued by its client
    before that, and through the process itself afterwards.
    """

    name = "DBOS"
    database: ClassVar[Literal["sqlite", "postgres"]] = "sqlite"
    distributions: ClassVar[tuple[str, ...]] = ("dbos",)
    settings = (
        "one workflow on one queue, polled each second (the default), no limit of concurrency, no admin server"
    )
    retries = "tries steps again inside a workflow, without its queue"
    slowness = 10

    def __init__(self, place: str, handler: Handler) -> None:
        """Make the tables: only a launch does."""
        super().__init__(place, handler)
        logging.disable(logging.WARNING)
        self._url = self._system_database(place)
        self._launched = False
        self._prepare()
        DBOS.launch()
        DBOS.register_queue("bench")
        DBOS.destroy(destroy_registry=False)
        self._client = DBOSClient(system_database_url=self._url)

    def _system_database(self, place: str) -> str:
        return f"sqlite:///{place}"

    def _prepare(self) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self._url,
                "run_admin_server": False,
                "log_level": "CRITICAL",
                "application_version": "1",
            }
        )

        def run(data: str) -> None:
            self.handler(int(data))

        self._workflow: Any = DBOS.workflow(name="noop")(run)

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Enqueue workflows. Groups mean nothing to it."""
        for number in numbers:
            data = payload(number).decode()
            if self._launched:
                DBOS.enqueue_workflow("bench", self._workflow, data)
            else:
                self._client.enqueue({"queue_name": "bench", "workflow_name": "noop"}, data)

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Have none."""
        raise Unable("has no bulk enqueue")

    def start(self) -> None:
        """Launch it."""
        self._client.destroy()
        self._prepare()
        DBOS.launch()
        self._launched = True

    def left(self) -> int:
        """Count its live workflows."""
        with closing(sqlite3.connect(self.place)) as connection:
            return int(connection.execute(_LEFT.format("")).fetchone()[0])


class DbosOnPostgres(DbosOnSqlite):
    """The same on PostgreSQL."""

    database = "postgres"
    distributions = ("dbos", "psycopg")

    def _system_database(self, place: str) -> str:
        return place

    def left(self) -> int:
        """Count its live workflows."""
        with psycopg.connect(self.place) as connection:
            row = connection.execute(_LEFT.format("dbos.")).fetchone()
        return int(row[0]) if row else 0
