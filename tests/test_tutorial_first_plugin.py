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
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import pages
from tests.engine.acting import eventually
from tests.engine.rows import sql
from tests.installed import describe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")

PAGE = "docs/tutorial/first-plugin.md"
INSTALL = "python -m pip install -e ."
SERVE = "callboard run letters.db"
LIVE = "SELECT 1 FROM callboard_task WHERE kind = 'google.protobuf.StringValue'"  # others' plugins have theirs
DEAD = "SELECT 1 FROM callboard_dead_task"


def install(folder: Path, site: Path) -> None:
    """Do what `pip install -e .` does, as far as engines can see it."""
    given = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    project = given["project"]
    points = project["entry-points"]["callboard"].items()
    lines = "\n".join(f"{name} = {target}" for name, target in points)
    describe(site, project["name"], project["version"], callboard=lines)
    for module in given["tool"]["setuptools"]["py-modules"]:
        assert (folder / f"{module}.py").exists()
    (site / "letters.pth").write_text(f"{folder}\n")


class Reader:
    """Somebody who follows the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "letters"
        self.folder.mkdir()
        self._site = folder / "site"
        self._path = os.pathsep.join([str(self._site), str(self.folder)])
        # What each `callboard run` of the page is to have done when Ctrl-C comes.
        self._until: list[Callable[[], bool]] = [
            lambda: self._are_delivered("ada") and len(sql(self._url, DEAD)) == 1,
            lambda: self._are_delivered("ada", "ben", "cleo"),
        ]

    def follow(self) -> list[str]:
        """Return what each command printed."""
        said = []
        for snippet in pages.snippets(PAGE):
            if snippet.file is not None:
                pages.write(snippet, self.folder)
                continue
            for command in snippet.source.splitlines():
                if command == INSTALL:
                    install(self.folder, self._site)
                elif command == SERVE:
                    said.append(self._serve(self._until.pop(0)))
                else:
                    said.append(pages.shell(command, self.folder, PYTHONPATH=self._path))
        assert self._until == []
        return said

    def _serve(self, is_done: Callable[[], bool]) -> str:
        process = subprocess.Popen(
            SERVE.split(),
            cwd=self.folder,
            env=pages.environment(PYTHONPATH=self._path),
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

    def _are_delivered(self, *letters: str) -> bool:
        there = all((self.folder / "delivered" / letter).exists() for letter in letters)
        return there and sql(self._url, LIVE) == []

    @property
    def _url(self) -> str:
        return f"sqlite:///{self.folder / 'letters.db'}"


@pytest.mark.timeout(300)  # a dozen processes, where many tests run at once
def test_the_tutorial_ends_with_a_working_plugin(tmp_path: Path) -> None:
    reader = Reader(tmp_path)

    first_tests, plugins, kinds, *posted, listed, _, dead, _, _, _, tests, _ = reader.follow()

    assert "2 passed" in first_tests
    assert any(line.split()[:2] == ["letters", "letters"] for line in plugins.splitlines())
    assert "google.protobuf.StringValue" in kinds
    assert posted == ["inserted\n", "inserted\n"]
    assert "google.protobuf.StringValue" in listed
    assert "discarded" in dead
    assert "3 passed" in tests
    assert {path.name: path.read_text().strip() for path in (reader.folder / "delivered").iterdir()} == {
        name: f"welcome, {name}" for name in ("ada", "ben", "cleo")
    }
