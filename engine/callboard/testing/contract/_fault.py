"""What is done to a handler: one fault, at one place, once."""

from __future__ import annotations

from typing import NamedTuple

from callboard.errors import ServiceUnavailable

LOST_OUTCOME = "outcome-lost"
KILLED = "killed"
AWAY, RAISES, LOST_ANSWER = "away", "raises", "answer-lost"
CANCELLED = "cancelled"
CLOCK_BACK, CLOCK_FORWARD = "clock-back", "clock-forward"


class Fault(NamedTuple):
    """One fault, written as `what`, `what:nth` or `killed:point:nth`.

    Attributes:
        what: which one; empty for none.
        point: the crash point's name, of `killed`.
        nth: at which time: of reaching the point, of calling a service, of reading the clock. 0 is the handler's
            beginning.
    """

    what: str = ""
    point: str = ""
    nth: int = 0

    def __str__(self) -> str:
        """Return what `--callboard-contract-fault` takes."""
        if self.what == LOST_OUTCOME:
            return self.what
        return ":".join((self.what, *([self.point] if self.point else []), str(self.nth)))

    def said(self) -> str:
        """Return it in words."""
        place = f"at call {self.nth} of a service" if self.nth else "as the handler began"
        words = {
            "": "nothing was done to it",
            LOST_OUTCOME: "its outcome was lost after the handler had returned, and it ran again",
            KILLED: f"its process was killed at {self.point} (time {self.nth}), and it ran again in another",
            AWAY: f"call {self.nth} of a service raised ServiceUnavailable before it did anything",
            RAISES: f"call {self.nth} of a service raised RuntimeError before it did anything",
            LOST_ANSWER: f"call {self.nth} of a service did its work and then raised ServiceUnavailable",
            CANCELLED: f"the task was cancelled {place}, and retried when it was dead",
        }
        reading = f"as the clock was read for time {self.nth}" if self.nth else "as the handler began"
        words[CLOCK_BACK] = f"the clock was set back by an hour {reading}"
        words[CLOCK_FORWARD] = f"the clock was set forward {reading}"
        return words[self.what]


NONE = Fault()
"""Nothing is done."""


class InjectedOutage(ServiceUnavailable):
    """A service that is away because the suite wants it to be."""


class InjectedError(RuntimeError):
    """An error in a service because the suite wants it to be."""


class Passed(NamedTuple):
    """What a clean run came by, where faults can be put.

    Attributes:
        points: crash points, in order, each as often as it was reached.
        calls: how often services were called.
        readings: how often the handler read the clock.
    """

    points: tuple[str, ...] = ()
    calls: int = 0
    readings: int = 0

    def kills(self, most: int) -> list[Fault]:
        """Return a kill at each point, at up to `most` of the times that it is reached."""
        return [
            Fault(KILLED, name, nth)
            for name in dict.fromkeys(self.points)
            for nth in times(self.points.count(name), most)
        ]


def times(count: int, most: int) -> list[int]:
    """Return the numbers from 1 to `count`; of many the first ones and the last."""
    numbers = list(range(1, count + 1))
    return numbers if count <= most else [*numbers[: most - 1], count]


def parsed(text: str) -> Fault:
    """Return the fault that was written so.

    Raises:
        ValueError: it is none.
    """
    what, _, rest = text.partition(":")
    if what == LOST_OUTCOME and not rest:
        return Fault(what)
    point, _, nth = rest.rpartition(":")
    known = (KILLED, AWAY, RAISES, LOST_ANSWER, CANCELLED, CLOCK_BACK, CLOCK_FORWARD)
    if what not in known or (what == KILLED) != bool(point) or not nth.isdecimal():
        raise ValueError(f"{text!r} is no fault; take it from a report, such as killed:callboard.settle.begun:1")
    return Fault(what, point, int(nth))
