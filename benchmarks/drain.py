"""Drain 10,000 due no-op tasks over 100 groups, over 10,000 groups and beside a million future rows."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from harness import Report, engine_on, fill, fresh_file, messages

TASKS = 10_000
FUTURE = 1_000_000
GROUPS = 100
DAY_NS = 86_400 * 10**9
RAW_BATCH = 100
"""Rows that a transaction of the raw limit deletes."""


def drain_rate(path: Path, groups: int, *, bulk: bool = False) -> float:
    """Return tasks per second from the start of an engine to its last commit.

    Tasks are enqueued one by one in one transaction, or in `bulk`.
    """
    filler = engine_on(path)
    if bulk:
        filler.enqueue_many(messages(TASKS, groups))
    else:
        fill(filler, TASKS, groups)
    filler.stop()
    engine = engine_on(path)
    engine.load_plugins()
    began_s = time.perf_counter()
    engine.start()
    engine.wait_idle(120)
    took_s = time.perf_counter() - began_s
    done = engine.health().counters["done"]
    engine.stop()
    if done != TASKS:
        raise SystemExit(f"only {done} of {TASKS} tasks were done in two minutes")
    return TASKS / took_s


def raw_rate(path: Path) -> float:
    """Return rows per second that bare `sqlite3` deletes in transactions of `RAW_BATCH`."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, grp TEXT, due INTEGER, state INTEGER, data BLOB)"
        )
        connection.execute("CREATE INDEX t_due ON t (state, due)")
        connection.execute("BEGIN")
        row = ("group", 1, 0, b"x" * 34)
        connection.executemany("INSERT INTO t (grp, due, state, data) VALUES (?, ?, ?, ?)", [row] * TASKS)
        connection.execute("COMMIT")
        began_s = time.perf_counter()
        for first in range(1, TASKS + 1, RAW_BATCH):
            connection.execute("BEGIN IMMEDIATE")
            ids = [(number,) for number in range(first, first + RAW_BATCH)]
            connection.executemany("DELETE FROM t WHERE id = ?", ids)
            connection.execute("COMMIT")
        return TASKS / (time.perf_counter() - began_s)


def add_future_rows(path: Path) -> None:
    """Write rows that are due in a day, none of them with the identity of a task that is drained."""
    engine = engine_on(path)
    engine.enqueue_many(messages(FUTURE, FUTURE, first=TASKS))
    engine.stop()
    due_ns = time.time_ns() + DAY_NS
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE callboard_task SET dormant = 1, next_attempt_at_ns = ?1, expires_at_ns = ?1 + 1", (due_ns,)
        )
    os.sync()  # or the system is still writing these rows while the first drains run


def main() -> None:
    """Measure in turn, so that a busy moment of the machine falls on all alike."""
    report = Report(f"drain: {TASKS:,} due no-op tasks, tasks per second", repeat=9)
    raw = f"raw sqlite3, deletes in batches of {RAW_BATCH}"
    few, many, bulk = f"{GROUPS} groups", f"{TASKS:,} groups", f"{GROUPS} groups, enqueued in bulk"
    future, empty = f"{GROUPS} groups, {FUTURE:,} future rows", f"{GROUPS} groups, no future rows"
    for _ in range(report.repeat):
        with fresh_file() as path:
            report.add(raw, raw_rate(path))
        with fresh_file() as path:
            report.add(few, drain_rate(path, GROUPS))
        with fresh_file() as path:
            report.add(many, drain_rate(path, TASKS))
        with fresh_file() as path:
            report.add(bulk, drain_rate(path, GROUPS, bulk=True))
    with fresh_file() as crowded:
        add_future_rows(crowded)
        for _ in range(report.repeat):
            report.add(future, drain_rate(crowded, GROUPS))
            with fresh_file() as path:
                report.add(empty, drain_rate(path, GROUPS))
    report.ratio(f"{few} / raw", few, raw)
    report.ratio(f"{many} / {few}", many, few)
    report.ratio(f"{GROUPS} groups, bulk / one by one", bulk, few)
    report.ratio(f"{FUTURE:,} future rows / none", future, empty)
    report.at_least(f"{few} / raw", 0.16)
    report.at_least(f"{many} / {few}", 0.7)
    report.at_least(f"{FUTURE:,} future rows / none", 0.9)
    report.print()


if __name__ == "__main__":
    main()
