"""Rule 8, the arithmetic: how long a failed task waits, whatever numbers its row holds."""

import math
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from callboard._clock import nanoseconds
from callboard._retry import DEFAULT_POLICY, UNLIMITED_ATTEMPTS, RetryPolicy, backoff_ns

SECOND_NS = 10**9
DAY_NS = 86_400 * SECOND_NS
LONGEST = timedelta(days=3650)

# What a row written by hand may hold, and worse.
ANY_INT = st.integers() | st.sampled_from([2**31 - 1, 2**63 - 1, -(2**63), 10**400, -(10**400)])
ANY_FLOAT = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.7e308])


@given(attempt=ANY_INT, initial_ns=ANY_INT, factor=ANY_FLOAT, cap_ns=ANY_INT)
@example(attempt=2**31 - 1, initial_ns=2 * SECOND_NS, factor=1.5, cap_ns=60 * SECOND_NS)
@example(attempt=2, initial_ns=0, factor=math.inf, cap_ns=60 * SECOND_NS)
@example(attempt=2, initial_ns=1, factor=math.nan, cap_ns=60 * SECOND_NS)
@example(attempt=2, initial_ns=10**400, factor=1.5, cap_ns=60 * SECOND_NS)
@example(attempt=2, initial_ns=1, factor=-2.0, cap_ns=60 * SECOND_NS)
@example(attempt=0, initial_ns=1, factor=0.0, cap_ns=60 * SECOND_NS)
def test_rule_08_backoff_never_raises_and_never_exceeds_the_cap(
    attempt: int, initial_ns: int, factor: float, cap_ns: int
) -> None:
    wait_ns = backoff_ns(attempt, initial_ns, factor, cap_ns)

    assert isinstance(wait_ns, int)
    assert 0 <= wait_ns <= max(cap_ns, 0)


@given(
    attempt=st.integers(-5, 2**31),
    initial_ns=st.integers(0),
    factor=st.floats(1, allow_infinity=False),
    cap_ns=st.integers(0),
)
def test_rule_08_backoff_never_shrinks_as_failures_add_up(
    attempt: int, initial_ns: int, factor: float, cap_ns: int
) -> None:
    assert backoff_ns(attempt, initial_ns, factor, cap_ns) <= backoff_ns(attempt + 1, initial_ns, factor, cap_ns)


@given(
    attempt=st.integers(1, 30),
    initial_ns=st.integers(0, DAY_NS),
    factor=st.floats(1, 10),
    cap_ns=st.integers(0, 365 * DAY_NS),
)
def test_rule_08_backoff_is_initial_times_factor_to_the_failures_before_capped(
    attempt: int, initial_ns: int, factor: float, cap_ns: int
) -> None:
    exact = min(initial_ns * Fraction(factor) ** (attempt - 1), Fraction(cap_ns))

    # Below one nanosecond by truncation, and what a float of 53 bits cannot say.
    assert abs(backoff_ns(attempt, initial_ns, factor, cap_ns) - exact) < 1 + exact / 10**14


@given(attempt=st.integers(2, 10**6), cap_ns=st.integers(0, 3650 * DAY_NS))
def test_rule_08_backoff_that_overflows_is_the_cap(attempt: int, cap_ns: int) -> None:
    assert backoff_ns(attempt, 2 * SECOND_NS, 1e308, cap_ns) == cap_ns


@given(attempt=st.integers(max_value=1), initial_ns=st.integers(0, DAY_NS))
def test_rule_08_backoff_before_any_counted_failure_is_the_initial_one(attempt: int, initial_ns: int) -> None:
    assert backoff_ns(attempt, initial_ns, 1.5, DAY_NS) == initial_ns


def test_rule_08_backoff_is_at_most_ten_years_even_if_the_row_says_more() -> None:
    assert backoff_ns(2**31, 1, 2.0, 2**63 - 1) == nanoseconds(LONGEST)


def test_rule_08_default_policy_is_2_s_times_1_5_capped_at_60_s_20_attempts_3_days() -> None:
    policy = RetryPolicy()

    assert policy == DEFAULT_POLICY
    assert policy.initial == timedelta(seconds=2)
    assert policy.factor == 1.5
    assert policy.cap == timedelta(seconds=60)
    assert policy.max_attempts == 20
    assert policy.expires_after == timedelta(days=3)


def test_rule_08_default_policy_is_over_in_some_twelve_minutes() -> None:
    policy = DEFAULT_POLICY
    waits = [backoff_ns(n, policy.initial_ns, policy.factor, policy.cap_ns) for n in range(1, policy.max_attempts)]

    assert [wait / SECOND_NS for wait in waits[:10]] == [
        2,
        3,
        4.5,
        6.75,
        10.125,
        15.1875,
        22.78125,
        34.171875,
        51.2578125,
        60,
    ]
    assert set(waits[9:]) == {60 * SECOND_NS}
    assert 12 * 60 <= sum(waits) / SECOND_NS < 13 * 60


POLICY_DURATIONS = st.timedeltas(timedelta(0), LONGEST)


@given(
    initial=POLICY_DURATIONS,
    factor=st.floats(1, allow_infinity=False) | st.integers(1, 100),
    cap=POLICY_DURATIONS,
    max_attempts=st.integers(1, UNLIMITED_ATTEMPTS),
    expires_after=POLICY_DURATIONS,
)
def test_a_policy_keeps_its_durations_in_nanoseconds(
    initial: timedelta, factor: float, cap: timedelta, max_attempts: int, expires_after: timedelta
) -> None:
    policy = RetryPolicy(
        initial=initial, factor=factor, cap=cap, max_attempts=max_attempts, expires_after=expires_after
    )

    assert policy.initial_ns == nanoseconds(initial)
    assert policy.cap_ns == nanoseconds(cap)
    assert policy.expires_after_ns == nanoseconds(expires_after)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("factor", math.nan),
        ("factor", math.inf),
        ("factor", -math.inf),
        ("factor", -1.5),
        ("factor", 0.0),
        ("factor", 0.999),
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 2**31),
        ("max_attempts", 20.0),
        ("max_attempts", math.nan),
        ("max_attempts", math.inf),
        ("max_attempts", True),
        ("max_attempts", None),
        ("initial", timedelta(microseconds=-1)),
        ("initial", timedelta.max),
        ("initial", 2),
        ("cap", timedelta(days=-1)),
        ("cap", LONGEST + timedelta(microseconds=1)),
        ("cap", math.inf),
        ("expires_after", timedelta(seconds=-1)),
        ("expires_after", timedelta.max),
        ("expires_after", None),
    ],
)
def test_a_policy_refuses_a_number_that_arithmetic_cannot_use_and_names_it(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must "):
        RetryPolicy(**{name: value}).check()


@given(duration=st.timedeltas(), name=st.sampled_from(["initial", "cap", "expires_after"]))
def test_a_policy_refuses_every_duration_that_is_negative_or_longer_than_ten_years(
    duration: timedelta, name: str
) -> None:
    assume(not timedelta(0) <= duration <= LONGEST)

    with pytest.raises(ValueError, match=f"^{name} must "):
        RetryPolicy(**{name: duration}).check()  # type: ignore[arg-type]
