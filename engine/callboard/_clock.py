"""The engine's one source of time, injected so that tests and simulations move it by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from callboard.errors import ConfigurationError

NEVER_NS = 2**63 - 1
"""The largest SQL integer: a deadline that never comes (the value that libxmtp's task table uses)."""


_NO_TIME = (
    "a time is a timedelta from now, such as timedelta(seconds=60), or an int of nanoseconds since the epoch, such"
    " as time.time_ns(), not {}"
)

_EARLIEST_NS = 10**15
"""Twelve days after the epoch in nanoseconds: what is less was meant in seconds or milliseconds."""


class Clock(Protocol):
    """Tell the time, and how long a thread may sleep until a given one."""

    def now_ns(self) -> int:
        """Return the wall clock, in nanoseconds since the epoch, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Return a clock that never goes back, in nanoseconds since some moment."""
        ...

    def seconds_until(self, deadline_ns: int) -> float | None:
        """Return how long to sleep until `deadline_ns`; `None` means until `subscribe` calls back."""
        ...

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called whenever the clock is moved by hand."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        """Return `time.time_ns()`."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return `time.monotonic_ns()`."""
        return time.monotonic_ns()

    def seconds_until(self, deadline_ns: int) -> float | None:
        """Return the seconds from now to `deadline_ns`, 0.0 when it has passed."""
        return max(0.0, (deadline_ns - time.time_ns()) / 1e9)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Ignore `on_change`: nobody moves this clock by hand."""


def nanoseconds(duration: timedelta) -> int:
    """Return a timedelta in whole nanoseconds, without passing through a float."""
    return ((duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds) * 1_000


def check_when(when: timedelta | int) -> None:
    """Refuse what a caller cannot have meant as a time: seconds or milliseconds since the epoch, or no time.

    Raises:
        ConfigurationError: it is neither a timedelta nor a plausible number of nanoseconds.
    """
    if not isinstance(when, timedelta) and 0 < deadline_ns(when, 0) < _EARLIEST_NS:
        raise ConfigurationError(_NO_TIME.format(when))


def deadline_ns(when: timedelta | int, now_ns: int) -> int:
    """Return the absolute time meant by `when`: a timedelta from now, or nanoseconds since the epoch.

    The result lies in `[0, NEVER_NS]`, so that it always fits the column.

    Raises:
        ConfigurationError: `when` is neither.
    """
    if isinstance(when, timedelta):
        absolute = now_ns + nanoseconds(when)
    elif isinstance(when, int) and not isinstance(when, bool):
        absolute = when
    else:
        raise ConfigurationError(_NO_TIME.format(repr(when)))
    return min(max(absolute, 0), NEVER_NS)
