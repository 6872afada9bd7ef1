"""`callboard migrate` brings the tables of installed plugins up to date, too, and says which it could not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from tests.engine.rows import sql

from callboard import Engine

PLUGIN = """
    from callboard import Migration, hookimpl

    @hookimpl
    def callboard_migrations():
        return [Migration("sqlite", number, title, script, 1) for number, title, script in {steps!r}]
"""
GOOD = PLUGIN.format(steps=[(1, "the notes", "CREATE TABLE acme_note (text TEXT)")])
BAD = PLUGIN.format(
    steps=[(1, "the notes", "CREATE TABLE bad_note (text TEXT)"), (2, "more", "INSERT INTO nowhere")]
)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "service.db")


def test_it_lists_what_it_applied(script: Any, install: Callable[..., None], database: str) -> None:
    install("acme", GOOD, callboard="acme = acme")
    first, second = script.run("migrate", database), script.run("migrate", database, "--json")

    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines()[1:] == ["applied acme 0001 the notes"]
    assert json.loads(second.stdout) == {"applied": [], "problems": {}}


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["", "json"])
def test_it_names_each_plugin_that_failed_after_the_others_are_done(
    script: Any, install: Callable[..., None], database: str, options: list[str]
) -> None:
    install("good", GOOD, callboard="good = good")
    install("bad", BAD, callboard="bad = bad")
    install("absent", "import absent_package", callboard="absent = absent")
    done = script.run("migrate", database, *options)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "plugin absent: import failed: ModuleNotFoundError" in done.stderr
    assert "plugin bad: migration 0002 failed: callboard.errors.StoreError: database" in done.stderr
    if options:
        answer = json.loads(done.stdout)
        assert answer["applied"][1:] == ["bad 0001 the notes", "good 0001 the notes"]
        assert {name: list(found) for name, found in answer["problems"].items()} == {
            "absent": ["import"],
            "bad": ["migration 0002"],
        }
    tables = {name for (name,) in sql(f"sqlite:///{database}", "SELECT name FROM sqlite_master")}
    assert {"acme_note", "bad_note"} <= tables


def test_a_command_that_changes_tasks_makes_no_tables(
    script: Any, install: Callable[..., None], database: str
) -> None:
    engine = Engine(f"sqlite:///{database}", plugins=[], execute=False)
    task_id = engine.enqueue(StringValue(value="x"), allow_unknown=True).task_id
    engine.cancel(task_id or 0)
    engine.stop()
    install("acme", GOOD, callboard="acme = acme")

    assert script.run("dead", "retry", database, "1").returncode == 0
    assert sql(f"sqlite:///{database}", "SELECT name FROM callboard_migration WHERE name = 'acme'") == []
