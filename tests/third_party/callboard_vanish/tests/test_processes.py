"""A service that is killed at any instant deletes, when it runs again, what was to vanish, and nothing else."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from callboard import Engine
from callboard.testing import CRASH_POINTS, FakeClock, run_until_crash
from callboard_vanish import MessageStore
from callboard_vanish.sqlite import SqliteMessages

POINTS = [point for point in CRASH_POINTS if ".complete." not in point]  # the handler does not use ctx.complete


def serve(url: str, path: Path) -> None:
    """Schedule and delete what is due; the engine's reconcile finds it."""
    Engine(url, services={MessageStore: SqliteMessages(path)}, clock=FakeClock()).run_due()


@pytest.mark.parametrize("point", [*POINTS, "vanish.deleted"])
def test_a_crash_at_any_point_loses_no_deletion(
    make_engine: Any, callboard_database: str, callboard_clock: FakeClock, tmp_path: Path, point: str
) -> None:
    messages = SqliteMessages(tmp_path / "messages.db")
    messages.add(b"g", b"1", "goes", callboard_clock.now_ns())
    messages.add(b"g", b"2", "stays", None)

    run_until_crash(serve, callboard_database, tmp_path / "messages.db", at=point)
    engine: Engine = make_engine(plugins=None, services={MessageStore: messages})
    engine.run_due()

    assert messages.texts() == ["stays"]
    assert engine.tasks() == []
    assert engine.dead_tasks() == []


def test_a_service_that_is_killed_goes_on_when_it_is_started_again(
    make_engine: Any, callboard_database: str, tmp_path: Path
) -> None:
    messages = SqliteMessages(tmp_path / "messages.db")
    for number in range(20):
        messages.add(b"group %d" % (number % 4), b"%d" % number, f"goes {number}", time.time_ns())
    messages.add(b"group 1", b"kept", "stays", None)
    host = Path(__file__).with_name("serving.py")
    command = [sys.executable, str(host), callboard_database, str(tmp_path / "messages.db")]

    with subprocess.Popen([*command, "hold"], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        assert service.stdout.readline().startswith("deleting ")
        service.kill()
    assert service.returncode == -signal.SIGKILL
    assert len(messages.texts()) == 21

    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (again.returncode, again.stderr) == (0, "")
    assert sorted(again.stdout.splitlines()) == sorted(f"deleting {number}" for number in range(20))
    assert messages.texts() == ["stays"]
    engine: Engine = make_engine(plugins=None, services={MessageStore: messages})
    assert engine.tasks() == []
    assert engine.dead_tasks() == []
