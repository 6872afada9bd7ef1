"""Files that cannot be used: one line that names the file and the remedy, and the file as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from callboard import Engine

pytestmark = pytest.mark.timeout(60)

LISTINGS = (["tasks", "list"], ["dead", "list"], ["groups", "list"], ["doctor"], ["top"], ["kinds"])
COMMANDS = (["run"], ["migrate"], *LISTINGS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "callboard.db"


@pytest.fixture
def migrated(make_engine: Callable[..., Engine], path: Path) -> Path:
    engine = make_engine()
    engine.migrate()
    engine.stop()
    return path


def check_refusal(script: Any, command: list[str], path: Path, remedy: str, prefix: Sequence[str] = ()) -> None:
    done = script.run(*command, str(path), prefix=prefix)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert str(path) in line
    assert remedy in line


@contextmanager
def untouched(path: Path) -> Iterator[None]:
    before = path.read_bytes()
    yield
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_file_that_is_no_database(script: Any, path: Path, command: list[str]) -> None:
    path.write_bytes(b"Dear diary, today I was taken for a database. " * 100)
    with untouched(path):
        check_refusal(script, command, path, "give the path of one, or of no file yet")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_of_a_newer_engine(script: Any, migrated: Path, command: list[str]) -> None:
    with closing(sqlite3.connect(migrated)) as connection, connection:
        connection.execute("INSERT INTO callboard_migration VALUES ('callboard', 9999, 'the future', 9999, 0)")
    with untouched(migrated):
        check_refusal(script, command, migrated, "upgrade with `pip install -U callboard`")


def test_a_locked_database(script: Any, migrated: Path) -> None:
    with closing(sqlite3.connect(migrated)) as connection:
        connection.execute("PRAGMA journal_mode = delete")
    # The file is not read while it is locked: closing it would drop this process's locks, SQLite's among them.
    with untouched(migrated), closing(sqlite3.connect(migrated, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with ThreadPoolExecutor() as pool:  # because each waits as long as SQLite's busy timeout
            remedy = "end its transaction and try again"
            checks = [pool.submit(check_refusal, script, each, migrated, remedy) for each in COMMANDS]
    for check in checks:
        check.result()


def unprivileged() -> list[str]:
    """Return what makes a command obey file permissions, which root by default does not."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root ignores permissions, and there is no setpriv to change that")
    return ["setpriv", "--bounding-set=-dac_override"]


def test_a_read_only_database_cannot_be_served(script: Any, migrated: Path) -> None:
    migrated.chmod(0o444)
    with untouched(migrated):
        check_refusal(script, ["run"], migrated, "make the file and its folder writable", unprivileged())


def test_a_read_only_file_cannot_be_migrated(script: Any, path: Path) -> None:
    path.touch(0o444)
    with untouched(path):
        check_refusal(script, ["migrate"], path, "make the file and its folder writable", unprivileged())


@pytest.mark.parametrize("listing", LISTINGS, ids=" ".join)
def test_a_read_only_database_can_be_listed(script: Any, migrated: Path, listing: list[str]) -> None:
    migrated.chmod(0o444)
    done = script.run(*listing, str(migrated), prefix=unprivileged())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_folder_is_no_database(script: Any, path: Path, command: list[str]) -> None:
    path.mkdir()
    done = script.run(*command, str(path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(path) in line
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("command", (["run"], ["migrate"]), ids=" ".join)
def test_a_database_in_a_folder_that_does_not_exist(script: Any, path: Path, command: list[str]) -> None:
    missing = path / "service.db"
    done = script.run(*command, str(missing))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(missing) in line
    assert "check that its folder exists" in line
    assert not path.exists()
