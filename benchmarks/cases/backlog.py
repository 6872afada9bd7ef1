"""Drain 1,000 tasks over 100 groups beside one group that has 300,000 due rows and a handler that stays.

It also says how long the engine takes to step over those rows once, which later tasks of other groups wait for.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.apart import apart
from benchmarks.bench import Bench
from benchmarks.noop import NoOp, engine_on, group_name, message, messages
from benchmarks.tables import CALLBOARD

from callboard import Engine

TASKS = 1_000
GROUPS = 100
CROWDED = group_name(GROUPS)


class Handler:
    """Stay in the crowded group until the end; count the tasks of the others."""

    def __init__(self) -> None:
        """Have counted none."""
        self.done = threading.Event()
        self.let_go = threading.Event()
        self._lock = threading.Lock()
        self._left = 0

    def expect(self, tasks: int) -> None:
        """Set `done` after so many tasks."""
        self.done.clear()
        self._left = tasks

    def __call__(self, message: Any, ctx: Any) -> None:
        """Handle a task."""
        if message.group_id.startswith(CROWDED):
            self.let_go.wait()
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.done.set()


def drain_rate(engine: Engine, handler: Handler, first: int) -> float:
    """Return tasks per second from their commit to the start of the last handler."""
    batch = list(messages(range(first, first + TASKS), GROUPS))
    handler.expect(TASKS)
    engine.enqueue_many(batch)
    began_s = time.perf_counter()
    if not handler.done.wait(120):
        raise SystemExit(f"not all of {TASKS} tasks were done in two minutes")
    return TASKS / (time.perf_counter() - began_s)


def crowd(engine: Engine, path: Path, backlog: int) -> float:
    """Fill the one group; return the seconds until the engine has stepped over its rows."""
    with engine.transaction() as tx:
        for number in range(backlog):
            tx.enqueue(message(GROUPS + number * (GROUPS + 1), GROUPS + 1))  # all of them in the crowded group
    began_s = time.perf_counter()
    with closing(sqlite3.connect(path)) as connection:
        due = "SELECT EXISTS (SELECT 1 FROM callboard_task WHERE state = 'pending' AND parked = 0 AND alone = 0)"
        while connection.execute(due).fetchone() == (1,):
            time.sleep(0.01)
    return time.perf_counter() - began_s


def rates(crowded_path: str, path: str, backlog: int, turns: int) -> tuple[float, list[float], list[float]]:
    """Return the seconds to step over the rows once, and the drain rates beside them and beside none, in turn."""
    with ExitStack() as stack:
        engines: list[tuple[Engine, Handler]] = []
        for each in (crowded_path, path):
            handler = Handler()
            engines.append((stack.enter_context(engine_on(Path(each), NoOp(handler))), handler))
            stack.callback(handler.let_go.set)  # before the engine's stop, which waits for it
        stepping_s = crowd(engines[0][0], Path(crowded_path), backlog)
        beside: list[float] = []
        alone: list[float] = []
        for number in range(turns):
            for figures, (engine, handler) in zip((beside, alone), engines, strict=True):
                figures.append(drain_rate(engine, handler, first=number * TASKS))
    return stepping_s, beside, alone


def measure(bench: Bench) -> None:
    """Measure in one process and in turn, so that a busy moment of the machine falls on both alike."""
    backlog = bench.size(300_000, 30_000)
    beside, alone = f"beside {backlog:,} rows of one group", "beside none"
    table = bench.table(
        f"drain of {TASKS:,} tasks, {GROUPS} groups, callboard, sqlite", "tasks per second", beside
    )
    once = bench.table(f"stepping over {backlog:,} rows once", "seconds")
    turns = bench.turn_count(21, 5)
    with bench.place("sqlite") as crowded_path, bench.place("sqlite") as path:
        stepping_s, table.figures[beside], table.figures[alone] = apart(rates, crowded_path, path, backlog, turns)
    once.add(CALLBOARD, stepping_s)
    table.ratio_at_least(alone, 0.9)
