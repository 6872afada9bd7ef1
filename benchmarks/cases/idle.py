"""Idle workers for 60 s: ms of CPU, and statements; all at the same time, each in a process of its own.

On SQLite the statements are those that read or write tables; on PostgreSQL the transactions of the database, the
server's own (autovacuum) among them, which are fewer than the statements. Callboard's `PRAGMA data_version` of
once a second reads no table, so the limit beside it is a bare one. A poll that is slow to notice costs little:
see `pickup` for the other side.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, closing

from benchmarks import work
from benchmarks.apart import MeasurementFailed, begin
from benchmarks.bench import Bench
from benchmarks.peers.contract import Unable
from benchmarks.tables import CALLBOARD

POLL_S = 1.0
BARE = "bare PRAGMA data_version each second"


def idle_poll(path: str, seconds: float) -> tuple[float, float]:
    """Return the ms of CPU that the question alone takes, and no statements."""
    with closing(sqlite3.connect(path)) as connection:
        end_s = time.monotonic() + seconds
        cpu_s = time.process_time()
        while time.monotonic() < end_s:
            connection.execute("PRAGMA data_version").fetchone()
            time.sleep(POLL_S)
        return (time.process_time() - cpu_s) * 1_000, 0


def measure(bench: Bench) -> None:
    """Measure all at once, since nobody has anything to do."""
    seconds = bench.size(60, 10)
    for database, counted in (("sqlite", "statements on tables"), ("postgres", "transactions")):
        cpu = bench.table(f"idle for {seconds} s, {database}", "ms of CPU")
        statements = bench.table(f"idle for {seconds} s, {database}", counted)
        contestants = bench.contestants(database)
        for _ in bench.turns(3, 1):
            with ExitStack() as stack:
                begun = {
                    who.name: begin(work.idle, who.key, stack.enter_context(bench.place(database)), seconds)
                    for who in contestants
                    if who.runs_handlers
                }
                if database == "sqlite":
                    begun[BARE] = begin(idle_poll, stack.enter_context(bench.place(database)), seconds)
                for name, result in begun.items():
                    try:
                        ms, count = result()
                    except (Unable, MeasurementFailed) as error:
                        if name == CALLBOARD:
                            raise
                        cpu.leave_out(name, str(error).strip().splitlines()[-1])
                        continue
                    cpu.add(name, ms)
                    statements.add(name, count)
        if database == "sqlite":
            statements.median_at_most(CALLBOARD, 0, 0)
            cpu.median_at_most(CALLBOARD, 50 * seconds / 60)
