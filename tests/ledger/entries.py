"""What is written down while engines run, and what is read from their tables afterwards.

All times are on one scale, which all nodes share: the machine's monotonic clock, or the steps of a simulation.
An entry is written when it says, before its writer does the next thing, so that a kill costs none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class What(StrEnum):
    """What an entry tells."""

    ASKED = "asked"
    """Somebody is about to enqueue the task. Whether that happened is only sure once it is `accepted`."""
    ACCEPTED = "accepted"
    """The enqueue, or the pull-in, has returned, and what it wrote is committed."""
    BUFFERED = "buffered"
    """A run asked for another task together with its outcome: both are committed, or neither."""
    PULLED = "pulled"
    """Somebody is about to pull the task in."""
    CANCELLED = "cancelled"
    """Somebody is about to cancel the task."""
    BEGUN = "begun"
    """The handler was called."""
    COMPLETING = "completing"
    """The run's `ctx.complete` is about to commit. If it does, the run is over: it is the handler's last act."""
    ENDED = "ended"
    """The handler is about to return or raise."""
    KILLED = "killed"
    """The node's process was killed. The time is the last at which it was certainly alive."""
    LAPSED = "lapsed"
    """From here on others may take the node's tasks over, because it gives no sign of life."""
    RESUMED = "resumed"
    """The node knows again which tasks are its own."""


class Came(StrEnum):
    """What came of a run, as its handler saw it."""

    DONE = "done"
    FAILED = "failed"
    OUTAGE = "outage"
    RESCHEDULED = "rescheduled"
    DEFERRED = "deferred"
    DISCARDED = "discarded"
    STALE = "stale"
    """`ctx.complete` was refused, because the run no longer held its row."""


class Entry(NamedTuple):
    """One thing that happened.

    Attributes:
        at_ns: When.
        node: Where: each start of an engine has a name of its own.
        what: What.
        task: The task, by a name that no other one has; empty for what happens to a node.
        ref: What belongs together: a request's `asked` or `pulled`, and `accepted`; a run's `begun`,
            `buffered`, `completing` and `ended`. No other request or run has the same.
        group: `begun`: the group; empty for none.
        attempts: `begun`: the row's attempts.
        came: `ended`: what came of it.
        completed: `ended`: whether `ctx.complete` committed it, with an effect.
        due_ns: `asked`, `buffered`: not before; `ended`: not again before, after a failure its backoff; `pulled`:
            not later than. None: at once, or not known.
        expires_ns: `asked`, `buffered`: when the task is dead if not done; None: never, or not known.
        max_attempts: `asked`, `buffered`: after how many failures it is dead; None: never, or not known.
    """

    at_ns: int
    node: str
    what: What
    task: str = ""
    ref: str = ""
    group: str = ""
    attempts: int = 0
    came: Came | None = None
    completed: bool = False
    due_ns: int | None = None
    expires_ns: int | None = None
    max_attempts: int | None = None

    def __str__(self) -> str:
        """Say it shortly, for a violation to quote."""
        came = f" {self.came}" if self.came else ""
        return f"[{self.at_ns} {self.node} {self.what}{came}{f' {self.ref}' if self.ref else ''}]"


class LiveRow(NamedTuple):
    """A row of the task table at the end."""

    task: str
    state: str
    due_ns: int


class DeadRow(NamedTuple):
    """A row of the dead-task table at the end."""

    task: str
    reason: str
    attempts: int
    died_at_ns: int


class Effect(NamedTuple):
    """A row that a run wrote inside `ctx.complete`."""

    task: str
    ref: str
