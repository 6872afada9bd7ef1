"""The machine's clocks: time passes when the simulation says so, and the wall clock may be set."""

from __future__ import annotations

from collections.abc import Callable

_START_NS = 1_700_000_000 * 10**9


class VirtualClock:
    """One monotonic clock and one wall clock for all nodes, which are on one machine.

    Attributes:
        offset_ns: how far the wall clock is ahead of the monotonic one.
    """

    def __init__(self) -> None:
        self._monotonic_ns = 10**9
        self.offset_ns = _START_NS

    def now_ns(self) -> int:
        return self._monotonic_ns + self.offset_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def seconds_until(self, deadline_ns: int) -> float | None:
        raise AssertionError("nobody sleeps by this clock")

    def subscribe(self, on_change: Callable[[], None]) -> None:
        raise AssertionError("nobody sleeps by this clock")

    def advance_to(self, monotonic_ns: int) -> None:
        self._monotonic_ns = max(self._monotonic_ns, monotonic_ns)

    def tick(self) -> int:
        """Let a nanosecond pass, so that no two things happen at the same time; return when it is."""
        self._monotonic_ns += 1
        return self._monotonic_ns

    def jump(self, by_ns: int) -> None:
        self.offset_ns += by_ns
