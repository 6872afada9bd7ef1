"""A clock that stands still until a test moves it, so that a test of three days takes no time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from callboard._clock import nanoseconds

_START_NS = 1_700_000_000 * 10**9


class FakeClock:
    """Wall and monotonic clock of a test."""

    def __init__(self, now_ns: int = _START_NS) -> None:
        """Stand at `now_ns`, nanoseconds since the epoch; by default some moment in November 2023."""
        self._lock = threading.Lock()
        self._times = (now_ns, 1)  # one object, so that a thread never sees one of them moved without the other
        self._subscribers: list[Callable[[], None]] = []

    def now_ns(self) -> int:
        """Return the wall clock, in nanoseconds since the epoch."""
        return self._times[0]

    def monotonic_ns(self) -> int:
        """Return the monotonic clock, in nanoseconds."""
        return self._times[1]

    def seconds_until(self, deadline_ns: int) -> float | None:
        """Return 0.0 for a deadline that has come; otherwise `None`: only `advance` or `jump` bring it on."""
        return 0.0 if deadline_ns <= self.now_ns() else None

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after each move."""
        self._subscribers.append(on_change)

    def advance(self, duration: timedelta) -> None:
        """Let time pass, on both clocks.

        Raises:
            ValueError: the duration is negative; `jump` is for that.
        """
        if duration < timedelta(0):
            raise ValueError(f"time does not pass backwards ({duration!r}); jump() sets the wall clock")
        self._move(nanoseconds(duration), nanoseconds(duration))

    def advance_to(self, at_ns: int) -> None:
        """Let time pass until `at_ns`, nanoseconds since the epoch; nothing happens if that has passed."""
        duration_ns = at_ns - self.now_ns()
        if duration_ns > 0:
            self._move(duration_ns, duration_ns)

    def jump(self, duration: timedelta) -> None:
        """Set the wall clock forward or back, as an administrator or NTP would; no time passes."""
        self._move(nanoseconds(duration), 0)

    def _move(self, wall_ns: int, monotonic_ns: int) -> None:
        with self._lock:
            before_wall_ns, before_monotonic_ns = self._times
            self._times = (before_wall_ns + wall_ns, before_monotonic_ns + monotonic_ns)
        for on_change in list(self._subscribers):
            on_change()
