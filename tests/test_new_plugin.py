"""What `callboard new-plugin` writes passes its own tests, linter and type checker, and its README is true."""

import os
import shutil
import subprocess
import sys
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import pages
from tests.engine.either_store import callboard_database
from tests.engine.rows import is_postgres, sql
from tests.engine.test_cli.invoking import callboard
from tests.engine.test_cli.test_new_plugin import LONGEST
from tests.installed import describe

__all__ = ["callboard_database"]

ROOT = Path(__file__).parent.parent
NAME = "acme_notes"


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Return the folder of a new plugin."""
    folder = tmp_path / "plugin"
    assert callboard("new-plugin", NAME, "--path", str(folder)).exit_code == 0
    return folder


def python(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def found(plugin: Path, tmp_path: Path) -> str:
    """Return a PYTHONPATH on which the plugin is as if it were installed, which takes downloads."""
    described = ConfigParser()
    described.read(plugin / "setup.cfg", encoding="utf-8")
    site = tmp_path / "site"
    describe(site, described["metadata"]["name"], callboard=described["options.entry_points"]["callboard"].strip())
    return f"{plugin}{os.pathsep}{site}"


def test_its_own_tests_pass(plugin: Path, found: str, callboard_database: str) -> None:
    server = {"TEST_POSTGRES": callboard_database} if is_postgres(callboard_database) else {}

    done = python(plugin, "-m", "pytest", "-q", "-p", "no:cacheprovider", PYTHONPATH=found, **server)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_its_readmes_service_runs(plugin: Path, found: str) -> None:
    [service] = pages.snippets(str(plugin / "README.md"), "python")

    done = python(plugin, "-W", "error", "-c", service.source, PYTHONPATH=found)

    assert (done.returncode, done.stderr) == (0, "")
    notes = sql(f"sqlite:///{plugin / 'service.db'}", f"SELECT text, deliveries FROM {NAME}_note")
    assert notes == [("hello", 1)]


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_it_keeps_the_contract_once_its_messages_are_pinned(plugin: Path, found: str) -> None:
    for arguments in (
        ("-c", "from callboard.cli import main; main()", "pins", "write", NAME),
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--callboard-contract={NAME}", "tests/contract.py"),
    ):
        done = python(plugin, *arguments, PYTHONPATH=found)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (plugin / "pins" / f"{NAME}.json").exists()


@pytest.mark.skipif(not (find_spec("ruff") and find_spec("mypy")), reason="needs ruff and mypy: tox -e types")
@pytest.mark.parametrize("name", [NAME, "a", LONGEST])
def test_it_is_clean_however_long_its_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    assert callboard("new-plugin", name, "--path", str(folder)).exit_code == 0

    for tool in (["ruff", "check", "--no-cache"], ["ruff", "format", "--check", "--no-cache"]):
        done = python(folder, "-m", *tool)
        assert done.returncode == 0, done.stdout + done.stderr
    done = python(folder, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(900)
@pytest.mark.skipif("CALLBOARD_TEST_INSTALL" not in os.environ, reason="needs the package index: tox -e install")
def test_it_does_all_its_set_up(plugin: Path, tmp_path: Path) -> None:
    engine = tmp_path / "callboard"
    shutil.copytree(ROOT, engine, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    set_up, pin = pages.snippets(str(plugin / "README.md"), "console")
    tox = ConfigParser(interpolation=None)
    tox.read(plugin / "tox.ini", encoding="utf-8")
    contract = tox["testenv:contract"]["commands"].removesuffix(" {posargs}")
    commands = (
        f"{sys.executable} -m venv .venv && .venv/bin/pip install {engine}",  # not a published one
        set_up.source.splitlines()[0],
        pin.source.splitlines()[0],
        f".venv/bin/{contract}",
    )

    said = []
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=plugin, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    assert "5 passed" in said[1]
    assert " passed" in said[3]
