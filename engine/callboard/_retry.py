"""When a failed attempt is tried again: the policy and its arithmetic, which cannot overflow."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from datetime import timedelta

from callboard._clock import nanoseconds
from callboard.errors import ConfigurationError

UNLIMITED_ATTEMPTS = 2**31 - 1
"""The largest 32-bit integer, so that the column is an INTEGER on every database."""

_LONGEST_NS = nanoseconds(timedelta(days=3650))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Say how often, how soon and for how long a kind's tasks are tried.

    After the n-th failed attempt the task waits `min(initial * factor ** (n - 1), cap)`. The defaults are
    those of libxmtp's task worker.

    Attributes:
        initial: the wait after the first failure.
        factor: what each further failure multiplies the wait by.
        cap: the longest wait.
        max_attempts: failed attempts before the task is dead.
        expires_after: how long after its enqueue a task is dead, whatever its attempts.

    The numbers are checked by the `TaskKind` that uses the policy, so that the complaint can name the kind.
    """

    initial: timedelta = timedelta(seconds=2)
    factor: float = 1.5
    cap: timedelta = timedelta(seconds=60)
    max_attempts: int = 20
    expires_after: timedelta = timedelta(days=3)

    @property
    def initial_ns(self) -> int:
        """The wait after the first failure, in nanoseconds."""
        return nanoseconds(self.initial)

    @property
    def cap_ns(self) -> int:
        """The longest wait, in nanoseconds."""
        return nanoseconds(self.cap)

    @property
    def expires_after_ns(self) -> int:
        """How long after its enqueue a task is dead, in nanoseconds."""
        return nanoseconds(self.expires_after)

    def check(self) -> None:
        """Refuse what arithmetic cannot use.

        Raises:
            ConfigurationError: a number is negative, infinite or NaN, the factor is below 1, or there is no
                attempt.
        """
        if not isinstance(self.factor, (int, float)) or not 1 <= self.factor <= sys.float_info.max:
            raise ConfigurationError(f"factor must be a finite number of at least 1, not {self.factor!r}")
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            raise ConfigurationError(f"max_attempts must be a whole number, not {self.max_attempts!r}")
        if not 1 <= self.max_attempts <= UNLIMITED_ATTEMPTS:
            raise ConfigurationError(
                f"max_attempts must be between 1 and {UNLIMITED_ATTEMPTS}, not {self.max_attempts}"
            )
        for name in ("initial", "cap", "expires_after"):
            duration = getattr(self, name)
            if not isinstance(duration, timedelta):
                raise ConfigurationError(f"{name} must be a timedelta, not {duration!r}")
            if not 0 <= nanoseconds(duration) <= _LONGEST_NS:
                raise ConfigurationError(
                    f"{name} must lie between 0 and {_LONGEST_NS // 10**9} s, not {duration!r}"
                )


DEFAULT_POLICY = RetryPolicy()


def backoff_ns(attempt: int, initial_ns: int, factor: float, cap_ns: int) -> int:
    """Return the wait after the `attempt`-th failure (counted from 1), in nanoseconds.

    It reads numbers that come from a row, which anybody may have written, so it never raises: a wait that
    overflows is the cap, and one that makes no sense is 0.
    """
    cap_ns = min(max(cap_ns, 0), _LONGEST_NS)
    try:
        wait = initial_ns * float(factor) ** (max(attempt, 1) - 1)
    except OverflowError:
        return cap_ns
    if math.isnan(wait) or wait < 0:
        return 0
    return cap_ns if wait >= cap_ns else int(wait)
