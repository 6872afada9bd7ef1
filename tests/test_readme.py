"""What the README shows is run here, so that it cannot drift from what the code does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import pages

README = "README.md"
COMMANDS = [snippet.source.strip() for snippet in pages.snippets(README, "console")]
SOURCES = pages.files(README)


def test_the_plugin_and_the_service_run_as_they_are_shown(tmp_path: Path) -> None:
    for name, source in SOURCES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-W", "error", "service.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["sent: welcome, ada", "sent: welcome, ben"]
    assert done.stderr == ""


def test_they_are_as_short_as_the_readme_wants_them() -> None:
    lines = {name: len(source.strip().splitlines()) for name, source in SOURCES.items()}
    assert lines["service.py"] <= 12
    assert lines["receipts.py"] <= 24


def test_ci_runs_the_readmes_test_command() -> None:
    assert len(COMMANDS) == 2
    script = pages.read(".ci/run")
    for part in COMMANDS[1].split(" && "):
        assert part in script


@pytest.mark.timeout(900)
@pytest.mark.skipif("CALLBOARD_TEST_INSTALL" not in os.environ, reason="needs the package index: tox -e install")
def test_the_demo_command_does_all_its_set_up(tmp_path: Path) -> None:
    copy = tmp_path / "callboard"
    shutil.copytree(pages.ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))

    done = subprocess.run(["sh", "-c", COMMANDS[0]], cwd=copy, capture_output=True, text=True, timeout=800)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "What came of it" in done.stdout
