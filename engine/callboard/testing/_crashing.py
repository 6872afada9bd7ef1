"""Run a function in a process of its own that is killed at a crash point."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from callboard._crash_points import CRASH_POINTS, ENVIRONMENT
from callboard.errors import ConfigurationError

_KILLED = -signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM
"""The status of a process that was killed at a crash point."""


def run_until_crash(
    function: Callable[..., object], *arguments: Any, at: str, nth: int = 1, timeout: float = 60.0
) -> None:
    """Call a function in a new Python process that SIGKILL ends when it reaches a crash point.

    What is left of it is the database, for the test to open again and to see that nothing was lost.

    Args:
        function: one of a module's own, such as of the test's: the process loads that file, and what it imports.
            It makes its engine itself, on a database whose URL is among the arguments.
        arguments: for the function; they are pickled.
        at: the point's name, one of `CRASH_POINTS` or one that the code under test gives to `crash_point`.
        nth: the time it is reached at which to kill.
        timeout: after how many seconds the process has hung.

    Raises:
        AssertionError: the process ended without having been killed there, or hung; it shows what it printed.
        ConfigurationError: the function cannot be found by another process.
    """
    __tracebackhide__ = True
    path = inspect.getsourcefile(function)
    name = getattr(function, "__qualname__", repr(function))
    if path is None or not name.isidentifier():
        raise ConfigurationError(
            f"{name} cannot be called in another process; give a function at the top level of a file"
        )
    find = {"path": path, "module": function.__module__, "function": name}
    load = f"import sys; sys.path[:] = {sys.path!r}; from callboard.testing import _crashing_child as child"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", f"{load}; child.main()"],
            input=json.dumps(find).encode() + b"\n" + pickle.dumps(arguments),
            env=os.environ | {ENVIRONMENT: f"{at}:{nth}"},
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as hung:
        raise AssertionError(
            f"{name} had not reached {at} after {timeout:g} s\n{_printed(hung.stdout, hung.stderr)}"
        ) from None
    if ended.returncode != _KILLED:
        raise AssertionError(
            f"{name} ended with status {ended.returncode} and was not killed at {at} (time {nth}); the engine's"
            f" points are {', '.join(CRASH_POINTS)}\n{_printed(ended.stdout, ended.stderr)}"
        )


def _printed(*streams: bytes | None) -> str:
    return "\n".join(stream.decode(errors="replace").rstrip() for stream in streams if stream)
