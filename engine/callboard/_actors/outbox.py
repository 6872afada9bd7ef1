"""Bring outcomes from the actors to the scheduler, in batches worth a transaction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from callboard._run import Run

FLUSH_WITHIN_S = 0.005
"""How long an outcome may wait for others to share its transaction."""


class Outbox:
    """Runs that ended, waiting to be written.

    Each pass of the scheduler says how many are worth a wake; the first of a batch starts the clock, so that
    none waits longer than `FLUSH_WITHIN_S`.
    """

    def __init__(self, wake: Callable[[], None], wake_within: Callable[[float], None]) -> None:
        """Call `wake` when a batch is full, `wake_within` when one begins."""
        self._runs: deque[Run] = deque()
        self._wake = wake
        self._wake_within = wake_within
        self._worth = 1
        self._timed = False

    def put(self, run: Run) -> None:
        """Hand in a run that ended; called on any thread."""
        self._runs.append(run)
        if len(self._runs) >= self._worth:
            self._wake()
        elif not self._timed:
            self._timed = True
            self._wake_within(FLUSH_WITHIN_S)

    def take(self) -> list[Run]:
        """Return the runs that are waiting; called by the scheduler only."""
        self._timed = False  # first: `put` appends before it reads the flag, so no run is left without a wake
        return [self._runs.popleft() for _ in range(len(self._runs))]

    def expect(self, count: int) -> None:
        """Say how many waiting runs are worth a wake."""
        self._worth = max(count, 1)
        if len(self._runs) >= self._worth:
            self._wake()

    def __len__(self) -> int:
        """Return how many runs are waiting."""
        return len(self._runs)
