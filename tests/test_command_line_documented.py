"""`docs/reference/command-line.md` has every command and option, and its examples run."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from tests import pages
from tests.engine.rows import sql
from tests.engine.test_cli.conftest import install, script, site
from tests.engine.test_cli.processes import lines_until

from callboard import Engine, SystemClock
from callboard.cli import main
from callboard.cli._group import LazyCommand

__all__ = ["install", "script", "site"]

PAGE = pages.read("docs/reference/command-line.md")
SECTIONS = dict(re.findall(r"^### `callboard ([^`]+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
GROUP = bytes.fromhex("0a1b2c")
RECEIPT = "acme.receipts.SendReceipt"
LIVE, DEAD = 17, 3
REMINDERS = """
from google.protobuf.wrappers_pb2 import StringValue
from callboard import TaskKind, hookimpl

@hookimpl
def callboard_task_kinds():
    return [TaskKind(StringValue, lambda message, ctx: None)]
"""


def leaves(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Walk the tree of commands to those that do something; plugins' own are theirs to document."""
    if isinstance(command, LazyCommand):
        command = command.load()
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name, child in command.commands.items():
        yield from leaves(child, *path, name)


COMMANDS = dict(leaves(main))


def options_of(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def test_each_command_has_a_section_and_there_is_none_of_another() -> None:
    assert sorted(SECTIONS) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_documented_and_there_is_none_of_another(name: str) -> None:
    assert set(re.findall(r"^\| `(--[a-z-]+)` \| .", SECTIONS[name], re.MULTILINE)) == options_of(COMMANDS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_an_example_on_the_page_and_in_its_help(name: str) -> None:
    assert all(line.startswith(f"callboard {name}") for line in examples(name))
    assert f"Example: callboard {name}" in str(COMMANDS[name].help)


def examples(name: str) -> list[str]:
    [block] = re.findall(r"^```sh\n(.+?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL)
    return list(block.splitlines())


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]) -> Path:
    """A folder with a database that has what the examples name, and the plugin that they name."""
    monkeypatch.chdir(tmp_path)
    install("reminders", REMINDERS, callboard="reminders = reminders")
    engine = Engine("sqlite:///service.db", plugins=[], execute=False, clock=SystemClock())
    for number in range(1, 4):
        doomed = engine.enqueue(StringValue(value=f"dead {number}"), allow_unknown=True).task_id
        assert doomed is not None
        engine.cancel(doomed)
    engine.enqueue(StringValue(value="live"), allow_unknown=True, group_id=GROUP, not_before=timedelta(hours=1))
    engine.group(GROUP).created("alice")
    engine.stop()
    url = f"sqlite:///{tmp_path / 'service.db'}"
    sql(url, "UPDATE callboard_task SET id = ?", LIVE)
    sql(url, "UPDATE callboard_dead_task SET kind = ?", RECEIPT)
    return tmp_path


@pytest.mark.parametrize("line", [line for name in COMMANDS if name != "run" for line in examples(name)])
def test_the_examples_run(service: Path, script: Any, line: str) -> None:
    if line.startswith("callboard pins check"):
        script.run("pins", "write", "reminders")
    done = script.run(*line.split()[1:])
    assert (done.returncode, done.stdout != "") == (0, True), done.stderr


def test_the_shell_reads_what_the_page_says(script: Any) -> None:
    [(name, value)] = re.findall(r"^(\w+)=(\w+) callboard$", PAGE, re.MULTILINE)
    assert "COMP_WORDS" in script.run(**{name: value}).stdout


def test_the_example_of_run_serves(service: Path, script: Any) -> None:
    [line] = examples("run")
    process = script.start(*line.split()[1:])
    lines_until(process, "Ctrl-C stops\n")
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 0
