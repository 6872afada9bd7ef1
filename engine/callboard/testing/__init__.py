"""For tests of hosts and plugins; `docs/how-to/test-a-plugin.md` and `test-a-host.md` show how.

* A clock that is moved by hand: `FakeClock`, and `run_due`, which runs what becomes due on the way.
* What is enqueued: `assert_enqueued`, `refute_enqueued`, `all_enqueued`.
* One task from its enqueue to its outcome: `perform`. A whole host whose tasks run at once: `InlineEngine`.
* Instants at which a process is killed: `CRASH_POINTS`, and those of `crash_point`; `run_until_crash` and
  `crash_at` do the killing.

pytest finds the fixtures by itself: `make_engine`, `callboard_clock`, `callboard_database`.
"""

from __future__ import annotations

from callboard._crash_points import CRASH_POINTS
from callboard._crash_points import ENVIRONMENT as CRASH_ENVIRONMENT
from callboard._crash_points import arm as crash_at
from callboard._crash_points import reach as crash_point
from callboard.testing._clock import FakeClock
from callboard.testing._crashing import run_until_crash
from callboard.testing._enqueued import all_enqueued, assert_enqueued, refute_enqueued
from callboard.testing._inline import InlineEngine
from callboard.testing._performing import perform
from callboard.testing._running import run_due

__all__ = [
    "CRASH_ENVIRONMENT",
    "CRASH_POINTS",
    "FakeClock",
    "InlineEngine",
    "all_enqueued",
    "assert_enqueued",
    "crash_at",
    "crash_point",
    "perform",
    "refute_enqueued",
    "run_due",
    "run_until_crash",
]
