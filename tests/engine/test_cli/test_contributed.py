"""Commands that other packages contribute, the broken ones among them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(60)

COMMAND = """
    import click
    import callboard

    NOTHING = None

    print("imported")

    @click.command
    @click.option("--fail", is_flag=True)
    def greet(fail):
        "Greet the world."
        if fail:
            raise callboard.CallboardError("no greeting\\ntoday")
        click.echo("hello")

    @click.command
    def run():
        click.echo("not the engine's")
"""


@pytest.fixture(autouse=True)
def packages(install: Callable[..., None]) -> None:
    install("acme", COMMAND, callboard_commands="greet = acme:greet\nrun = acme:run\nnothing = acme:NOTHING")
    install("broken", "import absent_package", callboard_commands="broken = broken:command")


def test_a_contributed_command_runs(script: Any) -> None:
    done = script.run("greet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\nhello\n", "")


def test_its_own_help_is_shown(script: Any) -> None:
    assert "Usage: callboard greet [OPTIONS]\n\n  Greet the world." in script.run("greet", "--help").stdout


def test_an_error_of_the_engine_is_one_line_there_too(script: Any) -> None:
    done = script.run("greet", "--fail")
    assert (done.returncode, done.stderr) == (1, "Error: no greeting today\n")


def test_help_lists_commands_without_importing_them(script: Any) -> None:
    done = script.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "imported" not in done.stdout
    assert re.search(r"^  greet +\(brought by acme 1\.0\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^  broken +\(brought by broken 1\.0\)$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "broken",
            "ModuleNotFoundError: No module named 'absent_package'; repair, upgrade or uninstall broken 1.0",
        ),
        ("nothing", "acme:NOTHING is no click command; repair, upgrade or uninstall acme 1.0"),
    ],
)
def test_a_broken_command_says_why_it_is_unavailable(script: Any, name: str, reason: str) -> None:
    done = script.run(name)
    assert done.returncode == 1
    assert done.stderr == f"Error: `callboard {name}` is unavailable: {reason}\n"


def test_a_contributed_command_cannot_replace_one_of_the_engine(script: Any) -> None:
    assert "Run the tasks of DATABASE" in script.run("run", "--help").stdout


def test_plugins_lists_commands_and_what_is_wrong_with_them(script: Any, install: Callable[..., None]) -> None:
    install("sick", "raise SystemExit('tired')", callboard="sick = sick", callboard_commands="sick = sick:command")
    printed = script.run("plugins", "--json").stdout
    document = json.loads(printed.removeprefix("imported\n"))
    commands = {entry["name"]: entry for entry in document["commands"]}
    assert commands["greet"] == {"name": "greet", "package": "acme 1.0", "problem": None}
    assert "absent_package" in commands["broken"]["problem"]
    assert commands["run"]["problem"] == "unavailable: Callboard has a command of this name"
    assert "SystemExit: tired" in commands["sick"]["problem"]
    (plugin,) = [entry for entry in document["plugins"] if entry["name"] == "sick"]
    assert plugin == {
        "name": "sick",
        "package": "sick 1.0",
        "loaded": False,
        "blocked": False,
        "kinds": [],
        "problems": {"import": "SystemExit: tired"},
    }
    table = script.run("plugins").stdout
    assert "`callboard sick` is unavailable: SystemExit: tired;" in " ".join(table.split())
    assert max(map(len, table.splitlines())) <= 80
