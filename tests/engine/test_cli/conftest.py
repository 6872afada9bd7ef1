"""The console script as a process of its own, and packages that exist only for one test."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import pytest
from tests.installed import describe

SCRIPT = Path(sysconfig.get_path("scripts")) / "callboard"


class Script:
    """The installed `callboard` script."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._started: list[subprocess.Popen[str]] = []

    def run(
        self, *arguments: str, prefix: Sequence[str] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end, behind another program if `prefix` names one, with further variables if given."""
        command = [*prefix, str(SCRIPT), *arguments]
        variables = {**self._environment, **environment}
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)

    def start(
        self,
        *arguments: str,
        stdin: int | None = None,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.STDOUT,
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start it; what it prints and logs comes in one stream, in order."""
        variables = {**self._environment, **environment}
        process = subprocess.Popen(
            [str(SCRIPT), *arguments], env=variables, stdin=stdin, stdout=stdout, stderr=stderr, text=True
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory of packages that processes of `script` find."""
    path = tmp_path / "site"
    path.mkdir()
    return path


@pytest.fixture
def script(site: Path) -> Iterator[Script]:
    running = Script({**os.environ, "PYTHONPATH": str(site), "PYTHONWARNINGS": "error", "COLUMNS": "80"})
    yield running
    running.close()


@pytest.fixture
def install(site: Path) -> Callable[..., None]:
    """Install a distribution of one module, with its entry points, as `install(name, source, {group: line})`."""

    def make(name: str, source: str, **entry_points: str) -> None:
        (site / f"{name}.py").write_text(dedent(source))
        describe(site, name, **entry_points)

    return make
