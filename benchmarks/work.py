"""What is measured of every contestant alike. Each function has a process of its own and a new database."""

from __future__ import annotations

import gc
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers import contestant
from benchmarks.peers.contract import PATIENCE_S, Enqueued, Handler, Peer, Unable

WARM_UP = 10
"""Tasks that are enqueued before the clock starts, so that connections are open and statements known."""

COUNTING = 2
"""Transactions between two counts that are the counting itself."""

SETTLING_S = 12.0
"""What the last tasks still cause is over by then, and polls that slow down have done so."""


def opened(key: str, place: str, failures: int = 0) -> Peer:
    """Return a contestant that has opened its database and runs nothing yet."""
    return contestant(key)(place, Handler(failures))


def warm(key: str, place: str) -> Peer:
    """Return a contestant that has enqueued a few tasks already."""
    peer = opened(key, place)
    peer.enqueue_each(range(WARM_UP), 100)
    return peer


def enqueue_each(key: str, place: str, tasks: int) -> tuple[float]:
    """Return tasks per second that are enqueued one by one, with nobody to run them."""
    peer = warm(key, place)
    began_s = time.perf_counter()
    peer.enqueue_each(range(WARM_UP, WARM_UP + tasks), 100)
    return (tasks / (time.perf_counter() - began_s),)


def enqueue_bulk(key: str, place: str, tasks: int) -> tuple[float]:
    """Return tasks per second that are enqueued in bulk, with nobody to run them."""
    peer = warm(key, place)
    began_s = time.perf_counter()
    peer.enqueue_bulk(range(WARM_UP, WARM_UP + tasks), 100)
    return (tasks / (time.perf_counter() - began_s),)


def enqueue_threads(key: str, place: str, tasks: int, threads: int) -> tuple[float]:
    """Return tasks per second that are enqueued one by one by so many threads together."""
    peer = warm(key, place)
    began_s = time.perf_counter()
    peer.enqueue_threads(range(WARM_UP, WARM_UP + tasks), 100, threads)
    return (tasks / (time.perf_counter() - began_s),)


def drain(key: str, place: str, tasks: int, groups: int, failures: int = 0) -> tuple[float]:
    """Return tasks per second from the start of the workers until the last end is committed.

    Each task fails `failures` times first.
    """
    peer = opened(key, place, failures)
    if failures and peer.retries:
        raise Unable(peer.retries)
    fill(peer, tasks, groups)
    began_s = time.perf_counter()
    peer.start()
    peer.wait(tasks)
    return (tasks / (time.perf_counter() - began_s),)


def fill(peer: Peer, tasks: int, groups: int) -> None:
    """Enqueue due tasks, as many at once as the contestant can."""
    try:
        peer.enqueue_bulk(range(tasks), groups)
    except Unable:
        peer.enqueue_each(range(tasks), groups)


def pick_up(key: str, place: str, gaps_s: Sequence[float]) -> tuple[float, float, float, float]:
    """Return p50 and p99 of the ms until a task has begun: since its enqueue was called, and since it returned.

    The workers are idle when it is enqueued.
    """
    peer = opened(key, place)
    peer.start()
    warm_up = 1 + len(gaps_s) // 20
    enqueued = peer.enqueue_paced([1.0, *gaps_s[:warm_up], *gaps_s], wait=True)[warm_up + 1 :]
    started_s = [peer.handler.started_s[warm_up + 1 + number] for number in range(len(gaps_s))]
    called, returned = latencies_ms(enqueued, started_s)
    return (*percentiles(called), *percentiles(returned))


def latencies_ms(enqueued: Sequence[Enqueued], started_s: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the ms from each enqueue's call and from its return to the task's start, which may be earlier: 0."""
    pairs = list(zip(enqueued, started_s, strict=True))
    return (
        [(start_s - times.called_s) * 1_000 for times, start_s in pairs],
        [max(start_s - times.returned_s, 0) * 1_000 for times, start_s in pairs],
    )


def percentiles(samples: Sequence[float]) -> tuple[float, float]:
    """Return the 50th and the 99th percentile."""
    ordered = sorted(samples)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def enqueue_later(key: str, place: str, count: int) -> tuple[()]:
    """Enqueue tasks that are due in days. What a measurement with them needs; itself it is none."""
    opened(key, place).enqueue_later(count)
    return ()


def mixed(key: str, place: str, tasks: int, rate: float) -> tuple[float, float, float]:
    """Enqueue `tasks` tasks at a rate while workers run: tasks per second, and the latency's percentiles, ms.

    The latency is from the call of the enqueue to the handler's start.
    """
    peer = opened(key, place)
    peer.start()
    began_s = time.perf_counter()
    enqueued = peer.enqueue_paced([1 / rate] * tasks, wait=False)
    peer.wait(tasks)
    took_s = time.perf_counter() - began_s
    called, _ = latencies_ms(enqueued, [peer.handler.started_s[number] for number in range(tasks)])
    return (tasks / took_s, *percentiles(called))


def import_and_start(key: str, place: str) -> tuple[float, float]:
    """Return the ms to import the contestant, and from there to make its tables and start its workers."""
    began_s = time.perf_counter()
    kind = contestant(key)
    imported_s = time.perf_counter()
    kind(place, Handler()).start()
    return (imported_s - began_s) * 1_000, (time.perf_counter() - imported_s) * 1_000


def first_pick_up(key: str, place: str) -> tuple[float]:
    """Return the ms from the opening of an existing database, in which one task is due, to the task's start."""
    kind, handler, begun = contestant(key), Handler(), threading.Event()
    handler.expect(0, begun.set)
    began_s = time.perf_counter()
    kind(place, handler).start()
    if not begun.wait(PATIENCE_S):
        raise TimeoutError(f"the task was not picked up within {PATIENCE_S:g} s")
    return ((handler.started_s[0] - began_s) * 1_000,)


def memory_at_rest(key: str, place: str) -> tuple[float]:
    """Return the MB of a process whose contestant has done a hundred tasks and idles, beyond its imports."""
    kind = contestant(key)
    before = resident_bytes()
    peer = kind(place, Handler())
    peer.start()
    peer.enqueue_each(range(100), 100)
    peer.wait(100)
    return ((resident_bytes() - before) / 1e6,)


def resident_bytes() -> int:
    """Return what the system has given this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def idle(key: str, place: str, seconds: float) -> tuple[float, float]:
    """Return what idle workers cost in so many seconds: ms of CPU, and statements.

    On SQLite these are the statements that read or write tables, on PostgreSQL the transactions of the database.
    """
    statements: list[str] = []
    listen_to_sqlite(statements)
    peer = opened(key, place)
    if not peer.runs_handlers:
        raise Unable("has no workers to be idle")
    peer.start()
    peer.enqueue_each(range(100), 100)
    peer.wait(100)
    time.sleep(SETTLING_S)
    with ExitStack() as stack:
        watcher = None if peer.database == "sqlite" else stack.enter_context(transactions(place))
        statements.clear()
        before = watcher() if watcher else 0
        cpu_s = time.process_time()
        time.sleep(seconds)
        cpu_s = time.process_time() - cpu_s
        seen = sum(1 for statement in list(statements) if is_on_tables(statement))
        return cpu_s * 1_000, max(watcher() - before - COUNTING, 0) if watcher else seen


def is_on_tables(statement: str) -> bool:
    """Return whether a statement reads or writes tables."""
    return not statement.upper().startswith(("PRAGMA", "BEGIN", "COMMIT", "ROLLBACK"))


def listen_to_sqlite(statements: list[str]) -> None:
    """Note the statements of every SQLite connection that this process opens from now on."""
    connect = sqlite3.connect

    def listened(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(statements.append)
        return connection

    for module in (sqlite3, sqlite3.dbapi2):
        setattr(module, "connect", listened)  # noqa: B010 - the attribute has another type


@contextmanager
def transactions(place: str) -> Iterator[Callable[[], int]]:
    """Yield what returns how many transactions a database has seen."""
    import psycopg

    with psycopg.connect(place, autocommit=True) as connection:

        def count() -> int:
            connection.execute("SELECT pg_stat_force_next_flush()")
            row = connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
            return int(row[0]) if row else 0

        yield count
