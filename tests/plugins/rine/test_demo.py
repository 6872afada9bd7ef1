"""`callboard demo` as whoever tries Callboard runs it: the installed command, in a process of its own."""

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import sysconfig
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callboard import Engine
from callboard.wire import KpLiveness
from callboard_rine.demo.ledger import Ledger
from callboard_rine.demo.result import Result

pytestmark = pytest.mark.slow

CALLBOARD = str(Path(sysconfig.get_path("scripts")) / "callboard")
TIMEOUT_S = 60
GOOD = Result(
    evicted=2,
    installations_added=3,
    key_packages_rotated=1,
    unknown_deferred=1,
    crashes_survived=1,
    accepted=13,
    lost=0,
    surplus_commits=0,
    converged=True,
    seconds=8.0,
)


def start(temporary: Path, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """Start `callboard demo` with its own folder for temporary files."""
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.Popen(
        [CALLBOARD, "demo", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for its end; return exit status, stdout and stderr."""
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, stdout, stderr


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run another command to its end."""
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_demo_keeps_every_promise_and_says_so_in_one_line_of_json(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    status, stdout, stderr = end(start(tmp_path, "--json", "--keep", str(kept)))
    assert status == 0, stderr

    (line,) = stdout.splitlines()
    result = json.loads(line)
    assert result.pop("seconds") < 30
    assert result.pop("accepted") >= 9  # three recurring, three for the laptop, two for who left, one unknown
    assert result == {
        "evicted": 2,
        "installations_added": 3,
        "key_packages_rotated": 1,
        "unknown_deferred": 1,
        "crashes_survived": 1,
        "lost": 0,
        "surplus_commits": 0,
        "converged": True,
    }
    assert "SIGKILL" in stderr
    assert "EpochRejectedError" in stderr
    assert "FAILED" not in stderr

    tasks = json.loads(run(CALLBOARD, "tasks", "list", "--json", str(kept / "callboard.db")).stdout)
    assert "acme.calls.RingMembers" in str(tasks)
    again = run(CALLBOARD, "demo", "--keep", str(kept))
    assert again.returncode == 2
    assert "is not empty" in again.stderr


def test_without_a_terminal_it_is_plain_lines_and_nothing_is_left_behind(tmp_path: Path) -> None:
    status, stdout, stderr = end(start(tmp_path))
    assert (status, stderr) == (0, ""), stdout
    assert stdout.isascii()
    assert "\x1b" not in stdout
    checks = stdout.splitlines()[-len(GOOD.checks()) :]
    assert all(check.startswith("  ok      ") for check in checks)
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_the_task_table_is_shown_live(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = start(tmp_path, stdout=theirs)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:  # how Linux says that the other side of a terminal is gone
        pass
    os.close(ours)
    status, _, stderr = end(process)
    assert status == 0, (shown[-4_000:].decode(), stderr)
    assert b"The task table" in shown
    assert b"running" in shown or b"pending" in shown


def test_ctrl_c_ends_it_with_its_child_and_cleans_up(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    while "The engine starts" not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    status, _, stderr = end(process)
    assert status == 1
    assert stderr.strip().startswith("Error: stopped by Ctrl-C")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize(
    ("prelude", "complaint"),
    [
        ("sys.modules['rine_mls'] = None", "rine-mls cannot be imported"),
        ("import tempfile; tempfile.tempdir = '/nonexistent'", "needs a writable folder"),
    ],
)
def test_what_is_missing_is_said_in_one_line(prelude: str, complaint: str) -> None:
    code = f"import sys; {prelude}; from callboard.cli import main; main(['demo'])"
    found = run(sys.executable, "-c", code)
    assert (found.returncode, found.stdout) == (1, "")
    (line,) = found.stderr.splitlines()
    assert line.startswith("Error: ")
    assert complaint in line


@pytest.mark.parametrize(
    "broken",
    [
        {"evicted": 1},
        {"installations_added": 2},
        {"key_packages_rotated": 0},
        {"unknown_deferred": 0},
        {"crashes_survived": 0},
        {"lost": 1},
        {"surplus_commits": 1},
        {"converged": False},
    ],
)
def test_one_broken_promise_is_a_failure(broken: dict[str, Any]) -> None:
    assert GOOD.is_good()
    assert not replace(GOOD, **broken).is_good()


def test_the_ledger_misses_a_task_that_vanishes(tmp_path: Path) -> None:
    database = tmp_path / "callboard.db"
    with Engine(f"sqlite:///{database}", plugins=["kp_liveness"], execute=False) as engine:
        ledger = Ledger(database)
        done, vanished, cancelled, live = [
            engine.enqueue(KpLiveness(), key=key).task_id or 0 for key in ("done", "vanished", "cancelled", "live")
        ]
        assert ledger.accepted() == {done, vanished, cancelled, live}
        engine.cancel(cancelled)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("DELETE FROM callboard_task WHERE id IN (?, ?)", (done, vanished))
        ledger.done.add(done)
        lost = ledger.lost((task.id for task in engine.tasks()), (dead.task_id for dead in engine.dead_tasks()))
        assert lost == {vanished}
