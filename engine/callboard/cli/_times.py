"""Times on the command line: as a span such as `90s`, `5m`, `2h` or `30d`, or a date in UTC."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import click

from callboard._clock import NEVER_NS, nanoseconds
from callboard.cli._output import span, until

_SPAN = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def from_now(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Be the callback of an option that is a time to come; return nanoseconds since the epoch."""
    return None if text is None else _time_of(text, 1)


def ago(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Be the callback of an option that is a time in the past; return nanoseconds since the epoch."""
    return None if text is None else _time_of(text, -1)


def _time_of(text: str, direction: int) -> int:
    found = _SPAN.fullmatch(text)
    try:
        if found is None:
            absolute = _from_date(text)
        else:
            number, unit = found.groups()
            absolute = time.time_ns() + direction * nanoseconds(timedelta(**{_UNITS[unit]: int(number)}))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r} is no time: a span such as 90s, 5m, 2h or 30d, or a date such as 2026-12-24 or"
            " 2026-12-24T18:30:00+01:00"
        ) from error
    return min(max(absolute, 0), NEVER_NS)


def _from_date(text: str) -> int:
    date = datetime.fromisoformat(text)
    return nanoseconds((date if date.tzinfo else date.replace(tzinfo=UTC)) - _EPOCH)


def date_of(at_ns: int) -> str:
    """Return a time as a person reads it, in UTC; `never` for one that no calendar has."""
    try:
        return (_EPOCH + timedelta(microseconds=at_ns // 1_000)).strftime("%Y-%m-%d %H:%M:%S UTC")
    except OverflowError:
        return "never"


def moment(at_ns: int, now_ns: int) -> str:
    """Return a deadline as a person reads it, from now and in UTC."""
    return "never" if at_ns >= NEVER_NS else f"{until(at_ns, now_ns)} ({date_of(at_ns)})"


def past(at_ns: int, now_ns: int) -> str:
    """Return when something was, from now and in UTC."""
    return f"{span(now_ns - at_ns)} ago ({date_of(at_ns)})"
