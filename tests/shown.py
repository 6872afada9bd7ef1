"""What tests of the how-tos share: the files that a page shows, the errors that it tells of, and processes."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest
from tests import pages

WAIT_S = 60.0
"""How long a test waits for a process: far above what it takes, and only spent by one that fails."""

BLOCKING_MAILER = """
import os, pathlib, sys, threading


def say(line):
    sys.stdout.write(line + "\\n")  # at once: print writes the end by itself, after what others say meanwhile
    sys.stdout.flush()


class Mailer:
    def send(self, text):
        if text == "blocks" and not pathlib.Path("go_on").exists():
            say(f"blocked in {os.getpid()}")
            threading.Event().wait()
        say(f"sent: {text}")
"""
"""A mail server that stays in the middle of a mail until its process is killed."""

REPORT = """
import contextlib


@contextlib.contextmanager
def reported():
    try:
        yield
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("no error")
"""
"""A module for scripts that make mistakes on purpose."""


class Page:
    """One how-to."""

    def __init__(self, name: str) -> None:
        """Read `docs/how-to/NAME.md`."""
        page = f"docs/how-to/{name}.md"
        self.files = pages.files(page)
        text = pages.read(page)
        mistakes = text.partition("## Common mistakes")[2]
        code = re.findall(r"``(.+?)``|`([^`]+)`", mistakes, re.DOTALL)
        self._code = [" ".join((long or short).split()) for long, short in code]

    def write(self, folder: Path, **replaced: str) -> None:
        """Write the files that it shows, with `replaced` in place of some or beside them; a__b is a.b.py."""
        replacing = {f"{name.replace('__', '.')}.py": source for name, source in replaced.items()}
        for name, source in {**self.files, **replacing}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")

    def tells_of(self, error: str) -> bool:
        """Return whether this error, or the beginning of it, is among the common mistakes."""
        return any(len(code) > 25 and error.startswith(code) for code in self._code)


class Processes:
    """Processes of a service, which are gone at the end of the test."""

    def __init__(self, folder: Path) -> None:
        """Start them in `folder`."""
        self.folder = folder
        self._started: list[Popen[str]] = []

    def start(self, *arguments: str, warnings: str = "error") -> Popen[str]:
        """Start Python with these arguments; its stdout has its log, too."""
        homes = dict.fromkeys(("HOME", "XDG_RUNTIME_DIR"), str(self.folder))  # where gunicorn has a socket
        process = Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONWARNINGS": warnings, **homes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, status: int = 0, warnings: str = "error") -> list[str]:
        """Run Python with these arguments to its end; return the lines that it said."""
        process = self.start(*arguments, warnings=warnings)
        said, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == status, said
        return said.splitlines()

    def close(self) -> None:
        """End what is left."""
        for process in self._started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Return what starts processes in the test's own folder."""
    made = Processes(tmp_path)
    yield made
    made.close()


def said(process: Popen[str], pattern: str) -> re.Match[str]:
    """Wait until the process says something that matches."""
    assert process.stdout is not None
    before = ""
    for line in process.stdout:
        before += line
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"ended without {pattern}: {before}")


def post(port: int, path: str) -> tuple[int, str]:
    """Make a request; return the status and the text of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", path, headers={"Content-Length": "0"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
