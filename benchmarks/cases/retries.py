"""A retry storm: each of the tasks fails three times and is due again at once; tasks done per second.

The raw limit writes three failed attempts of each row in batches before it deletes them. Callboard keeps each
error's text with the row, and its kind is told not to pause, as it would by default once 20 groups have failed.
huey, pgqueuer and procrastinate log the error. persist-queue's loop calls `nack`.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench

FAILURES = 3


def measure(bench: Bench) -> None:
    """Measure in turn."""
    tasks = bench.size(5_000, 500)
    for database in ("sqlite", "postgres"):
        table = bench.table(f"retry storm, each fails {FAILURES} times, {database}", "tasks per second")
        contestants = bench.contestants(database)
        for _ in bench.turns(5, 2):
            for who in contestants:
                bench.measure([table], who, work.drain, tasks // who.slowness, 100, FAILURES)
