"""The cases, in the order in which the suite runs them: each a module with a `measure` and a docstring."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.bench import Bench

NAMES = (
    "enqueue",
    "drain",
    "groups",
    "mixed",
    "pickup",
    "idle",
    "crowd",
    "backlog",
    "retries",
    "recurring",
    "startup",
    "memory",
    "imports",
    "eviction",
    "leases",
)


def case(name: str) -> Callable[[Bench], None]:
    """Return a case's `measure`."""
    measure: Callable[[Bench], None] = importlib.import_module(f"benchmarks.cases.{name}").measure
    return measure
