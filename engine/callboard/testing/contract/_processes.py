"""Have functions called in processes of their own, of which any may be killed."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from callboard.testing.contract._given import Given
from callboard.testing.contract._server import Order, Whose

_LOG_CHARS = 20_000  # what the watchdog says of all threads must be there from its first line
_SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
    "from callboard.testing.contract._server import main; main()"
)


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        status: its exit status, or minus the number of the signal that ended it.
        answer: what the function returned; `None` if it raised, or did not come to its end.
        error: the traceback of what it raised, or of what kept it from being called.
        log: the last of what it printed and logged.
    """

    status: int
    answer: Any
    error: str | None
    log: str


class Processes:
    """Processes that know plugins and their surroundings; forked from one, so that each takes milliseconds."""

    def __init__(self, folder: Path) -> None:
        """Start none yet; logs go to `folder`."""
        self._folder = folder
        self._count = 0
        self._server: subprocess.Popen[bytes] | None = None

    def call(self, given: Given, function: Callable[..., Any], *arguments: Any) -> Ended:
        """Call `function(given, *arguments)` in a process of its own, and wait for its end."""
        if self._server is None:
            self._server = _started()
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None and stdout is not None
        self._count += 1
        answer, log = self._folder / f"{self._count}.answer", self._folder / f"{self._count}.log"
        pickle.dump(Order(_whose(given), function, arguments, str(answer), str(log)), stdin)
        stdin.flush()
        status, impediment = pickle.load(stdout)
        found, error = pickle.loads(answer.read_bytes()) if answer.exists() else (None, impediment)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return Ended(status, found, error, text[-_LOG_CHARS:])

    def close(self) -> None:
        """End them."""
        if self._server is None:
            return
        for stream in (self._server.stdin, self._server.stdout):
            if stream is not None:
                stream.close()
        self._server.wait()


def _started() -> subprocess.Popen[bytes]:
    path = [os.path.abspath(entry) for entry in sys.path]
    # Hashes of strings differ from this process's, which shows what depends on them.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE, json.dumps(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )


def _whose(given: Given) -> Whose:
    tests = type(given)
    plugin = given.plugin if isinstance(given.plugin, str) else None
    return Whose(tests.__module__, inspect.getfile(tests), tests.__qualname__, plugin)
