"""Drain tasks with leases and fencing, and with an engine from which they were taken out; tasks per second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

from benchmarks import work
from benchmarks.apart import apart
from benchmarks.bench import Bench

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


def drain(key: str, place: str, tasks: int, leased: bool) -> float:
    """Return tasks per second, with leases or without."""
    with nullcontext() if leased else unleased():
        return work.drain(key, place, tasks, 100)[0]


def measure(bench: Bench) -> None:
    """Measure in turn, so that a busy moment of the machine falls on both."""
    tasks = bench.size(10_000, 2_000)
    table = bench.table("drain, 100 groups, callboard, sqlite", "tasks per second", "with leases and fencing")
    for _ in bench.turns(15):
        for row, leased in ((table.subject, True), ("without", False)):
            with bench.place("sqlite") as path:
                table.add(row, apart(drain, "callboard.Callboard", path, tasks, leased))
    table.ratio_at_least("without", 0.9)
