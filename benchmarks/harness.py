"""What the benchmark scripts share: fresh files, repetitions, medians, and the raw limit beside each figure.

Machines are noisy, so no figure stands alone: each script measures Callboard and its limit in turn, in one
run, and prints the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from callboard import Engine, RescheduleAt, TaskKind, hookimpl
from callboard.wire import AddMissingInstallations

BATCH = 100
"""Rows a transaction of the raw limit changes."""


class NoOp:
    """A plugin whose tasks do nothing, so that only the engine's own work is measured."""

    def __init__(self, handler: Callable[..., RescheduleAt | None] = lambda message, ctx: None) -> None:
        """Do `handler` instead of nothing."""
        self._handler = handler

    @hookimpl
    def callboard_task_kinds(self) -> list[TaskKind[Any]]:
        """Bring one kind, whose tasks belong to groups."""
        return [TaskKind(AddMissingInstallations, self._handler, group_id=lambda message: message.group_id[:8])]


@contextmanager
def fresh_file() -> Iterator[Path]:
    """Yield the path of a database that does not exist yet, beside the current folder and not in memory."""
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as folder:
        yield Path(folder) / "bench.db"


def engine_on(path: Path, *plugins: Any) -> Engine:
    """Return an engine with `synchronous=FULL`, the default."""
    return Engine(f"sqlite:///{path}", plugins=list(plugins) or [NoOp()])


def fill(engine: Engine, tasks: int, groups: int, first: int = 0) -> None:
    """Enqueue `tasks` different due tasks, spread over `groups` groups in turn (8 bytes name the group)."""
    ids = (b"%08d:%d" % (number % groups, number) for number in range(first, first + tasks))
    engine.enqueue_many(AddMissingInstallations(group_id=group_id) for group_id in ids)


def put_off(path: Path, to_ns: int) -> None:
    """Move every task of a database to a later time, by plain SQL."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE callboard_task SET dormant = 1, next_attempt_at_ns = ?, expires_at_ns = ?", (to_ns, to_ns + 1)
        )
    connection.close()


def drain_rate(path: Path, tasks: int, groups: int) -> float:
    """Return tasks per second from the start of an engine to the last commit."""
    filler = engine_on(path)
    fill(filler, tasks, groups)
    filler.stop()
    engine = engine_on(path)
    engine.load_plugins()
    began_s = time.perf_counter()
    engine.start()
    drained = engine.wait_idle(120)
    took_s = time.perf_counter() - began_s
    done = engine.health().counters["done"]
    engine.stop()
    if not drained or done != tasks:
        raise SystemExit(f"only {done} of {tasks} tasks were done")
    return tasks / took_s


def raw_delete_rate(path: Path, rows: int) -> float:
    """Return rows per second that bare `sqlite3` deletes in transactions of `BATCH`, `synchronous=FULL`."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, grp TEXT, due INTEGER, state INTEGER, data BLOB)")
    connection.execute("CREATE INDEX t_due ON t (state, due)")
    connection.execute("BEGIN")
    row = ("group", 1, 0, b"x" * 34)
    connection.executemany("INSERT INTO t (grp, due, state, data) VALUES (?, ?, ?, ?)", [row] * rows)
    connection.execute("COMMIT")
    began_s = time.perf_counter()
    for first in range(1, rows + 1, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        ids = [(number,) for number in range(first, min(first + BATCH, rows + 1))]
        connection.executemany("DELETE FROM t WHERE id = ?", ids)
        connection.execute("COMMIT")
    took_s = time.perf_counter() - began_s
    connection.close()
    return rows / took_s


class Report:
    """Collect figures by name, print medians with their spread, and ratios."""

    def __init__(self, title: str) -> None:
        """Read the options that every script has: `--repeat` and `--json`."""
        parser = argparse.ArgumentParser(description=title)
        parser.add_argument("--repeat", type=int, default=5, help="repetitions of each measurement")
        parser.add_argument("--json", action="store_true", help="print the raw figures as JSON")
        options = parser.parse_args()
        self.repeat: int = options.repeat
        self._json: bool = options.json
        self._figures: dict[str, list[float]] = {}
        self._ratios: dict[str, float] = {}
        self._title = title

    def add(self, name: str, value: float) -> None:
        """Add one figure."""
        self._figures.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """Return the median of a figure."""
        return statistics.median(self._figures[name])

    def ratio(self, name: str, of: str, to: str) -> None:
        """Add the ratio of two medians."""
        self._ratios[name] = self.median(of) / self.median(to)

    def print(self) -> None:
        """Print everything."""
        if self._json:
            print(json.dumps({"title": self._title, "figures": self._figures, "ratios": self._ratios}))
            return
        print(self._title)
        for name, values in self._figures.items():
            low, high = min(values), max(values)
            print(f"  {name:<44} median {statistics.median(values):>12,.3f}   ({low:,.3f} to {high:,.3f})")
        for name, value in self._ratios.items():
            print(f"  {name:<44} ratio  {value:>12.3f}")
