"""Times are whole nanoseconds that fit the database's columns, whatever a caller asks for."""

import time
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import ConfigurationError
from callboard._clock import NEVER_NS, SystemClock, check_when, deadline_ns, nanoseconds

NOWS = st.integers(0, NEVER_NS)


@given(duration=st.timedeltas())
def test_nanoseconds_of_a_timedelta_are_exact(duration: timedelta) -> None:
    assert nanoseconds(duration) == duration // timedelta(microseconds=1) * 1_000


def test_nanoseconds_of_a_long_duration_do_not_pass_through_a_float() -> None:
    assert nanoseconds(timedelta.max) == 86_399_999_999_999_999_999_000


@given(when=st.timedeltas() | st.integers(max_value=0) | st.integers(min_value=10**15), now_ns=NOWS)
def test_a_deadline_always_fits_the_column(when: timedelta | int, now_ns: int) -> None:
    assert 0 <= deadline_ns(when, now_ns) <= NEVER_NS


@given(
    when=st.timedeltas(timedelta(days=-3650), timedelta(days=3650)),
    now_ns=st.integers(10**18, 2 * 10**18),
)
def test_a_timedelta_is_a_deadline_that_far_from_now(when: timedelta, now_ns: int) -> None:
    assert deadline_ns(when, now_ns) - now_ns == nanoseconds(when)


@given(when=st.integers(10**15, NEVER_NS), now_ns=NOWS)
def test_an_int_is_an_absolute_deadline(when: int, now_ns: int) -> None:
    assert deadline_ns(when, now_ns) == when


def test_never_is_the_largest_sql_integer() -> None:
    assert NEVER_NS == 9_223_372_036_854_775_807


def test_the_system_clock_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 42)
    clock = SystemClock()

    assert clock.now_ns() == 1_700_000_000_000_000_000
    assert clock.monotonic_ns() == 42
    assert clock.seconds_until(1_700_000_001_500_000_000) == 1.5


@pytest.mark.parametrize("deadline", [0, 999_999_999, 1_000_000_000])
def test_the_system_clock_does_not_sleep_until_a_deadline_that_passed(
    deadline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)

    assert SystemClock().seconds_until(deadline) == 0.0


@given(when=st.integers(1, 10**15 - 1) | st.floats() | st.booleans() | st.text() | st.none())
def test_seconds_and_what_else_is_no_time_are_refused(when: Any) -> None:
    with pytest.raises(ConfigurationError, match="nanoseconds since the epoch"):
        check_when(when)


@given(when=st.integers(10**15) | st.integers(max_value=0) | st.timedeltas())
def test_nanoseconds_and_timedeltas_are_times(when: timedelta | int) -> None:
    check_when(when)
