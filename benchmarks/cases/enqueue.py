"""Enqueue one by one, in bulk and from 8 threads, with nobody to run what is enqueued; tasks per second.

Flatters the raw limit, which looks for no earlier task of the same identity. Flatters huey, persist-queue,
pgqueuer and procrastinate in the same way: only Callboard and DBOS enqueue nothing twice. In bulk Callboard, the
limits and procrastinate write all or a thousand in one transaction, so that the disk hardly counts.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench
from benchmarks.tables import CALLBOARD

THREADS = 8


def measure(bench: Bench) -> None:
    """Measure in turn."""
    for database, raw in (("sqlite", "raw sqlite3"), ("postgres", "raw psycopg")):
        single, many = bench.size(2_000, 500), bench.size(20_000, 5_000)
        each = bench.table(f"enqueue one by one, {database}", "tasks per second")
        bulk = bench.table(f"enqueue in bulk, {database}", "tasks per second")
        threads = bench.table(f"enqueue from {THREADS} threads, {database}", "tasks per second")
        gain = bench.table(
            f"callboard's enqueue from {THREADS} threads, {database}", "tasks per second", f"{THREADS} threads"
        )
        contestants = bench.contestants(database)
        for _ in bench.turns(7):
            for who in contestants:
                bench.measure([each], who, work.enqueue_each, single // min(who.slowness, 4))
                bench.measure([bulk], who, work.enqueue_bulk, many)
                bench.measure([threads], who, work.enqueue_threads, single // min(who.slowness, 4), THREADS)
        gain.figures["1 thread"] = each.figures[each.subject]
        gain.figures[gain.subject] = threads.figures[threads.subject]
        if database == "sqlite":
            each.ratio_at_least(raw, 0.85, 0.95)
            each.ratio_at_least("huey", 1.2)
            bulk.ratio_at_least(raw, 0.4, 0.6)
            gain.ratio_at_least("1 thread", 1.4, 2)
        else:
            each.ratio_at_least(raw, 0.75)
            bulk.median_at_least(CALLBOARD, 30_000)
