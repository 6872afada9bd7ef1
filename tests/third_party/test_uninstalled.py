"""A plugin that is uninstalled leaves its rows deferred; installed again, it runs them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard import Engine, Task

WHEELS = os.environ.get("CALLBOARD_TEST_WHEELS", "")
"""A folder with the plugin's wheel; the environment in which this runs is one that may be changed."""

pytestmark = pytest.mark.skipif(not WHEELS, reason="uninstalls a distribution: tox -e third-party")

SERVING = Path(__file__).parent / "callboard_vanish" / "tests" / "serving.py"
ENQUEUE = """
import sys
from callboard import Engine
from callboard_vanish import DeleteMessage

Engine(sys.argv[1]).enqueue(DeleteMessage(group_id=b"g", message_id=b"1"))
"""
RUN = "import sys; from callboard import Engine; Engine(sys.argv[1]).run_due()"


def python(*arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def install() -> None:
    python("-m", "pip", "install", "--quiet", "--no-index", "--find-links", WHEELS, "callboard-vanish")


@pytest.fixture
def again() -> Iterator[None]:
    """Install the plugin again, whatever happens."""
    yield
    install()


def rows(url: str) -> list[Task]:
    return Engine(url, plugins=[]).tasks()


@pytest.mark.usefixtures("again")
def test_its_rows_wait_until_it_is_back(callboard_database: str, tmp_path: Path) -> None:
    python("-c", ENQUEUE, callboard_database)
    [enqueued] = rows(callboard_database)

    python("-m", "pip", "uninstall", "--quiet", "--yes", "callboard-vanish")
    python("-c", RUN, callboard_database)

    [deferred] = rows(callboard_database)
    assert deferred.state == "deferred"
    assert deferred == enqueued._replace(state="deferred", next_attempt_at_ns=deferred.next_attempt_at_ns)

    install()
    python(SERVING, callboard_database, tmp_path / "messages.db")

    assert rows(callboard_database) == []
    assert Engine(callboard_database, plugins=[]).dead_tasks() == []
