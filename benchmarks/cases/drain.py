"""Drain 10,000 due no-op tasks over 100 groups: tasks per second from the workers' start to the last commit.

Only Callboard keeps the tasks of a group from overlapping. huey forgets a task before it runs it, so it has one
transaction for each where others have two, and loses what a crash interrupts; persist-queue has no worker, so it
is given a loop of three lines. DBOS and APScheduler are made for fewer and longer tasks, and get a tenth of them;
the start of DBOS counts, which is about a tenth of its time. Callboard's batches are larger than the limits',
which flatters Callboard.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench


def measure(bench: Bench) -> None:
    """Measure in turn."""
    tasks = bench.size(10_000, 2_000)
    for database, raw in (("sqlite", "raw sqlite3"), ("postgres", "raw psycopg")):
        table = bench.table(f"drain, 100 groups, {database}", "tasks per second")
        contestants = bench.contestants(database)
        for _ in bench.turns(7):
            for who in contestants:
                bench.measure([table], who, work.drain, tasks // who.slowness, 100)
        if database == "sqlite":
            table.ratio_at_least("huey", 10, 14)
            table.ratio_at_least(raw, 0.18, 0.3)
        else:
            table.ratio_at_least("pgqueuer", 3, 5)
            table.ratio_at_least("procrastinate", 50)
            table.ratio_at_least(raw, 0.21)
