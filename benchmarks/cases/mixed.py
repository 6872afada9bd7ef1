"""Enqueue a hundred tasks a second for 60 s while workers run them; latency from the enqueue's call to the start.

The rate is one that nearly all can keep, or the latency would only be the length of a queue. Who cannot shows by
the tasks per second. All of a contestant runs in one process, so enqueuer and workers share its interpreter lock.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench

RATE = 100.0


def measure(bench: Bench) -> None:
    """Measure in turn."""
    tasks = round(bench.size(60, 5) * RATE)
    for database in ("sqlite", "postgres"):
        tables = [
            bench.table(f"mixed load of {RATE:g} tasks a second, {database}", "tasks per second done"),
            bench.table(f"mixed load, latency p50, {database}", "ms"),
            bench.table(f"mixed load, latency p99, {database}", "ms"),
        ]
        contestants = bench.contestants(database)
        for _ in bench.turns(3, 1):
            for who in contestants:
                bench.measure(tables, who, work.mixed, tasks, RATE)
