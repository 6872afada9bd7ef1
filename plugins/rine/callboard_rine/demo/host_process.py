"""The demo's end of the host process: start it, push to it, hear from it, see it die."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Any, Self, cast

from callboard import CallboardError
from callboard.testing import CRASH_ENVIRONMENT

_PATIENCE_S = 60.0
_FRAME_S = 0.05
"""How often the task table is shown anew."""


class HostFailedError(CallboardError):
    """The host process ended when it should not have, or does not answer."""


class HostProcess:
    """One run of `host.py`; at the end of the block it is gone, one way or the other."""

    def __init__(
        self, folder: Path, done: set[int], meanwhile: Callable[[], None], crash_at: str | None = None
    ) -> None:
        """Start the host on the demo in `folder`.

        Args:
            folder: The demo's folder, which gets the host's log as well.
            done: Where to put the ids of the tasks that it reports as done.
            meanwhile: Called again and again while waiting for it.
            crash_at: The crash point to kill it at, if any.
        """
        self._done = done
        self._meanwhile = meanwhile
        self._idle_awaited, self._idle_heard = 1, 0
        self._ended = False
        self._reports: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._log = folder / "host.log"
        environment = {name: value for name, value in os.environ.items() if name != CRASH_ENVIRONMENT}
        if crash_at is not None:
            environment[CRASH_ENVIRONMENT] = crash_at
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "callboard_rine.demo.host", folder],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._input = cast(IO[str], self._process.stdin)
        self._reader = threading.Thread(target=self._read, name="host reports", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        """Return the process."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it if it still runs, and collect it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        with suppress(BrokenPipeError):
            self._input.close()

    def push(self, **event: object) -> None:
        """Tell the host of something; a dead one will find out from the network when it is started again."""
        self._idle_awaited += 1
        with suppress(BrokenPipeError):
            self._input.write(json.dumps(event) + "\n")
            self._input.flush()

    def settle(self) -> None:
        """Wait until the host has dealt with its start and every push, or has ended.

        Raises:
            HostFailedError: It takes too long.
        """
        self.wait(lambda: self._idle_heard >= self._idle_awaited)

    def wait(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached` says so, or the host has ended.

        Raises:
            HostFailedError: It takes too long.
        """
        deadline_s = monotonic() + _PATIENCE_S
        while not self._ended and not reached():
            if monotonic() > deadline_s:
                raise self._failure(f"has not got on for {_PATIENCE_S:.0f} s")
            self._meanwhile()
            self._hear()
        self._meanwhile()

    def expect_end(self, status: int) -> None:
        """Wait until the host has ended, and take in all that it reported.

        Args:
            status: The exit status that it is to end with; negative for a signal.

        Raises:
            HostFailedError: It ended with another one, or takes too long.
        """
        self.wait(lambda: False)
        ended_with = self._process.wait()
        if ended_with != status:
            raise self._failure(f"ended with status {ended_with}")

    def stop(self) -> None:
        """Have the host drain and end.

        Raises:
            HostFailedError: It fails in that, or takes too long.
        """
        with suppress(BrokenPipeError):
            self._input.close()
        self.expect_end(0)

    def _read(self) -> None:
        with cast(IO[str], self._process.stdout) as output:
            for line in output:
                self._reports.put(json.loads(line))
        self._reports.put(None)

    def _hear(self) -> None:
        try:
            report = self._reports.get(timeout=_FRAME_S)
        except queue.Empty:
            return
        if report is None:
            self._ended = True
        elif "idle" in report:
            self._idle_heard += 1
        else:
            self._done.update(report["done"])

    def _failure(self, what: str) -> HostFailedError:
        lines = self._log.read_text(errors="replace").splitlines()
        last = f", having logged: {lines[-1].strip()}" if lines else ""
        return HostFailedError(f"the engine's process {what}{last}; --keep DIR keeps its log, host.log")
