"""Leave an engine idle: statements on its tables, and milliseconds of CPU.

The limit beside it is a bare process that asks SQLite once a second whether another connection has written.
"""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness import NoOp, Report, fill, fresh_file
from playhouse.pool import PooledSqliteDatabase

from callboard import Engine

POLL_S = 1.0
GROUPS = 100


class Statements(list[str]):
    """The statements of every connection that a database opens."""

    def connect(self, *args: Any, **options: Any) -> sqlite3.Connection:
        """Open a connection that is listened to: what SQLite calls a connection's factory."""
        connection = sqlite3.Connection(*args, **options)
        connection.set_trace_callback(self.append)
        return connection


def idle_engine(path: Path, seconds: float) -> tuple[int, int, float]:
    """Return an idle engine's statements on its tables, its other statements, and its milliseconds of CPU."""
    statements = Statements()
    settings = {"journal_mode": "wal", "synchronous": "full"}
    database: Any = PooledSqliteDatabase(  # type: ignore[no-untyped-call]
        path, pragmas=settings, check_same_thread=False, factory=statements.connect
    )
    with Engine(database, plugins=[NoOp()]) as engine:
        fill(engine, GROUPS, GROUPS)
        engine.wait_idle(10)
        time.sleep(2 * POLL_S)  # what the last commits still cause
        statements.clear()
        cpu_s = time.process_time()
        time.sleep(seconds)
        cpu_s = time.process_time() - cpu_s
        seen = list(statements)
    ours = sum(1 for statement in seen if "callboard_" in statement)
    return ours, len(seen) - ours, cpu_s * 1_000


def idle_poll(path: Path, seconds: float) -> float:
    """Return the milliseconds of CPU that the question alone takes."""
    with closing(sqlite3.connect(path)) as connection:
        end_s = time.monotonic() + seconds
        cpu_s = time.process_time()
        while time.monotonic() < end_s:
            connection.execute("PRAGMA data_version").fetchone()
            time.sleep(POLL_S)
        return (time.process_time() - cpu_s) * 1_000


def main() -> None:
    """Measure engine and limit at the same time, each in a process of its own."""
    report = Report("an idle engine", repeat=1, seconds=60)
    seconds = report.options.seconds
    tables, cpu = f"statements on our tables in {seconds} s", f"CPU in {seconds} s, ms"
    fresh_interpreter = get_context("spawn")
    for _ in range(report.repeat):
        with fresh_file() as path, ProcessPoolExecutor(2, fresh_interpreter) as processes:
            ours = processes.submit(idle_engine, path, seconds)
            limit = processes.submit(idle_poll, path.with_name("raw.db"), seconds)
            on_tables, others, cpu_ms = ours.result()
            report.add(tables, on_tables)
            report.add("other statements (PRAGMA data_version)", others)
            report.add(cpu, cpu_ms)
            report.add("CPU of a bare PRAGMA data_version each second, ms", limit.result())
    report.ratio("engine's CPU / bare", cpu, "CPU of a bare PRAGMA data_version each second, ms")
    report.at_most(tables, 0)
    report.at_most(cpu, 50 * seconds / 60)
    report.print()


if __name__ == "__main__":
    main()
