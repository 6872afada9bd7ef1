"""A process that is going to be killed: start it, arm it, stop it, kill it, and know when it was last alive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from callboard.testing import CRASH_ENVIRONMENT

ROOT = Path(__file__).parents[2]

PATIENCE_S = 60.0
"""How long a process may take that does what it should; only spent when it does not."""


class Victim:
    """One process, from its start to its end.

    Attributes:
        name: Its name, which no other one has.
        armed: The crash point at which it is to die by itself.
        alive_at_ns: When it was last certainly alive, as far as this side can tell.
        nap_ns: From when to when it was halted, if it was and went on.
    """

    def __init__(
        self, name: str, module: str, options: dict[str, Any], folder: Path, armed: str | None = None
    ) -> None:
        """Start `python -m module OPTIONS`, which are JSON.

        Args:
            name: Its name.
            module: What to run.
            options: For it; `ready` is added, the file that it makes once it serves.
            folder: Where that file is, and `log`, to which its standard error goes.
            armed: A crash point, with a colon and the number of times that it is to be reached.
        """
        self.name = name
        self.armed = armed
        self.alive_at_ns = time.monotonic_ns()
        self.nap_ns: tuple[int, int] | None = None
        self._halted = False
        self._ready = folder / f"{name}.ready"
        environment = {key: value for key, value in os.environ.items() if key != CRASH_ENVIRONMENT}
        if armed is not None:
            environment[CRASH_ENVIRONMENT] = armed
        arguments = json.dumps(options | {"ready": str(self._ready)})
        with (folder / "log").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, arguments],
                stdin=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=environment,
            )

    @property
    def serves(self) -> bool:
        """Whether it has begun to serve."""
        return self._ready.exists()

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self._process.poll() == -signal.SIGKILL

    def tell(self, line: str) -> None:
        """Write a line to its stdin; one that is gone does not mind."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it, unless it was faster."""
        now_ns = time.monotonic_ns()
        if not self.is_gone and not self._halted:
            self.alive_at_ns = now_ns
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def halt(self) -> None:
        """Halt it, with everything it holds."""
        self.alive_at_ns = time.monotonic_ns()
        self._halted = True
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._halted = False
        self.nap_ns = (self.alive_at_ns, time.monotonic_ns())
        self._process.send_signal(signal.SIGCONT)

    def retire(self) -> None:
        """Have it come to its end in good order."""
        self._close()

    def release(self) -> int:
        """Wait until it has come to its end in good order, and return its exit status.

        One that does not end is aborted, with every thread's stack in its log.
        """
        self._close()
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Have it gone, whatever it does."""
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
