"""Start on a database with a million tasks for later and one that is due: ms from opening to the due one's start.

Beside it the same on a database with nothing but the due one. Imports are not counted.
"""

from __future__ import annotations

from benchmarks import work
from benchmarks.bench import Bench, Contestant
from benchmarks.cases.crowd import settle
from benchmarks.tables import Table


def enqueue_first(key: str, place: str) -> tuple[()]:
    """Enqueue the task that is due."""
    work.opened(key, place).enqueue_each((0,), 100)
    return ()


def measure(bench: Bench) -> None:
    """Measure each contestant's two in turn."""
    rows = bench.size(1_000_000, 30_000)
    for database in ("sqlite", "postgres"):
        full = bench.table(f"start-up beside {rows:,} future rows, {database}", "ms")
        empty = bench.table(f"start-up beside none, {database}", "ms")
        for who in bench.contestants(database):
            if who.runs_handlers:
                _start(bench, who, full, empty, rows)


def _start(bench: Bench, who: Contestant, full: Table, empty: Table, rows: int) -> None:
    with bench.place(who.database) as crowded:
        bench.say(f"{who.name}: writing {rows:,} rows")
        if bench.ask(who, [full], work.enqueue_later, crowded, rows) is not None:
            settle(crowded, who.database)
        for _ in bench.turns(5):
            if who.name not in full.unable:
                _once(bench, who, full, crowded)
            with bench.place(who.database) as fresh:
                _once(bench, who, empty, fresh)


def _once(bench: Bench, who: Contestant, table: Table, place: str) -> None:
    bench.ask(who, [table], enqueue_first, place)
    figures = bench.ask(who, [table], work.first_pick_up, place)
    if figures is not None:
        table.add(who.name, figures[0])
