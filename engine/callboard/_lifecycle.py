"""The only state machine: from a row and what happened to it, to what becomes of it. Pure functions.

Nothing here reads a clock, a database or a plugin, so each rule can be tested as arithmetic and replayed by
a simulation.
"""

from __future__ import annotations

from typing import NamedTuple

from callboard._clock import NEVER_NS, deadline_ns
from callboard._outcome import Defer, Discard, Done, Failure, Outcome, RescheduleAt
from callboard._retry import DEFAULT_POLICY, UNLIMITED_ATTEMPTS, backoff_ns
from callboard._task import DeadReason, Task

NO_DONE = "a recurring task has no end: its handler must return RescheduleAt, not Done"


class Finish(NamedTuple):
    """The row is deleted: its work is done."""


class Keep(NamedTuple):
    """The row stays, pending, with these columns."""

    attempts: int
    outages: int
    next_attempt_at_ns: int
    created_at_ns: int
    expires_at_ns: int
    last_error: str | None


class Bury(NamedTuple):
    """The row moves to the dead-task table."""

    reason: DeadReason
    attempts: int
    last_error: str | None


Transition = Finish | Keep | Bury

FINISH = Finish()


def overdue(task: Task, now_ns: int, *, recurring: bool = False) -> Bury | None:
    """Return the burial of a row whose time or attempts are up (rule 6, the first two checks)."""
    if recurring:
        return None
    if task.expires_at_ns <= now_ns:
        return Bury(DeadReason.EXPIRED, task.attempts, task.last_error)
    if task.max_attempts is not None and task.attempts >= task.max_attempts:
        return Bury(DeadReason.EXHAUSTED, task.attempts, task.last_error)
    return None


def cancelled(task: Task) -> Bury:
    """Return the burial of a cancelled row."""
    return Bury(DeadReason.CANCELLED, task.attempts, task.last_error)


def crashed(task: Task, crashes: int) -> Bury:
    """Return the burial of a row that took its process down too often."""
    return Bury(
        DeadReason.CRASHED, task.attempts, f"its process ended {crashes} times in a row while it ran alone"
    )


def after_crash_ns(task: Task, crashes: int, now_ns: int) -> int:
    """Return when a row runs again whose process ended: at once, until a crash was certainly its own."""
    return 0 if crashes == 0 else min(now_ns + _backoff_ns(task, crashes), NEVER_NS)


def judged(result: Outcome | Failure, *, recurring: bool) -> Outcome | Failure:
    """Return what a handler's outcome counts as: a recurring task has no end (rule 9)."""
    return Failure(NO_DONE) if recurring and isinstance(result, Done) else result


def settle(
    task: Task, result: Outcome | Failure, now_ns: int, *, recurring: bool = False, requested: bool = False
) -> Transition:
    """Return what becomes of a row after a run.

    Args:
        task: the row as it was claimed.
        result: the handler's outcome, or how it failed.
        now_ns: the time at which the run ended.
        recurring: whether the kind has no end (rule 9).
        requested: whether the identity was enqueued again since the claim (rule 14).
    """
    result = judged(result, recurring=recurring)
    if isinstance(result, Failure):
        return _failed(task, result, now_ns, recurring, requested)
    if requested:
        return _renewed(task, now_ns, now_ns, None)
    match result:
        case Done():
            return FINISH
        case Discard(reason):
            return Bury(DeadReason.DISCARDED, task.attempts, reason)
        case RescheduleAt(when):
            return _kept(task, 0, deadline_ns(when, now_ns))
        case Defer(when):
            return _kept(task, task.attempts, deadline_ns(when, now_ns))


def _failed(task: Task, failure: Failure, now_ns: int, recurring: bool, requested: bool) -> Transition:
    # From 0, because a row written by hand may say less, and would be tried for ever.
    attempts = min(max(task.attempts, 0) + 1, UNLIMITED_ATTEMPTS - 1) if failure.counted else task.attempts
    outages = 0 if failure.counted else min(max(task.outages, 0) + 1, UNLIMITED_ATTEMPTS)
    wait_ns = _backoff_ns(task, attempts if failure.counted else outages)
    next_ns = min(now_ns + wait_ns, NEVER_NS)
    if requested:
        return _renewed(task, next_ns, now_ns, failure.error)
    exhausted = task.max_attempts is not None and attempts >= task.max_attempts
    if failure.counted and exhausted and not recurring:
        return Bury(DeadReason.EXHAUSTED, attempts, failure.error)
    return Keep(attempts, outages, next_ns, task.created_at_ns, task.expires_at_ns, failure.error)


def _backoff_ns(task: Task, number: int) -> int:
    initial = DEFAULT_POLICY.initial_ns if task.initial_backoff_ns is None else task.initial_backoff_ns
    factor = DEFAULT_POLICY.factor if task.backoff_factor is None else task.backoff_factor
    cap = DEFAULT_POLICY.cap_ns if task.max_backoff_ns is None else task.max_backoff_ns
    return backoff_ns(number, initial, factor, cap)


def _kept(task: Task, attempts: int, next_ns: int) -> Keep:
    return Keep(attempts, 0, next_ns, task.created_at_ns, task.expires_at_ns, None)


def _renewed(task: Task, next_ns: int, now_ns: int, error: str | None) -> Keep:
    """Start the row's life over, with the same span between birth and expiry."""
    span = task.expires_at_ns - task.created_at_ns
    expires = NEVER_NS if task.expires_at_ns == NEVER_NS else min(now_ns + max(span, 0), NEVER_NS)
    return Keep(0, 0, next_ns, now_ns, expires, error)
