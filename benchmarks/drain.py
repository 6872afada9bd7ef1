"""Drain 10,000 due no-op tasks over 100 groups, over 10,000 groups and beside a million future rows."""

from __future__ import annotations

import time

from harness import Report, drain_rate, engine_on, fill, fresh_file, put_off, raw_delete_rate

TASKS = 10_000
FUTURE = 1_000_000


def main() -> None:
    """Measure in turn."""
    report = Report(f"drain {TASKS:,} due no-op tasks, synchronous=FULL, tasks per second")
    for _ in range(report.repeat):
        with fresh_file() as path:
            report.add("raw sqlite3, deletes in batches of 100", raw_delete_rate(path, TASKS))
        with fresh_file() as path:
            report.add("100 groups", drain_rate(path, TASKS, 100))
        with fresh_file() as path:
            report.add("10,000 groups", drain_rate(path, TASKS, TASKS))
    with fresh_file() as path:
        engine = engine_on(path)
        fill(engine, FUTURE, FUTURE, first=TASKS)
        engine.stop()
        put_off(path, time.time_ns() + 86_400 * 10**9)
        for _ in range(report.repeat):
            report.add("100 groups beside 1,000,000 future rows", drain_rate(path, TASKS, 100))
            with fresh_file() as empty:
                report.add("100 groups, empty table beside it", drain_rate(empty, TASKS, 100))
    report.ratio("100 groups / raw", "100 groups", "raw sqlite3, deletes in batches of 100")
    report.ratio("10,000 groups / 100 groups", "10,000 groups", "100 groups")
    report.ratio(
        "1,000,000 future rows / empty",
        "100 groups beside 1,000,000 future rows",
        "100 groups, empty table beside it",
    )
    report.print()


if __name__ == "__main__":
    main()
