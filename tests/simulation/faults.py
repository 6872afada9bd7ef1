"""What may go wrong in a run, how often, and from which number that is drawn."""

from __future__ import annotations

import random
from collections.abc import Collection

FAULTS = ("crash", "freeze", "heartbeat", "clock", "wake", "fail", "cancel", "stop")
"""A crash at a commit or inside a handler, a frozen process, a late heartbeat, a clock that is set, a wake that is
lost, a handler that fails, a cancel, a stop."""

_S = 10**9


class Faults:
    """One run's faults, each with numbers of its own, so that leaving one out disturbs the others less.

    Attributes:
        left_out: faults that do not happen, to find out which a failure needs.
        over: set when nothing goes wrong any more.
        clock_was_set: whether the wall clock has jumped.
    """

    def __init__(self, seed: int, left_out: Collection[str], *, calm: bool) -> None:
        mood = random.Random(f"{seed} mood")
        # Some runs have many faults of a few kinds, which one mixture for all would never show.
        present = {fault for fault in FAULTS if mood.random() < 0.6} if not calm else set()
        self._rates = {fault: mood.choice((0.3, 1.0, 3.0)) for fault in FAULTS}
        self.present = present - set(left_out)
        self._random = {fault: random.Random(f"{seed} {fault}") for fault in FAULTS}
        self.over = False
        self.clock_was_set = False

    def happens(self, fault: str, chance: float) -> bool:
        """Return whether a fault happens now, where `chance` says how often on average."""
        drawn = self._random[fault].random()
        return fault in self.present and not self.over and drawn < chance * self._rates[fault]

    def amount(self, fault: str, low: float, high: float) -> float:
        """Return how much of it."""
        return self._random[fault].uniform(low, high)

    def late_heartbeat_ns(self) -> int:
        """Return by how much a heartbeat comes too late."""
        return int(self.amount("heartbeat", 0, 6) * _S) if self.happens("heartbeat", 0.15) else 0

    def clock_jump_ns(self) -> int:
        """Return by how much the wall clock is set, mostly 0."""
        if not self.happens("clock", 0.02):
            return 0
        self.clock_was_set = True
        size_s = 10 ** self.amount("clock", -1, 5)
        return int(size_s * _S) * (1 if self.amount("clock", 0, 1) < 0.5 else -1)
