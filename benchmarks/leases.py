"""Drain tasks with leases and fencing, and with an engine from which they were taken out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from drain import GROUPS, TASKS, drain_rate
from harness import Report, fresh_file

from callboard._actors.runner import Runner
from callboard._store import sqlite_tasks
from callboard._store.sqlite_tasks import SqliteTasks
from callboard.stores import Held

_HELD = Held(mock.ANY, 1, 0)


def _held(self: SqliteTasks, session: Any, ids: Sequence[int], *, wait: bool) -> dict[int, Held]:
    """Answer without a look at the rows that every run still holds its own."""
    return dict.fromkeys(ids, _HELD)


def _begin(self: Runner, run: Any) -> None:
    """Begin a run without a look at the lease."""
    run.started_ns = self._core.clock.monotonic_ns()


@contextmanager
def unleased() -> Iterator[None]:
    """Take out what each task costs for them: owner, look at others' groups, token, check at the start."""
    statements = {
        name: getattr(sqlite_tasks, name).replace(sqlite_tasks._NOT_ELSEWHERE, "? > 0 AND ? > 0")
        for name in ("_DUE_ARM", "_PARKED")
    }
    statements["_START"] = sqlite_tasks._START.replace("owner = ?", "owner = coalesce(owner, ?)")
    with ExitStack() as patched:
        for name, statement in statements.items():
            patched.enter_context(mock.patch.object(sqlite_tasks, name, statement))
        patched.enter_context(mock.patch.object(SqliteTasks, "hold", _held))
        patched.enter_context(mock.patch.object(Runner, "_refuse", _begin))
        yield


def main() -> None:
    """Measure in turn, so that a busy moment of the machine falls on both."""
    report = Report(f"leases: {TASKS:,} due no-op tasks over {GROUPS} groups, tasks per second", repeat=15)
    whole, bare = "with leases and fencing", "without"
    for _ in range(report.repeat):
        with fresh_file() as path:
            report.add(whole, drain_rate(path, GROUPS))
        with fresh_file() as path, unleased():
            report.add(bare, drain_rate(path, GROUPS))
    report.ratio(f"{whole} / {bare}", whole, bare)
    report.at_least(f"{whole} / {bare}", 0.9)
    report.print()


if __name__ == "__main__":
    main()
