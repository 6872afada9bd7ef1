"""`callboard run` when its surroundings fail: what it says, and whether it goes on or exits with status 1."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from tests.engine.faults.damage import damage
from tests.engine.faults.disks import fill
from tests.engine.test_cli.processes import PLUGIN, lines_until, tasks

from callboard import DatabaseUnavailableError, Engine, SystemClock

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX signals and FIFOs"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "callboard.db"


@pytest.fixture
def served(script: Any, path: Path) -> Any:
    """Return a process that serves the file, and has nothing to do."""
    process = script.start("run", str(path))
    lines_until(process, "Ctrl-C stops\n")
    return process


def remove(path: Path) -> None:
    path.rename(path.with_suffix(".aside"))


def replace(path: Path) -> None:
    with Engine(f"sqlite:///{path}.other", plugins=[]) as other:
        other.migrate()
    os.replace(f"{path}.other", path)


def damage_due_index(path: Path) -> None:
    """Damage an index on which each look at the due tasks begins."""
    damage(path, "callboard_task_due")


def migrate_by_a_newer_engine(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO callboard_migration VALUES ('callboard', 999, 'what is to come', 999, 1)")


def inode(path: Path) -> int | None:
    """Return which file it is."""
    return path.stat().st_ino if path.exists() else None


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (remove, "was removed"),
        (replace, "was replaced by another file"),
        (damage_due_index, "is damaged; restore it"),
        (migrate_by_a_newer_engine, "was written by a newer Callboard"),
    ],
)
def test_a_file_that_is_removed_replaced_or_damaged_exits_1(
    served: Any, path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(path)
    before = inode(path)

    rest, _ = served.communicate()

    assert served.returncode == 1
    assert f"ERROR   no task is claimed or finished, and waiting is no remedy: database {path} {says}" in rest
    assert rest.splitlines()[-1].startswith(f"Error: database {path} {says}")
    assert inode(path) == before


def test_a_file_that_was_damaged_before_the_start_exits_1(
    script: Any, make_engine: Callable[..., Engine], path: Path
) -> None:
    engine = make_engine()
    engine.migrate()
    engine.stop()
    damage_due_index(path)

    done = script.run("run", str(path))

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"Error: database {path} is damaged; restore it from a backup")


def test_a_file_that_was_removed_beside_its_log_exits_1_and_none_is_made(
    script: Any, served: Any, path: Path
) -> None:
    served.kill()
    served.wait()
    log = Path(f"{path}-wal")
    before = log.read_bytes()
    path.unlink()

    done = script.run("run", str(path))

    assert (done.returncode, done.stdout) == (1, "")
    assert f"database {path} is missing, but its log {log} is there" in done.stderr
    assert (path.exists(), log.read_bytes()) == (False, before)


def test_a_file_that_is_locked_is_waited_for(
    script: Any, install: Callable[..., None], make_engine: Callable[..., Engine], path: Path, tmp_path: Path
) -> None:
    """For longer than SQLite's busy timeout, with an outcome that waits to be written."""
    install("acme", PLUGIN, callboard="acme = acme")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    make_engine(clock=SystemClock()).enqueue(StringValue(value=str(fifo)), allow_unknown=True)
    process = script.start("run", str(path))
    lines_until(process, "Ctrl-C stops\n", "handler started\n")

    with closing(sqlite3.connect(path, isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        fifo.write_text("")
        lines_until(
            process,
            f"ERROR   no task is claimed or finished until the database answers: database {path} is locked by"
            " another connection",
        )
        rival.execute("ROLLBACK")
    lines_until(process, "the database answers again\n")
    process.terminate()
    process.communicate()

    assert process.returncode == 0
    assert tasks(script, str(path)) == []


def test_a_disk_that_is_full_is_waited_for(
    script: Any, install: Callable[..., None], make_engine: Callable[..., Engine], small_disk: Path
) -> None:
    install("acme", PLUGIN, callboard="acme = acme")
    path, fifo = small_disk / "callboard.db", small_disk / "fifo"
    os.mkfifo(fifo)
    engine = make_engine(database=f"sqlite:///{path}", clock=SystemClock())
    engine.enqueue(StringValue(value=str(fifo)), allow_unknown=True)
    process = script.start("run", str(path))
    lines_until(process, "Ctrl-C stops\n", "handler started\n")

    filler = fill(small_disk)
    with pytest.raises(DatabaseUnavailableError, match="no room to grow"):
        for number in range(1_000):
            engine.enqueue(Int64Value(value=number), allow_unknown=True, not_before=timedelta(days=1))
    fifo.write_text("")
    says = f"until the database answers: database {path} has no room to grow; free some disk space"
    lines_until(process, f"ERROR   no task is claimed or finished {says}")
    filler.unlink()
    lines_until(process, "the database answers again\n")
    process.terminate()
    process.communicate()

    assert process.returncode == 0
    assert tasks(script, str(path)) == []


def test_a_listing_tells_which_process_holds_a_task(
    script: Any, install: Callable[..., None], make_engine: Callable[..., Engine], path: Path, tmp_path: Path
) -> None:
    install("acme", PLUGIN, callboard="acme = acme")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    make_engine(clock=SystemClock()).enqueue(StringValue(value=str(fifo)), allow_unknown=True)
    process = script.start("run", str(path))
    lines_until(process, "Ctrl-C stops\n", "handler started\n")

    document = json.loads(script.run("tasks", "list", str(path), "--json").stdout)
    [node], [task] = document["nodes"], tasks(script, str(path))
    assert node == {"id": task["owner"], "host": socket.gethostname(), "pid": process.pid}
    table = script.run("tasks", "list", str(path)).stdout
    assert f"on {socket.gethostname()}:{process.pid}"[:28] in table

    fifo.write_text("")
    process.terminate()
    process.communicate()
    assert process.returncode == 0


def test_sigterm_hands_back_what_has_not_begun(
    script: Any, install: Callable[..., None], make_engine: Callable[..., Engine], path: Path, tmp_path: Path
) -> None:
    """The one worker is in a long handler; the claimed row behind it keeps its attempts, and exit says 1."""
    install("acme", PLUGIN, callboard="acme = acme")
    fifos = [tmp_path / name for name in ("first", "second")]
    engine = make_engine(clock=SystemClock())
    for fifo in fifos:
        os.mkfifo(fifo)
        engine.enqueue(StringValue(value=str(fifo)), allow_unknown=True)
    process = script.start("run", str(path), "--workers", "1", "--timeout", "1")
    lines_until(process, "Ctrl-C stops\n", "handler started\n")
    [running, waiting] = tasks(script, str(path))
    assert {running["state"], waiting["state"]} == {"running"}

    process.terminate()
    rest, _ = process.communicate()

    assert process.returncode == 1
    assert "SIGTERM: waiting up to 1 s for running tasks" in rest
    assert "a task was still running after 1 s and runs again at the next start" in rest
    assert sorted((task["state"], task["attempts"]) for task in tasks(script, str(path))) == [
        ("pending", 0),
        ("running", 0),
    ]
