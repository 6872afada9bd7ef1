"""A recurring singleton in each of 10,000 groups, always due again: runs per second, and who gets how many.

Of the peers only APScheduler keeps a recurring job for each group that comes and goes at run time; it cannot be
due more than once a second, and has a tenth of the jobs, so that it is as busy as it can be. The raw limit moves
the deadlines of as many rows in batches of 100.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.apart import MeasurementFailed, apart
from benchmarks.bench import Bench
from benchmarks.noop import NoOp, engine_on, fill, number_of
from benchmarks.tables import CALLBOARD

from callboard import RescheduleAt

APSCHEDULER = "APScheduler"
RAW = "raw sqlite3"


def callboard(path: str, groups: int, seconds: float) -> tuple[float, float]:
    """Return runs per second, and the runs of the group that got fewest, as a share of the mean."""
    runs: Counter[int] = Counter()

    def again(message: Any, _ctx: object) -> RescheduleAt:
        runs[number_of(message)] += 1
        return RescheduleAt(timedelta(0))

    engine = engine_on(Path(path), NoOp(again))
    engine.migrate()
    fill(engine, groups, groups)
    with engine:
        return _watched(runs, groups, seconds)


def apscheduler(path: str, groups: int, seconds: float) -> tuple[float, float]:
    """Return the same of jobs with an interval of one second."""
    from benchmarks.peers.apscheduler import ApScheduler
    from benchmarks.peers.contract import Handler

    class Counting(Handler):
        def __call__(self, number: int) -> None:
            runs[number] += 1

    runs: Counter[int] = Counter()
    peer = ApScheduler(path, Counting())
    peer.enqueue_recurring(range(groups))
    peer.start()
    return _watched(runs, groups, seconds)


def _watched(runs: Counter[int], groups: int, seconds: float) -> tuple[float, float]:
    time.sleep(1)
    runs.clear()
    time.sleep(seconds)
    seen = dict(runs)
    total = sum(seen.values())
    fewest = min(seen.get(number, 0) for number in range(groups))
    return total / seconds, fewest * groups / max(total, 1)


def raw(path: str, groups: int, seconds: float) -> tuple[float]:
    """Return how many rows' deadlines bare `sqlite3` moves in a second, in batches of 100."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, due INTEGER)")
        connection.execute("CREATE INDEX t_due ON t (due)")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO t VALUES (?, 0)", ((number,) for number in range(groups)))
        connection.execute("COMMIT")
        began_s, moved, numbers = time.perf_counter(), 0, itertools.cycle(range(groups))
        while time.perf_counter() - began_s < seconds:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "UPDATE t SET due = due + 1 WHERE id = ?", [(next(numbers),) for _ in range(100)]
            )
            connection.execute("COMMIT")
            moved += 100
        return (moved / (time.perf_counter() - began_s),)


def measure(bench: Bench) -> None:
    """Measure in turn."""
    groups, seconds = bench.size(10_000, 2_000), bench.size(10, 3)
    rate = bench.table(f"recurring singletons of {groups:,} groups, sqlite", "runs per second")
    fewest = bench.table("runs of the group that got fewest", "share of the mean")
    peers = {who.name for who in bench.contestants("sqlite")}
    for _ in bench.turns(5, 2):
        with bench.place("sqlite") as path:
            runs, share = apart(callboard, path, groups, seconds)
        rate.add(CALLBOARD, runs)
        fewest.add(CALLBOARD, share)
        if APSCHEDULER in peers and APSCHEDULER not in rate.unable:
            try:
                with bench.place("sqlite") as path:
                    runs, share = apart(apscheduler, path, groups // 10, seconds)
            except MeasurementFailed as error:
                rate.leave_out(APSCHEDULER, str(error).strip().splitlines()[-1])
            else:
                rate.add(APSCHEDULER, runs)
                fewest.add(APSCHEDULER, share)
        with bench.place("sqlite") as path:
            rate.add(RAW, apart(raw, path, groups, seconds)[0])
