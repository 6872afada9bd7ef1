"""Named instants at which a test may kill the process, to show that nothing is lost there.

In production `reach` is two comparisons, made once for a batch and never for a task.
"""

from __future__ import annotations

import os
import signal

CRASH_POINTS = (
    "callboard.claim.committed",
    "callboard.settle.begun",
    "callboard.settle.written",
    "callboard.settle.committed",
    "callboard.complete.written",
    "callboard.complete.committed",
)
"""The engine's own points, in the order in which a task passes them. Plugins name theirs by their own name."""

ENVIRONMENT = "CALLBOARD_CRASH_AT"
"""The variable that arms a point in a process: `name`, or `name:n` for the n-th time it is reached."""


def _armed() -> tuple[str | None, int]:
    name, _, count = os.environ.get(ENVIRONMENT, "").partition(":")
    return (name or None), int(count or 1)


_name, _left = _armed()
_passed: list[str] | None = None


def arm(name: str | None, nth: int = 1) -> None:
    """Kill this process with SIGKILL when `name` is reached for the `nth` time; `None` disarms."""
    global _name, _left
    _name, _left = name, nth


def note(passed: list[str] | None) -> None:
    """Write the name of each point that is reached from now on into `passed`; `None` ends that."""
    global _passed
    _passed = passed


def reach(name: str) -> None:
    """Say that the process is at `name`; it does not return if that point is armed and its turn has come."""
    global _left
    if _passed is not None:
        _passed.append(name)
    if name != _name:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
