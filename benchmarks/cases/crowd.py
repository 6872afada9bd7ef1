"""Drain over 100 groups beside a million rows that are not to be run now, and beside none.

The rows are tasks that are due in 30 days, for every contestant that can enqueue so many; for Callboard also tasks
of a kind that it does not know, and on PostgreSQL a transaction that somebody holds open. huey's tasks for later
are written through its storage, and Callboard's on PostgreSQL with plain SQL.

An engine has deferred the unknown rows before the clock starts. That flatters Callboard: what it costs to defer
them once is not in the figure, nor is what it costs to defer them again each hour. On PostgreSQL all tables,
Callboard's too, are vacuumed and analyzed before the clock starts, and on SQLite the log is written back. That
flatters Callboard and its peers alike.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import work
from benchmarks.apart import apart
from benchmarks.bench import Bench, Contestant
from benchmarks.noop import NoOp, engine_on
from benchmarks.tables import CALLBOARD

from callboard import Engine

_UNKNOWN_SQLITE = (
    "WITH RECURSIVE numbers (number) AS (VALUES (1) UNION ALL SELECT number + 1 FROM numbers WHERE number < ?)"
    " INSERT INTO callboard_task (kind, identity, data, data_hash)"
    " SELECT 'acme.Unknown', randomblob(32), x'00', x'00' FROM numbers"
)
_UNKNOWN_POSTGRES = (
    "INSERT INTO callboard_task (kind, identity, data, data_hash)"
    " SELECT 'acme.Unknown', sha256(number::text::bytea), '\\x00', '\\x00' FROM generate_series(1, %s) AS number"
)
_NOT_DEFERRED = "SELECT EXISTS (SELECT 1 FROM callboard_task WHERE state = 'pending')"


def unknown_rows(key: str, place: str, count: int) -> tuple[()]:
    """Write due rows of an unknown kind, and have an engine defer them all."""
    if key == "callboard.Callboard":
        starting = engine_on(Path(place))
        connection: Any = sqlite3.connect(place, isolation_level=None, timeout=60)
        statement = _UNKNOWN_SQLITE
    else:
        import psycopg

        starting = Engine(place, plugins=[NoOp()])
        connection = psycopg.connect(place, autocommit=True)
        statement = _UNKNOWN_POSTGRES
    starting.migrate()
    connection.execute(statement, (count,))
    with starting:
        while connection.execute(_NOT_DEFERRED).fetchone()[0]:
            time.sleep(0.1)
    return ()


def settle(place: str, database: str) -> None:
    """Have the database and the system end what such a fill still causes."""
    if database == "postgres":
        import psycopg

        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
    else:
        with closing(sqlite3.connect(place)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.sync()


def measure(bench: Bench) -> None:
    """Measure each contestant's two in turn."""
    rows = bench.size(1_000_000, 30_000)
    for database in ("sqlite", "postgres"):
        for who in bench.contestants(database):
            if who.runs_handlers:
                _beside(bench, who, f"{rows:,} future rows", rows, work.enqueue_later)
            if who.name == CALLBOARD:
                _beside(bench, who, f"{rows:,} unknown rows", rows, unknown_rows)
    _beside_transaction(bench)


def _beside(
    bench: Bench, who: Contestant, what: str, rows: int, fill: Callable[[str, str, int], tuple[()]]
) -> None:
    table = bench.table(f"drain, {who.name}, {who.database}", "tasks per second", f"beside {what}")
    tasks = bench.size(10_000, 2_000) // who.slowness
    with bench.place(who.database) as crowded:
        bench.say(f"{who.name}: writing {what}")
        if bench.ask(who, [table], fill, crowded, rows) is None:
            return
        settle(crowded, who.database)
        for _ in bench.turns(7 if who.name == CALLBOARD else 3):
            beside = bench.ask(who, [table], work.drain, crowded, tasks, 100)
            with bench.place(who.database) as empty:
                alone = bench.ask(who, [table], work.drain, empty, tasks, 100)
            if beside is None or alone is None:
                return
            table.add(table.subject, beside[0])
            table.add("beside none", alone[0])
    if who.name == CALLBOARD:
        table.ratio_at_least("beside none", 0.95, 1)


def _beside_transaction(bench: Bench) -> None:
    import psycopg

    who = bench.contestants("postgres")[0]
    table = bench.table("drain, callboard, postgres", "tasks per second", "beside a transaction held open")
    tasks = bench.size(10_000, 2_000)
    for _ in bench.turns(7):
        with bench.place("postgres") as url, psycopg.connect(url) as connection:
            connection.execute("SELECT pg_current_xact_id()")
            table.add(table.subject, apart(work.drain, who.key, url, tasks, 100)[0])
        with bench.place("postgres") as url:
            table.add("beside none", apart(work.drain, who.key, url, tasks, 100)[0])
    table.ratio_at_least("beside none", 0.85)
