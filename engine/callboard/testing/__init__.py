"""For tests of hosts and plugins: a clock that is moved by hand, and instants at which to kill a process."""

from __future__ import annotations

from callboard._crash_points import CRASH_POINTS
from callboard._crash_points import ENVIRONMENT as CRASH_ENVIRONMENT
from callboard._crash_points import arm as crash_at
from callboard._crash_points import reach as crash_point
from callboard.testing._clock import FakeClock

__all__ = ["CRASH_ENVIRONMENT", "CRASH_POINTS", "FakeClock", "crash_at", "crash_point"]
