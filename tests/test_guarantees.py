"""The page of guarantees: every rule is on it, and every command it names can be run."""

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "guarantees.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"`(tox -e [^`]+)`", PAGE)))
TESTS = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))


def test_every_rule_is_on_the_page() -> None:
    rows = re.findall(r"^\| (\d+)(?: to (\d+))? \|", PAGE, re.MULTILINE)
    rules = [number for first, last in rows for number in range(int(first), int(last or first) + 1)]

    assert rules == list(range(1, 23))


def test_every_promise_has_a_fault_and_a_command() -> None:
    table = PAGE.partition("## What is promised")[2].partition("\n\n")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        _, _, promise, fault, commands, _ = (cell.strip() for cell in row.split("|"))
        assert promise.endswith(".")
        assert fault
        assert "`tox -e " in commands


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_what_exists(command: str) -> None:
    tox = ConfigParser()
    tox.read(ROOT / "tox.ini")
    environment, _, arguments = command.removeprefix("tox -e ").partition(" -- ")
    assert environment in tox["tox"]["env_list"].split(", ") or f"testenv:{environment}" in tox

    for path in re.findall(r"tests/\S+", arguments):
        assert (ROOT / path).exists()
    for rule in re.findall(r"-k (\w+)", arguments):
        assert f"def test_{rule}_" in TESTS
