"""A terminal 40 columns wide: no line is longer, no cell is cut, and every column has its title."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from tests.engine.test_cli.invoking import callboard

from callboard import Engine, SystemClock

WIDTH = 40
GROUP = bytes.fromhex("0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d")
ERROR = "ValueError: " + "the mail server did not take it, and said that it is busy; " * 3


@pytest.fixture
def database(tmp_path: Path, make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> str:
    """Two live tasks of a group, one of none and for later, and a dead one with a long error."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    engine = make_engine(clock=SystemClock())
    for number in range(2):
        engine.enqueue(StringValue(value=str(number)), allow_unknown=True, group_id=GROUP)
    engine.enqueue(BytesValue(value=b"later"), allow_unknown=True, not_before=timedelta(days=9))
    doomed = engine.enqueue(StringValue(value="doomed"), allow_unknown=True)
    assert doomed.task_id is not None
    engine.cancel(doomed.task_id)
    engine.group(GROUP).created("alice", members=["bob"], super_admins=["alice"])
    engine.group(GROUP).leave_requested("bob", b"message")
    engine.stop()
    path = str(tmp_path / "callboard.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE callboard_dead_task SET last_error = ?, reason = 'exhausted'", (ERROR,))
    return path


def lines(*arguments: str, status: int = 0) -> list[str]:
    result = callboard(*arguments)
    assert result.exit_code == status, result.output
    return result.output.splitlines()


@pytest.mark.parametrize(
    ("command", "titles", "whole"),
    [
        (
            ["tasks", "list"],
            ["ID", "STATE", "TRIES", "DUE", "AGE", "GROUP", "KIND"],
            ["google.protobuf.BytesValue"],
        ),
        (["dead", "list"], ["ID", "DIED", "REASON", "KIND", "LAST ERROR"], ["exhausted", ERROR]),
        (["groups", "list"], ["CONSENT", "ACTIVE", "MEMBERS", "LEAVING", "GROUP"], [GROUP.hex()]),
        (["doctor"], ["SEVERITY", "FINDING"], ["no engine runs, and 2 tasks are due", "`callboard run`"]),
        (["kinds"], ["KIND", "PENDING", "RUNNING", "DEFERRED", "NEEDS SERVICE"], ["google.protobuf.StringValue"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_listing_is_a_block_for_each_row(
    database: str, command: list[str], titles: list[str], whole: list[str]
) -> None:
    shown = lines(*command, database, status=3 if command == ["doctor"] else 0)
    block = next(" ".join(part) for part in _blocks(shown) if all(title in " ".join(part) for title in titles))
    assert [block.index(title) for title in titles] == sorted(block.index(title) for title in titles)
    assert max(len(line) for line in shown if "/" not in line) <= WIDTH  # a path is the terminal's to fold
    # Folded lines as one: a long word may be folded within.
    folded = "".join("".join(line.split()) for line in shown)
    for text in whole:
        assert "".join(text.split()) in folded
    assert "…" not in folded.replace("0a1b2c3d…", "")  # which is how listings name a group


def _blocks(shown: list[str]) -> list[list[str]]:
    blocks: list[list[str]] = [[]]
    for line in shown:
        if line:
            blocks[-1].append(line)
        else:
            blocks.append([])
    return blocks


@pytest.mark.parametrize(
    "command",
    [["tasks", "show", "1"], ["dead", "show", "1"], ["groups", "show", GROUP.hex()], ["top", "--once"]],
    ids=lambda value: " ".join(value[:2]),
)
def test_what_is_known_of_one_thing_is_folded(database: str, command: list[str]) -> None:
    shown = (
        lines(*command[:2], database, *command[2:]) if command[0] != "top" else lines("top", database, "--once")
    )
    assert max(len(line) for line in shown if "/" not in line) <= WIDTH
    assert "…" not in "".join(shown).replace("0a1b2c3d…", "")


@pytest.mark.parametrize("command", [["--help"], ["tasks", "cancel", "--help"], ["copy", "--help"]], ids=" ".join)
def test_help_is_folded(script: Any, command: list[str]) -> None:
    done = script.run(*command, COLUMNS=str(WIDTH))
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= WIDTH


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_progress_fits(script: Any, database: str, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    process = script.start("copy", database, str(tmp_path / "copied.db"), stderr=theirs, COLUMNS=str(WIDTH))
    os.close(theirs)
    said = ""
    with suppress(OSError):  # which is how Linux says that nobody writes any more
        while part := os.read(ours, 10_000).decode(errors="replace"):
            said += part
    os.close(ours)
    assert process.wait() == 0
    assert "copying callboard_task: 3 of 3 rows" in said
    assert "\x1b" not in said
