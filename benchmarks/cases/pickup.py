"""Pick up one task on idle workers, after random gaps so that nobody's poll is in phase; milliseconds.

Two tables each: from the call of the enqueue to the handler's start, which is what a user waits for, and from its
return, which is 0 for who has begun by then and flatters whose enqueue takes long. The targets are for the
latter, as they were set. persist-queue is a blocking `get` in a bare thread, and no peer that runs handlers.

Callboard's engine wakes itself when it enqueues. On PostgreSQL it is measured once more as if another process
enqueued, so that only NOTIFY tells it.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench
from benchmarks.peers.contract import random_gaps
from benchmarks.tables import CALLBOARD

NOTIFIED = "callboard, told by NOTIFY"


def measure(bench: Bench) -> None:
    """Measure in turn."""
    gaps_s = random_gaps(bench.size(200, 50), 0.01, 0.1)
    for database in ("sqlite", "postgres"):
        tables = [
            bench.table(f"pick-up since the enqueue's {since}, p{percent}, {database}", "ms")
            for since in ("call", "return")
            for percent in (50, 99)
        ]
        contestants = bench.contestants(database)
        notified = contestants[0]._replace(key="callboard.CallboardByNotify", name=NOTIFIED)
        for _ in bench.turns(5, 1):
            for who in (*contestants, notified) if database == "postgres" else contestants:
                bench.measure(tables, who, work.pick_up, gaps_s[: max(len(gaps_s) // who.slowness, 20)])
        p50, p99 = tables[2:]
        peers = [who.name for who in contestants if who.runs_handlers and who.name != CALLBOARD]
        if best := p50.best(peers):
            p50.ratio_at_most(best, 0.5, 0.3)
        if database == "postgres":
            p50.median_at_most(NOTIFIED, 2)
        p99.median_at_most(CALLBOARD, 5, 3)
