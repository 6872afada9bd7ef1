"""Pick up a task that is enqueued on an idle engine: milliseconds from its commit to the handler's start.

The limit beside it is what no engine can do without: a bare thread that waits on a queue and claims the row
in a transaction of bare `sqlite3`, which like the engine's claim waits for no disk.
"""

from __future__ import annotations

import queue
import random
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import peewee
from harness import NoOp, Report, fresh_file, group_name

from callboard import Engine
from callboard.wire import AddMissingInstallations

GAP_S = (0.002, 0.03)
"""Shortest and longest time between two tasks: long enough for the engine to be idle again."""

SETTINGS = {"journal_mode": "wal", "synchronous": "full"}


class PickUp:
    """One task after another, each with a pause before it."""

    def __init__(self, samples: int) -> None:
        """Take `samples` samples, with the same pauses in each run."""
        random.seed(1)
        self._pauses_s = [random.uniform(*GAP_S) for _ in range(samples)]
        self._committed_s = self._started_s = 0.0
        self._begun = threading.Event()

    def begin(self, *_message_and_context: object) -> None:
        """Note that the handler was called."""
        self._started_s = time.perf_counter()
        self._begun.set()

    def engine(self, path: Path) -> list[float]:
        """Return the engine's times, in milliseconds.

        The database is a host's own, since only a host's commit hook can tell the instant of the commit.
        """
        database = peewee.SqliteDatabase(str(path), pragmas=SETTINGS)
        times_ms = []
        with Engine(database, plugins=[NoOp(self.begin)]) as engine:
            for number, pause_s in enumerate(self._pauses_s):
                engine.wait_idle(10)
                time.sleep(pause_s)
                with database.atomic("IMMEDIATE"):
                    database.after_commit(self._note_commit)  # called before the engine's own, which wakes it
                    engine.enqueue(AddMissingInstallations(group_id=group_name(number)))
                times_ms.append(self._wait())
        database.close()
        return times_ms

    def raw(self, path: Path) -> list[float]:
        """Return the limit's times, in milliseconds."""
        rows: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        times_ms = []
        with closing(_connect(path)) as connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, state TEXT)")
            claimer = threading.Thread(target=self._claim, args=(path, rows))
            claimer.start()
            for number, pause_s in enumerate(self._pauses_s):
                time.sleep(pause_s)
                connection.execute("INSERT INTO t VALUES (?, 'pending')", (number,))
                self._note_commit()
                rows.put(number)
                times_ms.append(self._wait())
            rows.put(None)
            claimer.join()
        return times_ms

    def _claim(self, path: Path, rows: queue.SimpleQueue[int | None]) -> None:
        with closing(_connect(path)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            while (number := rows.get()) is not None:
                connection.execute("UPDATE t SET state = 'running' WHERE id = ?", (number,))
                self.begin()

    def _note_commit(self) -> None:
        self._committed_s = time.perf_counter()

    def _wait(self) -> float:
        if not self._begun.wait(10):
            raise SystemExit("a task was not picked up within 10 s")
        self._begun.clear()
        return (self._started_s - self._committed_s) * 1_000


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for name, value in SETTINGS.items():
        connection.execute(f"PRAGMA {name}={value}")
    return connection


def main() -> None:
    """Measure in turn."""
    report = Report("pick-up on an idle engine: from commit to handler start, ms", samples=200)
    raw, engine = "bare thread and bare claim", "engine"
    for _ in range(report.repeat):
        pick_up = PickUp(report.options.samples)
        with fresh_file() as path:
            report.add_percentiles(raw, pick_up.raw(path))
        with fresh_file() as path:
            report.add_percentiles(engine, pick_up.engine(path))
    report.ratio("engine / bare, p50", f"{engine}, p50", f"{raw}, p50")
    report.at_most(f"{engine}, p50", 1.0)
    report.print()


if __name__ == "__main__":
    main()
