"""Help imports no engine: what it imports is told by name, since its time depends on the machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from tests.engine.test_cli.invoking import callboard

from callboard.cli import main
from callboard.cli._group import LazyCommand

IMPORTED = """
import sys
already = set(sys.modules)
from callboard.cli import main
main.main({arguments!r}, prog_name="callboard", standalone_mode=False)
print(*sorted(set(sys.modules) - already), file=sys.stderr)
"""
# Not click, nor loguru, which is told at once to be silent, whatever the host does next.
HEAVY = {"google", "peewee", "playhouse", "pluggy", "psycopg", "pykka", "rich", "sqlite3"}


def lazy_commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], LazyCommand]]:
    if isinstance(command, LazyCommand):
        yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from lazy_commands(child, *path, name)


COMMANDS = dict(lazy_commands(main))


@pytest.mark.parametrize("arguments", [["--help"], ["tasks", "--help"]])
def test_help_imports_neither_engine_nor_database(arguments: list[str]) -> None:
    code = IMPORTED.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    modules = done.stderr.split()
    ours = {name for name in modules if name.partition(".")[0] == "callboard"}
    assert ours == {"callboard", "callboard.cli", "callboard.cli._group", "callboard.errors"}
    assert HEAVY.isdisjoint(name.partition(".")[0] for name in modules)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_is_listed_with_the_first_sentence_of_its_help(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert command.load().name == path[-1]
    assert str(command.load().help).splitlines()[0] == command.short_help
    *group, name = path
    [line] = [line for line in callboard(*group, "--help").output.splitlines() if line.split()[:1] == [name]]
    assert str(command.short_help).startswith(" ".join(line.split()[1:]))
