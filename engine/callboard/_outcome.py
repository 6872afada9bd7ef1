"""What a handler may return. Outcomes are values; raising anything means that the attempt failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Done:
    """Finish the task: its row is deleted. Returning `None` means the same."""


@dataclass(frozen=True, slots=True)
class RescheduleAt:
    """Keep the task and run it again at `when`, with attempts back at 0.

    The deadline moves to `when` even if that is later than before; it is what recurring kinds return.

    Attributes:
        when: a timedelta from now, or nanoseconds since the epoch, UTC.
    """

    when: timedelta | int


@dataclass(frozen=True, slots=True)
class Defer:
    """Keep the task and run it again at `when`, with attempts as they were: "not now" is no failure.

    Attributes:
        when: a timedelta from now, or nanoseconds since the epoch, UTC.
    """

    when: timedelta | int


@dataclass(frozen=True, slots=True)
class Discard:
    """Give the task up: it moves to the dead-task table as `discarded`.

    Attributes:
        reason: why, for whoever reads the dead-task table.
    """

    reason: str


Outcome = Done | RescheduleAt | Defer | Discard


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that raised, or that returned something which is no outcome.

    Attributes:
        error: the traceback or the complaint, for `last_error`.
        counted: whether it uses up an attempt; a missing service does not.
    """

    error: str
    counted: bool = True
