"""Ctrl-C in each command: one line that helps, status 1, and nothing changed by half."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from tests.postgres import postgres_url, psycopg, sql

from callboard import Engine, SystemClock

__all__ = ["postgres_url"]

pytestmark = pytest.mark.timeout(120)

STRING = "google.protobuf.StringValue"
GROUP = b"\x0a"

READERS = (
    ["tasks", "list"],
    ["tasks", "show", "1"],
    ["dead", "list"],
    ["dead", "show", "1"],
    ["groups", "list"],
    ["groups", "show", GROUP.hex()],
    ["doctor"],
    ["top", "--once"],
    ["kinds"],
)
CHANGES = (["tasks", "cancel", "1"], ["tasks", "retry", "1"], ["tasks", "pull-in", "1", "--by", "1s"])
RESUMABLE = (["dead", "retry", "--kind", STRING], ["dead", "purge", "--yes"])


@pytest.fixture
def database(make_engine: Callable[..., Engine], postgres_url: str) -> str:
    """A live task of a group, and two dead ones."""
    engine = make_engine(clock=SystemClock(), database=postgres_url)
    engine.enqueue(StringValue(value="live"), allow_unknown=True, group_id=GROUP)
    for number in range(2):
        task_id = engine.enqueue(StringValue(value=str(number)), allow_unknown=True).task_id
        assert task_id is not None
        engine.cancel(task_id)
    engine.stop()
    return postgres_url


def rows(url: str) -> list[Any]:
    return [sql(url, f"SELECT * FROM callboard_{table} ORDER BY id") for table in ("task", "dead_task")]


def placed(command: list[str], database: str) -> list[str]:
    """Return a command line with the database where it belongs."""
    words = 2 if command[0] in ("tasks", "dead", "groups") else 1
    return [*command[:words], database, *command[words:]]


def interrupt_all(processes: list[subprocess.Popen[str]], connection: Any) -> list[tuple[int, str]]:
    """Send SIGINT to each once all wait for a lock of `connection`; return their statuses and what they said."""
    waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
    while connection.execute(waiting).fetchone()[0] < len(processes):
        ended = [process.communicate()[0] for process in processes if process.poll() is not None]
        assert ended == []
    for process in processes:
        process.send_signal(signal.SIGINT)
    said = [process.communicate()[0] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


@pytest.mark.parametrize(
    ("commands", "lock", "says"),
    [
        (READERS, "ACCESS EXCLUSIVE", "nothing is changed by half\n"),
        (CHANGES, "ACCESS EXCLUSIVE", "nothing is changed by half\n"),
        (RESUMABLE, "SHARE", "the same command does the rest\n"),
    ],
    ids=["readers", "changes", "resumable"],
)
def test_ctrl_c_while_a_command_waits(
    script: Any, database: str, commands: Sequence[list[str]], lock: str, says: str
) -> None:
    before = rows(database)
    with psycopg.connect(database) as connection:
        connection.execute(f"LOCK TABLE callboard_task, callboard_dead_task, callboard_group IN {lock} MODE")
        started = [script.start(*placed(command, database)) for command in commands]
        ended = interrupt_all(started, connection)
        connection.rollback()
    for command, (status, said) in zip(commands, ended, strict=True):
        assert (status, said.count("\n")) == (1, 1), (command, said)
        assert said.startswith("Error: stopped by Ctrl-C; ") and said.endswith(says), (command, said)
    assert rows(database) == before


def test_ctrl_c_in_a_copy(script: Any, database: str, tmp_path: Path) -> None:
    target = tmp_path / "copied.db"
    with psycopg.connect(database) as connection:
        connection.execute("LOCK TABLE callboard_dead_task IN ACCESS EXCLUSIVE MODE")
        [(status, said)] = interrupt_all([script.start("copy", database, str(target))], connection)
        connection.rollback()
    assert status == 1
    assert said.splitlines()[-1].startswith("Error: stopped by Ctrl-C; ")
    assert script.run("copy", database, str(target)).returncode == 0


def test_ctrl_c_in_a_migration_that_waits(script: Any, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("LOCK TABLE callboard_migration IN ACCESS EXCLUSIVE MODE")
        [(status, said)] = interrupt_all([script.start("migrate", database)], connection)
        connection.rollback()
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith("Error: stopped by Ctrl-C; ")


def test_ctrl_c_at_the_question(script: Any, make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    engine = make_engine(clock=SystemClock())
    task_id = engine.enqueue(StringValue(value="doomed"), allow_unknown=True).task_id
    assert task_id is not None
    engine.cancel(task_id)
    process = script.start("dead", "purge", str(tmp_path / "callboard.db"), stdin=subprocess.PIPE)
    said = ""
    while not said.endswith("[y/N]: "):
        said += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate()
    assert process.returncode == 1
    assert rest.splitlines()[-1] == "Error: nothing was deleted; --yes deletes without asking"
    assert len(engine.dead_tasks()) == 1
