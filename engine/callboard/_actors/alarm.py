"""Wake the scheduler at one absolute time, so that no flood of wakes can put a deadline off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from callboard._actors.enduring import endure
from callboard._clock import NEVER_NS, Clock


class Alarm:
    """A thread that sleeps until the deadline last set, and rings.

    It also rings every `interval_s`, so that the scheduler looks at the wall clock (a suspended laptop, a
    moved clock) and asks whether another connection has written.
    """

    def __init__(self, clock: Clock, ring: Callable[[], None], interval_s: float) -> None:
        """Ring by calling `ring`, on the alarm's own thread."""
        self._clock = clock
        self._ring = ring
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._deadline_ns = NEVER_NS
        self._soon_s = float("inf")
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="callboard-alarm", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._clock.subscribe(self._look_again)
        self._thread.start()

    def set(self, deadline_ns: int) -> None:
        """Replace the deadline: nanoseconds since the epoch on the engine's clock."""
        with self._changed:
            earlier = deadline_ns < self._deadline_ns
            self._deadline_ns = deadline_ns
            if earlier:
                self._changed.notify()

    def within(self, seconds: float) -> None:
        """Ring once within `seconds` of real time, whatever the deadline."""
        at_s = time.monotonic() + seconds
        with self._changed:
            if at_s < self._soon_s:
                self._soon_s = at_s
                self._changed.notify()

    def time_s(self) -> float:
        """Return the time that `within` counts in: seconds since some moment."""
        return time.monotonic()

    def stop(self) -> None:
        """End the thread without a further ring."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify()

    def _work(self) -> None:
        endure("the alarm", self._sleep)

    def _sleep(self) -> None:
        regular_s = time.monotonic() + self._interval_s
        while True:
            with self._changed:
                while not self._stopped:
                    now_s = time.monotonic()
                    until_deadline_s = self._clock.seconds_until(self._deadline_ns)
                    if now_s >= min(self._soon_s, regular_s) or until_deadline_s == 0.0:
                        break
                    waits = [self._soon_s - now_s, regular_s - now_s]
                    if until_deadline_s is not None:
                        waits.append(until_deadline_s)
                    self._changed.wait(min(waits))
                if self._stopped:
                    return
                if now_s >= self._soon_s:
                    self._soon_s = float("inf")
                if until_deadline_s == 0.0:
                    self._deadline_ns = NEVER_NS
                if now_s >= regular_s:
                    regular_s = now_s + self._interval_s
            self._ring()
