"""What the how-to shows is run here, as its reader would; and the reference has every promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import pages
from tests.engine.test_cli.conftest import SCRIPT, install, site

import callboard
from callboard.testing.contract import PluginContract

__all__ = ["install", "site"]

PAGE = "docs/how-to/check-a-plugin.md"
HOW_TO = pages.read(PAGE)
REFERENCE = pages.read("docs/reference/plugin-contract.md")
SNIPPETS = pages.files(PAGE)
COMMANDS = [shown.source.rstrip() for shown in pages.snippets(PAGE, "sh")]
[REPORT] = [shown.source for shown in pages.snippets(PAGE, "text")]
[WAIVED] = re.findall(r"^    (waived = .+)$", HOW_TO, re.MULTILINE)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(site: Path, tmp_path: Path, install: Callable[..., None]) -> Run:
    """Return what runs a command in the plugin's folder, where the plugin is installed."""
    install("reminders", SNIPPETS["reminders.py"], callboard="reminders = reminders")
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "setup.cfg").write_text("[tool:pytest]\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONWARNINGS": "error"}

    def make(line: str) -> subprocess.CompletedProcess[str]:
        name, *arguments = line.split()
        command = [str(SCRIPT)] if name == "callboard" else [sys.executable, "-m", name, "-p", "no:cacheprovider"]
        return subprocess.run(
            [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
        )

    return make


@pytest.fixture
def checkout(run: Run, tmp_path: Path) -> Path:
    """The plugin's folder, with its test file."""
    folder = tmp_path / "checkout"
    (folder / "test_contract.py").write_text(SNIPPETS["test_contract.py"], encoding="utf-8")
    (folder / "test_other.py").write_text("def test_other(): raise ValueError", encoding="utf-8")
    return folder


def test_the_contract_is_found_where_callboard_lies_below_the_folder_of_the_run(run: Run, tmp_path: Path) -> None:
    """As in a checkout that has its virtual environment in it."""
    below = Path(callboard.__file__).parent

    found = run(f"{COMMANDS[1]} --collect-only -q -c setup.cfg --rootdir {below} {below}")

    assert "::test_killed[google.protobuf.StringValue]" in found.stdout, found.stdout + found.stderr
    assert re.search(r"^1\d tests collected", found.stdout, re.MULTILINE), found.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--callboard-contract=", "--callboard-contract: give the name of the plugin's entry point"),
        (
            "--callboard-contract=reminders --callboard-contract-fault=foo",
            "'foo' is no fault; take it",
        ),
        ("--callboard-contract=nobody", "no plugin 'nobody' is installed"),
    ],
)
def test_a_wrong_option_is_refused(run: Run, options: str, said: str) -> None:
    refused = run(f"pytest {options}")
    assert refused.returncode in (2, 4)
    assert said in refused.stdout + refused.stderr


@pytest.mark.exhaustive
def test_pins_are_written_and_a_report_says_what_the_contract_lacks(run: Run) -> None:
    write, contract = COMMANDS
    written = run(write)
    assert written.stdout == "pins/reminders.json: kept 0, added 2, dropped 0\n", written.stderr

    bare = run(f"{contract} -q")

    assert bare.returncode == 1
    assert "requires Notifier, so its handler cannot run; give them" in bare.stdout
    assert "see it again: pytest --callboard-contract=reminders -k 'test_killed and google" in bare.stdout
    assert re.search(r"^10 failed, 5 passed", bare.stdout, re.MULTILINE), bare.stdout


@pytest.mark.exhaustive
def test_the_plugin_keeps_the_contract(run: Run, checkout: Path) -> None:
    write, contract = COMMANDS
    run(write)

    done = run(f"{contract} -q")

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^14 passed, 1 skipped, \d+ deselected", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.exhaustive
def test_a_plugin_that_needs_nothing_needs_no_test_file(run: Run, install: Callable[..., None]) -> None:
    source = """
    from google.protobuf.wrappers_pb2 import StringValue
    from callboard import TaskKind, hookimpl

    @hookimpl
    def callboard_task_kinds():
        return [TaskKind(StringValue, lambda message, ctx: None)]
    """
    install("notes", source, callboard="notes = notes")
    run("callboard pins write notes")

    done = run("pytest -q --callboard-contract=notes")

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^13 passed, 2 skipped", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.exhaustive
def test_a_promise_is_waived(run: Run, checkout: Path) -> None:
    with (checkout / "test_contract.py").open("a", encoding="utf-8") as file:
        file.write(f"\n    {WAIVED}\n")

    waived = run(f"{COMMANDS[1]} -q -rs -k recreates")

    assert "waived: a reminder that was never asked for is no loss" in waived.stdout


@pytest.mark.exhaustive
def test_the_report_is_as_it_is_shown(run: Run, checkout: Path) -> None:
    shown = SNIPPETS["test_contract.py"]
    broken = shown.replace("self.folder / key)", "self.folder / f'{len(list(self.folder.iterdir()))}')")
    assert broken != shown
    (checkout / "test_contract.py").write_text(broken, encoding="utf-8")

    [again] = re.findall(r"^see it again: pytest '(.+)' (--\S+)$", REPORT, re.MULTILINE)

    failed = run(f"pytest -q {' '.join(again)}")

    assert failed.returncode == 1
    report = failed.stdout[failed.stdout.index("reminders breaks the promise") :]
    assert report.startswith(REPORT), report
    other = run("pytest -q -k test_killed --callboard-contract-fault=killed:callboard.claim.committed:1")
    assert other.returncode == 0, other.stdout


def test_a_name_that_is_none_is_one_line(run: Run) -> None:
    done = run("pytest --callboard-contract=remainders")
    assert done.returncode != 0
    assert "no plugin 'remainders' is installed (installed:" in done.stdout + done.stderr


def test_a_fault_that_is_none_is_said_to_be_none(run: Run) -> None:
    done = run("pytest --callboard-contract=reminders --callboard-contract-fault=nonsense")
    assert "'nonsense' is no fault; take it from a report" in done.stdout + done.stderr


def test_the_reference_has_every_promise_and_no_other() -> None:
    promises = {name.removeprefix("test_") for name in dir(PluginContract) if name.startswith("test_")}
    tables = REFERENCE.partition('## What "leaves the same" means')[0]
    assert set(re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)) == promises


def test_the_reference_has_all_that_an_author_may_override() -> None:
    section = REFERENCE.partition("## The surroundings")[2].partition("## Pins")[0]
    own = {
        name
        for each in PluginContract.__mro__
        if each.__module__.startswith("callboard.")
        for name in vars(each)
        if not name.startswith(("_", "test_", "pytest_"))
    }
    assert set(re.findall(r"^\| `(\w+)(?:\(.*\))?` \|", section, re.MULTILINE)) == own
