"""The tutorial is followed here, step by step, in an empty folder.

Two things are done in another way than by its reader. What `pip install -e .` would write into the environment is
written into a folder beside it, because pip would ask the package index for setuptools. And Ctrl-C comes when the
command has done what the step is about.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest
from tests import pages
from tests.engine.acting import eventually
from tests.engine.rows import sql
from tests.installed import describe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")

PAGE = "docs/tutorial/first-plugin.md"
GO = "cd "
INSTALL = "python -m pip install -e '.[test]'"
SERVE = "callboard run notes.db"
KIND = "acme_notes.DeliverNote"
LIVE = f"SELECT 1 FROM callboard_task WHERE kind = '{KIND}'"  # others' plugins have theirs
DEAD = "SELECT 1 FROM callboard_dead_task"


def install(folder: Path, site: Path) -> None:
    """Do what `pip install -e .` does, as far as engines can see it."""
    given = ConfigParser()
    given.read(folder / "setup.cfg", encoding="utf-8")
    lines = given["options.entry_points"]["callboard"].strip()
    describe(site, given["metadata"]["name"], given["metadata"]["version"], callboard=lines)


class Reader:
    """Somebody who follows the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "of_my_own"
        self.folder.mkdir()
        self._site = folder / "site"
        # What each `callboard run` of the page is to have done when Ctrl-C comes.
        self._until: list[Callable[[], bool]] = [
            lambda: self._are_delivered("ada/1") and len(sql(self._url, DEAD)) == 1,
            lambda: self._are_delivered("ada/1", "ben/2", "ada/3"),
        ]

    def follow(self) -> dict[str, list[str]]:
        """Return what each command printed, each time that it was run."""
        said: dict[str, list[str]] = {}
        for snippet in pages.snippets(PAGE):
            if snippet.file is not None:
                pages.write(snippet, self.folder)
                continue
            for command in snippet.source.splitlines():
                said.setdefault(command, []).append(self._do(command))
        assert self._until == []
        return said

    def _do(self, command: str) -> str:
        if command.startswith(GO):
            self.folder /= command.removeprefix(GO)
            return ""
        if command == INSTALL:
            install(self.folder, self._site)
            return ""
        if command == SERVE:
            return self._serve(self._until.pop(0))
        return pages.shell(command, self.folder, **self._variables())

    def _variables(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(self._site), str(self.folder)])}

    def _serve(self, is_done: Callable[[], bool]) -> str:
        process = subprocess.Popen(
            SERVE.split(),
            cwd=self.folder,
            env=pages.environment(**self._variables()),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            eventually(lambda: is_done() or process.poll() is not None)
        finally:
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate()
        assert process.returncode == 0, said
        return said

    def _are_delivered(self, *notes: str) -> bool:
        there = all((self.folder / "mailboxes" / f"{note}.txt").exists() for note in notes)
        return there and sql(self._url, LIVE) == []

    @property
    def _url(self) -> str:
        return f"sqlite:///{self.folder / 'notes.db'}"


@pytest.mark.timeout(300)  # two dozen processes, where many tests run at once
def test_the_tutorial_ends_with_a_working_plugin(tmp_path: Path) -> None:
    reader = Reader(tmp_path)

    said = reader.follow()

    for tests, passed in zip(said["python -m pytest -q"], ("", "2 ", "3 "), strict=True):
        assert f"{passed}passed" in tests
    assert any(
        line.split()[:2] == ["acme_notes", "acme-notes"] for line in said["callboard plugins"][0].splitlines()
    )
    assert KIND in said["callboard kinds"][0]
    posted = [line for command, lines in said.items() if command.startswith("python post.py") for line in lines]
    assert posted == ["note 1\n", "note 2\n", "note 3\n"]
    assert KIND in said["callboard tasks list notes.db"][0]
    assert "discarded" in said["callboard dead list notes.db"][0]
    [contract] = [lines[0] for command, lines in said.items() if "--callboard-contract=" in command]
    assert " passed" in contract and "failed" not in contract
    delivered = {
        file.relative_to(reader.folder / "mailboxes").as_posix(): file.read_text()
        for file in (reader.folder / "mailboxes").rglob("*.txt")
    }
    assert delivered == {"ada/1.txt": "welcome, ada", "ben/2.txt": "welcome, ben", "ada/3.txt": "are you there?"}
