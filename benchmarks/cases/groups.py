"""Drain no-op tasks over 1, 100 and 10,000 groups, and from single and bulk enqueues; Callboard alone.

None of the peers keeps the tasks of a group apart, so there is nobody to compare with but itself.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import work
from benchmarks.apart import apart
from benchmarks.bench import Bench
from benchmarks.noop import engine_on, fill

CALLBOARD = "callboard.Callboard"


def drain_single(path: str, tasks: int) -> float:
    """Return tasks per second of what single enqueues have filled; they share a transaction, to be quick."""
    filler = engine_on(Path(path))
    fill(filler, tasks, 100)
    filler.stop()
    engine = engine_on(Path(path))
    engine.load_plugins()
    began_s = time.perf_counter()
    engine.start()
    if not engine.wait_idle(120):
        raise TimeoutError("not all was done in two minutes")
    return tasks / (time.perf_counter() - began_s)


def measure(bench: Bench) -> None:
    """Measure in turn."""
    tasks = bench.size(10_000, 5_000)
    one, few, many = "1 group", "100 groups", f"{tasks:,} groups"
    table = bench.table("drain, callboard, sqlite", "tasks per second", many)
    order = bench.table("drain, 100 groups, callboard, sqlite", "tasks per second", "enqueued in bulk")
    for _ in bench.turns(9):
        for row, groups in ((one, 1), (few, 100), (many, tasks)):
            with bench.place("sqlite") as path:
                table.add(row, apart(work.drain, CALLBOARD, path, tasks, groups)[0])
        with bench.place("sqlite") as path:
            order.add("enqueued one by one", apart(drain_single, path, tasks))
        order.add("enqueued in bulk", table.figures[few][-1])
    table.ratio_at_least(few, 0.7, 0.9)
