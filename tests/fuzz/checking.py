"""The pure harness: one row through its checks and through everything that a run can end with, in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.fuzz.rows import KINDS, LEAST, MOST, NOW_NS, row_of

from callboard import Defer, Discard, Done, RescheduleAt
from callboard._admission import Undecodable, admit
from callboard._codec import decode, encode
from callboard._compose import revived
from callboard._lifecycle import Bury, Finish, Keep, Transition, after_crash_ns, cancelled, crashed, settle
from callboard._outcome import Failure, Outcome
from callboard._retry import UNLIMITED_ATTEMPTS
from callboard._run import Run
from callboard._task import DeadReason, Task

ENDS: tuple[Outcome | Failure, ...] = (
    Done(),
    Discard("no"),
    Defer(timedelta(days=999_999_999)),
    Defer(timedelta(days=-999_999_999)),
    RescheduleAt(timedelta(hours=1)),
    RescheduleAt(MOST),
    Failure("boom"),
    Failure("away", counted=False),
)
_AT_THE_CHECKS = (DeadReason.EXPIRED, DeadReason.EXHAUSTED, DeadReason.MALFORMED)


def check_bytes(data: bytes) -> str:
    """Check the row that these bytes choose; return its verdict."""
    return check_row(row_of(data))


def check_row(row: Task) -> str:
    """Return the row's verdict: `run`, `defer`, or the reason why it is dead.

    Raises:
        AssertionError: something that no table could hold came of it.
    """
    _check_crash(row)
    kind = KINDS.get(row.kind)
    if kind is None:
        return "defer" if row.data else DeadReason.MALFORMED.value  # which SQL decides
    found = admit(row, kind, NOW_NS)
    if isinstance(found, Undecodable):
        assert row.data
        return "defer"
    if isinstance(found, Bury):
        assert found.reason in _AT_THE_CHECKS
        _check_bury(found)
        return found.reason.value
    assert isinstance(found, Run)
    _check_task(found.task)
    again = encode(found.message)
    assert decode(again, row.kind, kind.message_type) == found.message
    for end in ENDS:
        for requested in (False, True):
            _check(settle(found.task, end, NOW_NS, recurring=kind.recurring, requested=requested))
    return "run"


def _check(change: Transition) -> None:
    match change:
        case Finish():
            return
        case Bury():
            _check_bury(change)
        case Keep():
            assert 0 <= change.next_attempt_at_ns <= MOST
            assert change.outages <= UNLIMITED_ATTEMPTS
            _check_storable(change)


def _check_bury(burial: Bury) -> None:
    assert burial.reason in DeadReason
    _check_storable(burial)


def _check_task(task: Task) -> None:
    _check_storable(task)
    assert task.group_id is None or isinstance(task.group_id, bytes)


def _check_crash(row: Task) -> None:
    """Check what a crash, a cancelling and a retry by hand make of the row, which look at no payload."""
    for crashes in (0, 1, row.attempts):
        assert 0 <= after_crash_ns(row, crashes, NOW_NS) <= MOST
        _check_bury(crashed(row, crashes))
    _check_bury(cancelled(row))
    _check_storable(revived(row, NOW_NS))


def _check_storable(columns: tuple[Any, ...]) -> None:
    for value in columns:
        if isinstance(value, int):
            assert LEAST <= value <= MOST, columns
        elif isinstance(value, str):
            value.encode()
