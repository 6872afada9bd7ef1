"""The state machine, rule by rule: what becomes of a row after a run, and which rows are not run at all."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard._clock import NEVER_NS, deadline_ns
from callboard._lifecycle import FINISH, NO_DONE, Bury, Keep, Transition, overdue, settle
from callboard._outcome import Defer, Discard, Done, Failure, Outcome, RescheduleAt
from callboard._retry import DEFAULT_POLICY, UNLIMITED_ATTEMPTS, backoff_ns
from callboard._task import DeadReason, Task

SECOND_NS = 10**9
NOW_NS = 1_700_000_000 * SECOND_NS
FAILED = Failure("boom")
UNAVAILABLE = Failure("the network is away", counted=False)


def a_task(**columns: Any) -> Task:
    """Return a row as a claim reads it, of the default policy and created a minute ago."""
    row: dict[str, Any] = dict.fromkeys(Task._fields)
    row |= {
        "id": 1,
        "kind": "acme.receipts.SendReceipt",
        "identity": b"\x11" * 32,
        "data": b"payload",
        "data_hash": b"\x11" * 32,
        "state": "running",
        "attempts": 0,
        "max_attempts": DEFAULT_POLICY.max_attempts,
        "created_at_ns": NOW_NS - 60 * SECOND_NS,
        "expires_at_ns": NOW_NS - 60 * SECOND_NS + DEFAULT_POLICY.expires_after_ns,
        "next_attempt_at_ns": NOW_NS,
        "initial_backoff_ns": DEFAULT_POLICY.initial_ns,
        "backoff_factor": DEFAULT_POLICY.factor,
        "max_backoff_ns": DEFAULT_POLICY.cap_ns,
        "requests": 0,
        "outages": 0,
        "token": 1,
    }
    return Task(**(row | columns))


@st.composite
def claimed_tasks(draw: st.DrawFn) -> Task:
    """Draw a row that may run: neither expired nor exhausted at `NOW_NS`, its numbers otherwise arbitrary."""
    max_attempts = draw(st.none() | st.integers(1, UNLIMITED_ATTEMPTS - 1))
    return a_task(
        attempts=draw(st.integers(0, (max_attempts or UNLIMITED_ATTEMPTS - 1) - 1)),
        max_attempts=max_attempts,
        created_at_ns=draw(st.integers(0, NOW_NS)),
        expires_at_ns=draw(st.integers(NOW_NS + 1, NEVER_NS)),
        initial_backoff_ns=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        backoff_factor=draw(st.none() | st.floats()),
        max_backoff_ns=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        outages=draw(st.integers(0, UNLIMITED_ATTEMPTS)),
        last_error=draw(st.none() | st.just("earlier")),
    )


WHENS = st.timedeltas() | st.integers(max_value=0) | st.integers(min_value=10**15)
FAILURES = st.builds(Failure, st.text(), st.booleans())
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.just(Done()), st.builds(RescheduleAt, WHENS), st.builds(Defer, WHENS), st.builds(Discard, st.text())
)
RESULTS: st.SearchStrategy[Outcome | Failure] = OUTCOMES | FAILURES
NOWS = st.integers(0, NEVER_NS)


def kept(transition: Transition) -> Keep:
    assert isinstance(transition, Keep)
    return transition


# Any run


@given(task=claimed_tasks(), result=RESULTS, now_ns=NOWS, recurring=st.booleans(), requested=st.booleans())
@example(a_task(attempts=UNLIMITED_ATTEMPTS - 1, max_attempts=None), FAILED, NEVER_NS, False, False)
@example(a_task(outages=UNLIMITED_ATTEMPTS), UNAVAILABLE, NEVER_NS, False, False)
def test_rule_08_whatever_the_row_and_the_outcome_the_columns_fit_the_database(
    task: Task, result: Outcome | Failure, now_ns: int, recurring: bool, requested: bool
) -> None:
    match settle(task, result, now_ns, recurring=recurring, requested=requested):
        case Keep(attempts, outages, next_attempt_at_ns, created_at_ns, expires_at_ns):
            assert 0 <= attempts < UNLIMITED_ATTEMPTS
            assert 0 <= outages <= UNLIMITED_ATTEMPTS
            assert 0 <= next_attempt_at_ns <= NEVER_NS
            assert 0 <= created_at_ns <= NEVER_NS
            assert 0 <= expires_at_ns <= NEVER_NS
        case Bury(_, attempts):
            assert 0 <= attempts < UNLIMITED_ATTEMPTS


@given(task=claimed_tasks(), result=RESULTS, now_ns=NOWS, recurring=st.booleans(), requested=st.booleans())
def test_rule_08_attempts_rise_by_one_stay_or_return_to_0(
    task: Task, result: Outcome | Failure, now_ns: int, recurring: bool, requested: bool
) -> None:
    transition = settle(task, result, now_ns, recurring=recurring, requested=requested)

    if not isinstance(transition, Keep | Bury):
        return
    assert transition.attempts in {0, task.attempts, task.attempts + 1}
    if transition.attempts > task.attempts:
        assert isinstance(result, Failure) or (recurring and isinstance(result, Done))


@given(task=claimed_tasks(), result=RESULTS, now_ns=NOWS, recurring=st.booleans(), requested=st.booleans())
def test_rule_04_only_done_of_a_one_shot_that_nobody_requested_again_deletes_the_row(
    task: Task, result: Outcome | Failure, now_ns: int, recurring: bool, requested: bool
) -> None:
    finished = settle(task, result, now_ns, recurring=recurring, requested=requested) == FINISH

    assert finished == (isinstance(result, Done) and not recurring and not requested)


@given(task=claimed_tasks(), reason=st.text(), recurring=st.booleans())
def test_rule_04_discard_buries_with_its_reason_as_the_last_error(
    task: Task, reason: str, recurring: bool
) -> None:
    assert settle(task, Discard(reason), NOW_NS, recurring=recurring) == Bury(
        DeadReason.DISCARDED, task.attempts, reason
    )


# Rule 6: before the run


@given(now_ns=st.integers(NOW_NS, NEVER_NS), attempts=st.integers(0, 40))
def test_rule_06_expired_is_checked_before_exhausted(now_ns: int, attempts: int) -> None:
    task = a_task(expires_at_ns=NOW_NS, attempts=attempts, last_error="earlier")

    assert overdue(task, now_ns) == Bury(DeadReason.EXPIRED, attempts, "earlier")


@given(attempts=st.integers(20, UNLIMITED_ATTEMPTS))
def test_rule_06_a_row_whose_attempts_are_up_is_exhausted(attempts: int) -> None:
    task = a_task(attempts=attempts, max_attempts=20, last_error="earlier")

    assert overdue(task, NOW_NS) == Bury(DeadReason.EXHAUSTED, attempts, "earlier")


@given(task=claimed_tasks(), recurring=st.booleans())
def test_rule_06_a_row_with_time_and_attempts_left_runs(task: Task, recurring: bool) -> None:
    assert overdue(task, NOW_NS, recurring=recurring) is None


def test_rule_06_a_row_expires_at_the_very_nanosecond_and_not_before() -> None:
    task = a_task(expires_at_ns=NOW_NS)

    assert overdue(task, NOW_NS - 1) is None
    assert overdue(task, NOW_NS) == Bury(DeadReason.EXPIRED, 0, None)


def test_rule_16_a_row_whose_policy_nobody_knew_cannot_exhaust_before_it_is_claimed_by_a_node_that_does() -> None:
    assert overdue(a_task(attempts=UNLIMITED_ATTEMPTS, max_attempts=None), NOW_NS) is None


@given(expires_at_ns=NOWS, attempts=st.integers(0, UNLIMITED_ATTEMPTS), now_ns=NOWS)
def test_rule_09_a_recurring_row_never_expires_and_never_exhausts(
    expires_at_ns: int, attempts: int, now_ns: int
) -> None:
    task = a_task(expires_at_ns=expires_at_ns, attempts=attempts)

    assert overdue(task, now_ns, recurring=True) is None


# Rule 8: failure


@given(task=claimed_tasks(), recurring=st.booleans())
def test_rule_08_a_failure_counts_one_attempt_and_waits_its_backoff(task: Task, recurring: bool) -> None:
    task = task._replace(
        attempts=min(task.attempts, UNLIMITED_ATTEMPTS - 3),
        max_attempts=UNLIMITED_ATTEMPTS - 1,
        initial_backoff_ns=3 * SECOND_NS,
        backoff_factor=2.0,
        max_backoff_ns=100 * SECOND_NS,
    )

    keep = kept(settle(task, FAILED, NOW_NS, recurring=recurring))

    assert keep == Keep(
        attempts=task.attempts + 1,
        outages=0,
        next_attempt_at_ns=NOW_NS + backoff_ns(task.attempts + 1, 3 * SECOND_NS, 2.0, 100 * SECOND_NS),
        created_at_ns=task.created_at_ns,
        expires_at_ns=task.expires_at_ns,
        last_error="boom",
    )


@pytest.mark.parametrize(
    ("failures_before", "wait_s"), [(0, 2.0), (1, 3.0), (2, 4.5), (8, 51.2578125), (9, 60.0), (18, 60.0)]
)
def test_rule_08_the_default_policy_waits_so_long_after_so_many_failures(
    failures_before: int, wait_s: float
) -> None:
    keep = kept(settle(a_task(attempts=failures_before), FAILED, NOW_NS))

    assert (keep.next_attempt_at_ns - NOW_NS) / SECOND_NS == wait_s


@given(attempts=st.integers(0, 18), failure=st.sampled_from([FAILED, UNAVAILABLE]))
def test_rule_08_a_row_without_a_policy_of_its_own_has_the_default_one(attempts: int, failure: Failure) -> None:
    bare = a_task(attempts=attempts, initial_backoff_ns=None, backoff_factor=None, max_backoff_ns=None)

    assert settle(bare, failure, NOW_NS) == settle(a_task(attempts=attempts), failure, NOW_NS)


@given(task=claimed_tasks(), now_ns=NOWS)
def test_rule_08_no_backoff_is_further_away_than_the_cap(task: Task, now_ns: int) -> None:
    task = task._replace(max_backoff_ns=60 * SECOND_NS)

    for failure in (FAILED, UNAVAILABLE):
        match settle(task, failure, now_ns):
            case Keep(next_attempt_at_ns=next_ns):
                assert now_ns <= next_ns <= now_ns + 60 * SECOND_NS


@given(max_attempts=st.integers(1, UNLIMITED_ATTEMPTS - 1))
def test_rule_08_failure_of_the_last_attempt_is_exhausted(max_attempts: int) -> None:
    task = a_task(attempts=max_attempts - 1, max_attempts=max_attempts)

    assert settle(task, FAILED, NOW_NS) == Bury(DeadReason.EXHAUSTED, max_attempts, "boom")


@given(
    max_attempts=st.integers(1, 6),
    results=st.lists(st.sampled_from([FAILED, UNAVAILABLE, Defer(0), RescheduleAt(0)]), max_size=30),
)
def test_rule_08_a_row_dies_of_its_last_counted_failure_and_of_nothing_else(
    max_attempts: int, results: Sequence[Outcome | Failure]
) -> None:
    task = a_task(max_attempts=max_attempts)
    failures = 0

    for result in results:
        transition = settle(task, result, NOW_NS)
        failures = 0 if isinstance(result, RescheduleAt) else failures + (result is FAILED)
        if failures == max_attempts:
            assert transition == Bury(DeadReason.EXHAUSTED, max_attempts, "boom")
            return
        keep = kept(transition)
        assert keep.attempts == failures
        task = task._replace(attempts=keep.attempts, outages=keep.outages, last_error=keep.last_error)


@given(task=claimed_tasks(), attempts=st.integers(0, UNLIMITED_ATTEMPTS), now_ns=NOWS, recurring=st.booleans())
def test_rule_08_service_unavailable_neither_counts_nor_buries(
    task: Task, attempts: int, now_ns: int, recurring: bool
) -> None:
    task = task._replace(attempts=attempts)

    keep = kept(settle(task, UNAVAILABLE, now_ns, recurring=recurring))

    assert keep.attempts == task.attempts
    assert keep.last_error == "the network is away"
    assert (keep.created_at_ns, keep.expires_at_ns) == (task.created_at_ns, task.expires_at_ns)


def test_rule_08_service_unavailable_backs_off_further_with_each_outage_in_a_row() -> None:
    task = a_task(attempts=19)
    waits = []
    for _ in range(12):
        keep = kept(settle(task, UNAVAILABLE, NOW_NS))
        waits.append((keep.next_attempt_at_ns - NOW_NS) / SECOND_NS)
        task = task._replace(outages=keep.outages)

    assert waits[:3] == [2, 3, 4.5]
    assert waits[9:] == [60, 60, 60]
    assert kept(settle(task, Defer(0), NOW_NS)).outages == 0
    assert kept(settle(task, RescheduleAt(0), NOW_NS)).outages == 0
    assert kept(settle(task._replace(attempts=0), FAILED, NOW_NS)).outages == 0


# Rule 9: recurring kinds


@given(task=claimed_tasks(), now_ns=NOWS, requested=st.booleans())
def test_rule_09_done_from_a_recurring_kind_is_a_failed_attempt_that_says_so(
    task: Task, now_ns: int, requested: bool
) -> None:
    done = settle(task, Done(), now_ns, recurring=True, requested=requested)

    assert done == settle(task, Failure(NO_DONE), now_ns, recurring=True, requested=requested)
    assert kept(done).last_error == NO_DONE
    assert "RescheduleAt" in NO_DONE


@given(
    task=claimed_tasks(),
    attempts=st.integers(0, UNLIMITED_ATTEMPTS - 2),
    result=RESULTS,
    requested=st.booleans(),
)
def test_rule_09_a_recurring_row_is_only_buried_when_its_handler_discards_it(
    task: Task, attempts: int, result: Outcome | Failure, requested: bool
) -> None:
    transition = settle(task._replace(attempts=attempts), result, NOW_NS, recurring=True, requested=requested)

    assert isinstance(transition, Bury) == (isinstance(result, Discard) and not requested)


@given(task=claimed_tasks(), when=WHENS, now_ns=NOWS, recurring=st.booleans())
def test_rule_09_reschedule_keeps_the_row_sets_attempts_to_0_and_moves_to_that_time(
    task: Task, when: timedelta | int, now_ns: int, recurring: bool
) -> None:
    assert settle(task, RescheduleAt(when), now_ns, recurring=recurring) == Keep(
        attempts=0,
        outages=0,
        next_attempt_at_ns=deadline_ns(when, now_ns),
        created_at_ns=task.created_at_ns,
        expires_at_ns=task.expires_at_ns,
        last_error=None,
    )


@pytest.mark.parametrize("away", [timedelta(hours=-1), timedelta(hours=1), timedelta(days=30)])
def test_rule_09_reschedule_advances_even_to_a_later_time_than_before(away: timedelta) -> None:
    task = a_task(next_attempt_at_ns=NOW_NS)

    keep = kept(settle(task, RescheduleAt(away), NOW_NS, recurring=True))

    assert keep.next_attempt_at_ns == NOW_NS + away // timedelta(microseconds=1) * 1_000


# Rule 16: the Defer outcome


@given(task=claimed_tasks(), when=WHENS, now_ns=NOWS, recurring=st.booleans())
def test_rule_16_the_defer_outcome_is_a_deadline_that_counts_no_attempt(
    task: Task, when: timedelta | int, now_ns: int, recurring: bool
) -> None:
    assert settle(task, Defer(when), now_ns, recurring=recurring) == Keep(
        attempts=task.attempts,
        outages=0,
        next_attempt_at_ns=deadline_ns(when, now_ns),
        created_at_ns=task.created_at_ns,
        expires_at_ns=task.expires_at_ns,
        last_error=None,
    )


# Rule 14: requested again while it ran


@given(task=claimed_tasks(), result=RESULTS, now_ns=st.integers(0, NOW_NS * 2), recurring=st.booleans())
def test_rule_14_a_requested_row_runs_again_whatever_the_outcome_with_attempts_0_and_a_fresh_expiry(
    task: Task, result: Outcome | Failure, now_ns: int, recurring: bool
) -> None:
    keep = kept(settle(task, result, now_ns, recurring=recurring, requested=True))

    assert (keep.attempts, keep.outages) == (0, 0)
    assert keep.created_at_ns == now_ns
    if task.expires_at_ns == NEVER_NS:
        assert keep.expires_at_ns == NEVER_NS
    else:
        assert keep.expires_at_ns == min(now_ns + task.expires_at_ns - task.created_at_ns, NEVER_NS)


@given(now_ns=st.integers(0, NEVER_NS))
def test_rule_14_a_rerun_of_a_row_that_never_expires_never_expires(now_ns: int) -> None:
    task = a_task(expires_at_ns=NEVER_NS)

    assert kept(settle(task, RescheduleAt(0), now_ns, recurring=True, requested=True)).expires_at_ns == NEVER_NS


@given(task=claimed_tasks(), outcome=OUTCOMES, now_ns=NOWS)
def test_rule_14_a_rerun_after_any_outcome_is_due_at_once(task: Task, outcome: Outcome, now_ns: int) -> None:
    keep = kept(settle(task, outcome, now_ns, requested=True))

    assert keep.next_attempt_at_ns == now_ns
    assert keep.last_error is None


@given(task=claimed_tasks(), failure=FAILURES, now_ns=NOWS, recurring=st.booleans())
def test_rule_14_a_rerun_after_a_failure_keeps_the_failed_attempts_backoff_and_error(
    task: Task, failure: Failure, now_ns: int, recurring: bool
) -> None:
    endless = task._replace(max_attempts=None)
    unrequested = kept(settle(endless, failure, now_ns, recurring=recurring))

    rerun = kept(settle(task, failure, now_ns, recurring=recurring, requested=True))

    assert rerun.next_attempt_at_ns == unrequested.next_attempt_at_ns
    assert rerun.last_error == failure.error


def test_rule_14_a_rerun_after_the_last_failed_attempt_lives_and_does_not_spin() -> None:
    keep = kept(settle(a_task(attempts=19), FAILED, NOW_NS, requested=True))

    assert keep.attempts == 0
    assert keep.next_attempt_at_ns == NOW_NS + 60 * SECOND_NS
