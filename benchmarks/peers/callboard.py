"""Callboard as a contestant, on both databases, with its defaults."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

from benchmarks.noop import NoOp, message, messages, number_of
from benchmarks.peers.contract import PATIENCE_S, Handler, Peer

from callboard import Engine

LATER = timedelta(days=30)
FAR = 10**12
"""Numbers of tasks for later, so that none is one of those that are drained."""

_LATER_ON_POSTGRES = (
    "INSERT INTO callboard_task (kind, identity, data, data_hash, max_attempts, next_attempt_at_ns, expires_at_ns)"
    " SELECT 'add_missing_installations', sha256(number::text::bytea), '\\x00', '\\x00', 20, %s, %s"
    " FROM generate_series(1, %s) AS number"
)


class Callboard(Peer):
    """The engine with its defaults; what it enqueues it runs, over as many groups as the case says."""

    name = "callboard"
    database: ClassVar[Literal["sqlite", "postgres"]] = "sqlite"
    distributions = ("callboard", "peewee", "pykka", "protobuf")
    settings = "defaults: WAL, synchronous=FULL; handlers in the engine's pool of threads"

    def __init__(self, place: str, handler: Handler) -> None:
        """Make the tables, and load the plugin."""
        super().__init__(place, handler)
        self.engine = Engine(self._url(place), plugins=[NoOp(self._handle)])
        self.engine.migrate()
        self.engine.load_plugins()

    def _url(self, place: str) -> str:
        return f"sqlite:///{place}"

    def _handle(self, message: Any, _ctx: object) -> None:
        self.handler(number_of(message))

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Call `enqueue`."""
        for number in numbers:
            self.engine.enqueue(message(number, groups))

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Call `enqueue_many`."""
        self.engine.enqueue_many(list(messages(numbers, groups)))

    def enqueue_later(self, count: int) -> None:
        """Enqueue in transactions of 50,000, with `not_before`."""
        for first in range(0, count, 50_000):
            with self.engine.transaction() as tx:
                for each in messages(range(FAR + first, FAR + min(first + 50_000, count)), 10_000):
                    tx.enqueue(each, not_before=LATER, expires_after=2 * LATER)

    def start(self) -> None:
        """Start the engine."""
        self.engine.start()

    def wait(self, count: int) -> None:
        """Wait until the engine says that it is idle."""
        if not self.engine.wait_idle(PATIENCE_S) or len(self.handler.started_s) < count:
            raise TimeoutError(f"{len(self.handler.started_s)} of {count} tasks were done")


class CallboardOnPostgres(Callboard):
    """The same on PostgreSQL."""

    database = "postgres"
    distributions = ("callboard", "psycopg", "pykka", "protobuf")
    settings = "defaults; handlers in the engine's pool of threads"

    def _url(self, place: str) -> str:
        return place

    def enqueue_later(self, count: int) -> None:
        """Write the rows with plain SQL: in a transaction they would go by the inbox, which is for fewer."""
        import psycopg

        due_ns = time.time_ns() + LATER // timedelta(microseconds=1) * 1_000
        with psycopg.connect(self.place, autocommit=True) as connection:
            connection.execute(_LATER_ON_POSTGRES, (due_ns, due_ns + 1, count))


class CallboardByNotify(CallboardOnPostgres):
    """The same with an engine that only enqueues, as in another process: only NOTIFY tells the one that runs."""

    def __init__(self, place: str, handler: Handler) -> None:
        """Make the tables, and both engines."""
        super().__init__(place, handler)
        self._sender = Engine(place, plugins=[NoOp()], execute=False)

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Call `enqueue` on the engine that runs nothing."""
        for number in numbers:
            self._sender.enqueue(message(number, groups))
