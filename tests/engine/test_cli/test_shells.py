"""What a shell does with the command: it completes its words, and closes its output before the end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from callboard import Engine, SystemClock


@pytest.fixture
def database(tmp_path: Path, make_engine: Callable[..., Engine]) -> str:
    engine = make_engine(clock=SystemClock())
    engine.enqueue(StringValue(value="x"), allow_unknown=True)
    return str(tmp_path / "callboard.db")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("callboard do", ["plain,doctor"]),
        ("callboard tasks pu", ["plain,pull-in"]),
        ("callboard dead purge --b", ["plain,--before"]),
        ("callboard doctor ser", ["file,ser"]),
    ],
)
def test_the_shell_completes(script: Any, words: str, completed: list[str]) -> None:
    number = len(words.split()) - 1
    done = script.run(_CALLBOARD_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(number))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == completed


def test_the_shell_gets_its_script(script: Any) -> None:
    done = script.run(_CALLBOARD_COMPLETE="bash_source")
    assert (done.returncode, done.stderr) == (0, "")
    assert "complete -o nosort -F" in done.stdout


@pytest.mark.parametrize(
    "command",
    [["tasks", "list"], ["tasks", "list", "--json"], ["kinds"], ["doctor"], ["top", "--once"], ["groups", "list"]],
    ids=" ".join,
)
def test_a_closed_pipe_ends_a_command_without_a_word(script: Any, database: str, command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = script.start(*command, database, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    _, said = process.communicate()
    assert (process.returncode, said) == (1, "")
