"""Drain 1,000 tasks over 100 groups beside one group that has 300,000 due rows and a handler that stays."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from harness import NoOp, Report, engine_on, fresh_file, group_name, messages

from callboard import Engine
from callboard.wire import AddMissingInstallations

TASKS = 1_000
GROUPS = 100
BACKLOG = 300_000
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
    batch = list(messages(TASKS, GROUPS, first))
    handler.expect(TASKS)
    engine.enqueue_many(batch)
    began_s = time.perf_counter()
    if not handler.done.wait(120):
        raise SystemExit(f"not all of {TASKS} tasks were done in two minutes")
    return TASKS / (time.perf_counter() - began_s)


def crowd(engine: Engine, path: Path) -> float:
    """Fill the one group; return the seconds until the engine has stepped over its rows."""
    with engine.transaction() as tx:
        for number in range(BACKLOG):
            tx.enqueue(AddMissingInstallations(group_id=b"%b:%d" % (CROWDED, number)))
    began_s = time.perf_counter()
    with closing(sqlite3.connect(path)) as connection:
        due = "SELECT EXISTS (SELECT 1 FROM callboard_task WHERE state = 'pending' AND parked = 0 AND alone = 0)"
        while connection.execute(due).fetchone() == (1,):
            time.sleep(0.01)
    return time.perf_counter() - began_s


def main() -> None:
    """Measure in turn, so that a busy moment of the machine falls on both alike."""
    report = Report(f"backlog: {TASKS:,} due no-op tasks over {GROUPS} groups, tasks per second", repeat=21)
    beside, alone = f"beside {BACKLOG:,} rows of one group", "beside none"
    with ExitStack() as stack:
        engines: dict[str, tuple[Engine, Handler]] = {}
        for name in (beside, alone):
            path, handler = stack.enter_context(fresh_file()), Handler()
            engine = stack.enter_context(engine_on(path, NoOp(handler)))
            stack.callback(handler.let_go.set)  # before the engine's stop, which waits for it
            engines[name] = engine, handler
            if name == beside:
                report.add(f"stepping over the {BACKLOG:,} rows once, seconds", crowd(engine, path))
        for number in range(report.repeat):
            for name, (engine, handler) in engines.items():
                report.add(name, drain_rate(engine, handler, first=number * TASKS))
    report.ratio("beside them / beside none", beside, alone)
    report.at_least("beside them / beside none", 0.9)
    report.print()


if __name__ == "__main__":
    main()
