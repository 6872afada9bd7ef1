"""What people do wrong with each command: one line that helps, an honest status, and nothing changed by half."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from tests.engine.test_cli.invoking import callboard
from tests.engine.test_cli.processes import PLUGIN, lines_until

from callboard import Engine, SystemClock

pytestmark = pytest.mark.timeout(60)

STRING = "google.protobuf.StringValue"
LOOKS = (
    "tasks list D",
    "tasks show D 1",
    "dead list D",
    "dead show D 1",
    "groups list D",
    "groups show D 0a",
    "doctor D",
    "top D --once",
    "kinds D",
)
CHANGES = (
    "tasks retry D 1",
    "tasks pull-in D 1 --by 1s",
    "tasks cancel D 1",
    f"dead retry D --kind {STRING}",
    "dead purge D --yes",
)
COMMANDS = (*LOOKS, *CHANGES, "migrate D", "run D", "copy D copied.db", "copy copied.db D")


def words(command: str, database: str) -> list[str]:
    """Return a command line with the database in the place of D."""
    return [database if word == "D" else word for word in command.split()]


@pytest.fixture
def database(tmp_path: Path, make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> str:
    """A live task of a group, and a dead one; the working directory is beside it."""
    engine = make_engine(clock=SystemClock())
    for group_id in (b"\x0a", None):
        engine.enqueue(StringValue(value=str(group_id)), allow_unknown=True, group_id=group_id)
    engine.cancel(2)
    engine.stop()
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return str(tmp_path / "callboard.db")


def content(database: str) -> list[list[Any]]:
    with closing(sqlite3.connect(database)) as connection:
        return [
            connection.execute(f"SELECT * FROM callboard_{table} ORDER BY id").fetchall()
            for table in ("task", "dead_task")
        ]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/x", "the database must be a URL such as sqlite:///service.db"),
        ("sqlite://x.db", "the database must be a URL such as sqlite:///service.db"),
        ("sqlite:x.db", "has :// in it: sqlite:///service.db"),
        ("postgresql:/host/x", "has :// in it: sqlite:///service.db"),
        ("", "give a file: sqlite:///service.db"),
        ("sqlite:///", "give a file: sqlite:///service.db"),
        (":memory:", "give a file: sqlite:///service.db"),
    ],
)
def test_a_wrong_url_is_a_command_line_that_makes_no_sense(database: str, url: str, says: str) -> None:
    for command in COMMANDS:
        arguments = words(command, url)
        if arguments[0] == "copy":
            arguments = [database if word == "copied.db" else word for word in arguments]
        result = callboard(*arguments)
        [line] = [line for line in result.output.splitlines() if line.startswith("Error: ")]
        assert (result.exit_code, says in line) == (2, True), (command, result.output)
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["tasks", "cancel", "x.db", "seven"],
            "'seven' is no ID: a whole number from 1 on, as the listings show it",
        ),
        (["tasks", "show", "x.db", "0"], "'0' is no ID"),
        (["dead", "retry", "x.db", "1", "-2"], "No such option"),
        (["dead", "retry", "x.db", "1,2"], "'1,2' is no ID"),
        (["dead", "retry", "x.db"], "the IDs of dead tasks, as `callboard dead list` shows them, or --kind"),
        (["dead", "retry", "x.db", "1", "--kind", STRING], "give IDs or --kind, not both"),
        (["demon"], "plugins bring commands, too: `callboard plugins` lists what is installed"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_wrong_in_a_command_line_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = callboard(*arguments)
    assert result.exit_code == 2
    assert says in result.output.splitlines()[-1]
    assert os.listdir() == []


def test_a_plugin_that_is_missing_takes_nothing_away(database: str) -> None:
    """Tasks of a kind that nobody here knows are shown and changed as others are."""
    assert "unknown here" in callboard("kinds", database).output
    for command in ("tasks show D 1 --payload", "dead show D 1 --payload", "tasks retry D 1", "dead retry D 1"):
        result = callboard(*words(command, database))
        assert result.exit_code == 0, result.output
    assert "no running engine serves the kind" not in callboard("doctor", database).output  # since none runs


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX signals and FIFOs")
def test_every_command_may_be_given_while_an_engine_runs(
    script: Any, install: Callable[..., None], make_engine: Callable[..., Engine], database: str, tmp_path: Path
) -> None:
    install("acme", PLUGIN, callboard="acme = acme")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM callboard_task")
    engine = make_engine(clock=SystemClock())
    engine.enqueue(StringValue(value=str(fifo)), allow_unknown=True, group_id=b"\x0a")
    engine.stop()
    process = script.start("run", database)
    lines_until(process, "Ctrl-C stops\n", "handler started\n")

    for command in (*LOOKS, *CHANGES):
        # No id is used twice, so its task is number 3.
        result = callboard(*words(command.replace("D 1", "D 3") if command[0] == "t" else command, database))
        # The doctor may find kinds of installed plugins for which nobody here has the services.
        assert result.exit_code in ((0, 3) if command == "doctor D" else (0,)), (command, result.output)
    assert callboard("migrate", database).output == "the tables are up to date\n"
    result = callboard("copy", database, "copied.db")
    assert result.exit_code == 1
    assert f"is in use by node 1 (process {process.pid} on " in result.output
    assert os.listdir() == []

    fifo.write_text("")
    process.terminate()
    assert process.wait() == 0


def test_of_commands_given_at_once_each_is_done_whole(
    script: Any, make_engine: Callable[..., Engine], database: str
) -> None:
    engine = make_engine(clock=SystemClock())
    for number in range(40):
        task_id = engine.enqueue(StringValue(value=f"doomed {number}"), allow_unknown=True).task_id
        assert task_id is not None
        engine.cancel(task_id)
    retries = [script.start("dead", "retry", database, "--kind", STRING) for _ in range(2)]
    cancels = [script.start("tasks", "cancel", database, "1") for _ in range(2)]
    said = [process.communicate()[0] for process in (*retries, *cancels)]
    assert [process.returncode for process in retries] == [0, 0]
    assert sorted(process.returncode for process in cancels) == [0, 1]
    assert sum("task 1 is cancelled" in text for text in said) == 1
    assert sum("has no live task 1" in text for text in said) == 1
    live, dead = content(database)
    # The one that was cancelled may have been taken back, if it died early enough.
    assert len(live) + len(dead) == 42
    assert len({row[3] for row in live}) == len(live)  # identities


def test_of_migrations_given_at_once_one_makes_the_tables(script: Any, tmp_path: Path) -> None:
    started = [script.start("migrate", str(tmp_path / "new.db")) for _ in range(3)]
    said = sorted(process.communicate()[0] for process in started)
    assert [process.returncode for process in started] == [0, 0, 0]
    assert [text.partition(" ")[0] for text in said] == ["applied", "the", "the"]


def into_a_closed_pipe(script: Any, *arguments: str) -> tuple[int, str]:
    """Run a command whose output nobody reads; return its status and what it says on stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = script.start(*arguments, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    _, said = process.communicate()
    return process.returncode, said


@pytest.mark.parametrize("command", ["dead list D", "dead show D 1", "groups show D 0a", "plugins", "--help"])
def test_a_closed_pipe_ends_what_looks_without_a_word(script: Any, database: str, command: str) -> None:
    assert into_a_closed_pipe(script, *words(command, database)) == (1, "")


@pytest.mark.parametrize("command", ["tasks cancel D 1", "dead retry D 1", "dead purge D --yes"])
def test_a_closed_pipe_leaves_no_change_half_done(script: Any, database: str, command: str) -> None:
    assert into_a_closed_pipe(script, *words(command, database)) == (1, "")
    live, dead = content(database)
    assert (len(live), len(dead)) == {"tasks cancel D 1": (0, 2), "dead retry D 1": (2, 0)}.get(command, (1, 0))
