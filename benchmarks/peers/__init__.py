"""The contestants: Callboard, its peers and the raw limits, each a module of its own that imports its package."""

from __future__ import annotations

import importlib

from benchmarks.peers.contract import Peer

_CLASSES = {
    "sqlite": (
        "callboard.Callboard",
        "huey.Huey",
        "persist_queue.PersistQueue",
        "apscheduler.ApScheduler",
        "dbos.DbosOnSqlite",
        "raw_sqlite.RawSqlite",
    ),
    "postgres": (
        "callboard.CallboardOnPostgres",
        "pgqueuer.Pgqueuer",
        "procrastinate.Procrastinate",
        "chancy.Chancy",
        "dbos.DbosOnPostgres",
        "raw_postgres.RawPostgres",
    ),
}


def contestants(database: str) -> tuple[str, ...]:
    """Return the names of all contestants on a kind of database, as `contestant` takes them."""
    return _CLASSES[database]


def contestant(name: str) -> type[Peer]:
    """Import a contestant.

    Raises:
        ModuleNotFoundError: its package is not installed.
    """
    module, class_name = name.split(".")
    found: type[Peer] = getattr(importlib.import_module(f"benchmarks.peers.{module}"), class_name)
    return found
