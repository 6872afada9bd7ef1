"""The machine's clocks: time passes when the simulation says so, and the wall clock may be set."""

from __future__ import annotations

from callboard.testing import FakeClock

_START_NS = 1_700_000_000 * 10**9


class VirtualClock(FakeClock):
    """One monotonic clock and one wall clock for all nodes, which are on one machine, moved by the nanosecond.

    Attributes:
        set_at_ns: when the wall clock was last set, on the monotonic one; 0: never.
    """

    def __init__(self) -> None:
        super().__init__(_START_NS)
        self.set_at_ns = 0
        self._move(10**9, 10**9 - self.monotonic_ns())

    @property
    def offset_ns(self) -> int:
        """How far the wall clock is ahead of the monotonic one."""
        return self.now_ns() - self.monotonic_ns()

    def advance_to(self, monotonic_ns: int) -> None:
        """Let time pass until then, unless it has."""
        passed_ns = max(monotonic_ns - self.monotonic_ns(), 0)
        self._move(passed_ns, passed_ns)

    def tick(self) -> int:
        """Let a nanosecond pass, so that no two things happen at the same time; return when it is."""
        self._move(1, 1)
        return self.monotonic_ns()

    def set_by(self, wall_ns: int) -> None:
        """Set the wall clock, forward or back."""
        self._move(wall_ns, 0)
        self.set_at_ns = self.monotonic_ns()
