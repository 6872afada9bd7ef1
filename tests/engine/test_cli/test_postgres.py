"""The commands on PostgreSQL: as on a file, and without a write where they only look."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from tests.engine.test_cli.processes import PLUGIN, lines_until, tasks
from tests.postgres import postgres_url, sql

from callboard import Engine, SystemClock

__all__ = ["postgres_url"]

pytestmark = pytest.mark.timeout(60)

LISTINGS = (["tasks", "list"], ["dead", "list"], ["kinds"])
COMMANDS = (["run"], ["migrate"], *LISTINGS)


@pytest.fixture
def filled(make_engine: Callable[..., Engine], postgres_url: str) -> str:
    """A database with two live tasks and a dead one."""
    engine = make_engine(clock=SystemClock(), database=postgres_url)
    for number in range(3):
        engine.enqueue(StringValue(value=str(number)), allow_unknown=True, origin="test")
    engine.cancel(3)
    engine.stop()
    return postgres_url


def state_of(url: str) -> list[Any]:
    """Return what any write to the database changes: its relations, and how many rows were ever written."""
    relations = sql(
        url, "SELECT oid, relname, relfilenode FROM pg_class WHERE relname LIKE 'callboard%' ORDER BY oid"
    )
    return [
        relations,
        [sql(url, f"SELECT xmin, ctid FROM {name}") for _, name, _ in relations if is_table(url, name)],
    ]


def is_table(url: str, name: str) -> bool:
    return sql(url, "SELECT 1 FROM pg_tables WHERE tablename = %s", name) != []


def printed(script: Any, *arguments: str) -> Any:
    done = script.run(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_migrate_makes_the_tables_once(script: Any, postgres_url: str) -> None:
    done = [script.run("migrate", postgres_url) for _ in range(2)]
    assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 2
    assert done[0].stdout.startswith("applied 0001 ")
    assert done[1].stdout == "the tables are up to date\n"


def test_the_listings_show_the_rows_and_write_nothing(script: Any, filled: str) -> None:
    before = state_of(filled)

    listed = printed(script, "tasks", "list", filled)
    assert [(task["id"], task["state"], task["origin"]) for task in listed["tasks"]] == [
        (1, "pending", "test"),
        (2, "pending", "test"),
    ]
    assert [task["id"] for task in printed(script, "tasks", "list", filled, "--after", "1")["tasks"]] == [2]
    assert [task["task_id"] for task in printed(script, "dead", "list", filled)["dead"]] == [3]
    kinds = {entry["kind"]: entry for entry in printed(script, "kinds", filled)["kinds"]}
    assert kinds["google.protobuf.StringValue"]["tasks"] == {"pending": 2, "running": 0, "deferred": 0}
    for listing in LISTINGS:
        done = script.run(*listing, filled)
        assert (done.returncode, done.stderr) == (0, "")
        assert "StringValue" in done.stdout

    assert state_of(filled) == before


@pytest.mark.parametrize("listing", LISTINGS, ids=" ".join)
def test_a_listing_of_a_database_without_tables_makes_none(
    script: Any, postgres_url: str, listing: list[str]
) -> None:
    done = script.run(*listing, postgres_url)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "has no up-to-date Callboard tables where its search_path leads; run `callboard migrate`" in line
    assert state_of(postgres_url) == [[], []]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_of_a_newer_engine(script: Any, filled: str, command: list[str]) -> None:
    sql(filled, "INSERT INTO callboard_migration VALUES ('callboard', 9999, 'the future', 9999, 0)")
    before = state_of(filled)
    done = script.run(*command, filled)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "upgrade with `pip install -U callboard`" in line
    assert state_of(filled) == before


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_that_does_not_exist(script: Any, postgres_url: str, command: list[str]) -> None:
    done = script.run(*command, postgres_url.replace("/callboard_", "/no_callboard_"))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: database no_callboard_")
    assert "check the name in the URL, or make one with CREATE DATABASE" in line


@pytest.fixture
def fifo(
    install: Callable[..., None], make_engine: Callable[..., Engine], postgres_url: str, tmp_path: Path
) -> Path:
    """What the handler of the one task waits for."""
    install("acme", PLUGIN, callboard="acme = acme")
    path = tmp_path / "fifo"
    os.mkfifo(path)
    engine = make_engine(clock=SystemClock(), database=postgres_url)
    engine.enqueue(StringValue(value=str(path)), allow_unknown=True)
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX signals and FIFOs")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_exits_0(script: Any, postgres_url: str, fifo: Path, number: signal.Signals) -> None:
    process = script.start("run", postgres_url)
    said = lines_until(process, "Ctrl-C stops\n", "handler started\n")
    assert f"serving database {postgres_url.split('/')[3].partition('?')[0]} at " in said
    (task,) = tasks(script, postgres_url)
    assert task["state"] == "running"
    assert f":{process.pid} " in script.run("tasks", "list", postgres_url).stdout
    process.send_signal(number)
    lines_until(process, f"{number.name}: waiting up to 30 s for running tasks; Ctrl-C ends at once\n")
    fifo.write_text("")
    rest, _ = process.communicate()
    assert "handler ended\n" in rest
    assert process.returncode == 0
    assert tasks(script, postgres_url) == []
    assert sql(postgres_url, "SELECT * FROM callboard_node") == []


# copy


@pytest.fixture
def file(make_engine: Callable[..., Engine], tmp_path: Path) -> Path:
    """An SQLite file with 2,500 live tasks and a dead one."""
    path = tmp_path / "service.db"
    engine = make_engine(clock=SystemClock(), database=f"sqlite:///{path}")
    engine.enqueue_many([BytesValue(value=b"%d" % number) for number in range(2_501)], allow_unknown=True)
    engine.cancel(1)
    engine.stop()
    return path


def test_copy_tells_of_its_progress_on_stderr_and_of_the_result_on_stdout(
    script: Any, file: Path, postgres_url: str
) -> None:
    done = script.run("copy", str(file), postgres_url)
    assert done.returncode == 0
    for step in ("copying", "checking"):
        assert f"{step} callboard_dead_task: 1 of 1 rows\n" in done.stderr
        assert f"{step} callboard_task: 2500 of 2500 rows\n" in done.stderr
    table = [line.split()[:3] for line in done.stdout.splitlines()]
    assert ["callboard_task", "2500", "2500"] in table
    assert f"has what database {file} has" in done.stdout

    again = script.run("copy", str(file), postgres_url, "--json")
    assert again.returncode == 0
    assert "comparing callboard_task: 2500 of 2500 rows\n" in again.stderr
    document = json.loads(again.stdout)
    found = {entry["table"]: entry for entry in document["tables"]}
    assert (found["callboard_task"]["rows"], found["callboard_task"]["written"]) == (2_500, 0)
    assert len(found["callboard_task"]["hash"]) == 64
    assert document["source"] == f"database {file}"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_copy_draws_bars_on_a_terminal(script: Any, file: Path, postgres_url: str) -> None:
    ours, theirs = os.openpty()
    process = script.start("copy", str(file), postgres_url, "--json", stderr=theirs)
    os.close(theirs)
    said = ""
    with suppress(OSError):  # which is how Linux says that nobody writes any more
        while part := os.read(ours, 10_000).decode(errors="replace"):
            said += part
    os.close(ours)
    json.loads(process.stdout.read())
    assert process.wait(timeout=30) == 0
    assert "copying callboard_task" in said
    assert "2500/2500" in said
    assert "\x1b[" in said


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("back", [False, True])
def test_a_copy_that_is_killed_goes_on(
    script: Any, file: Path, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    source, target = str(file), postgres_url
    if back:
        assert script.run("copy", source, target).returncode == 0
        source, target = postgres_url, str(tmp_path / "other.db")
    # One batch of dead tasks and two of the three batches of live ones.
    killed = script.run("copy", source, target, prefix=["env", "CALLBOARD_CRASH_AT=callboard.copy.committed:3"])
    assert killed.returncode == -signal.SIGKILL
    assert "copying callboard_task" not in killed.stderr
    assert len(tasks_of(script, target)) == 2_000

    done = script.run("copy", source, target, "--json")
    assert done.returncode == 0, done.stderr
    written = {entry["table"]: entry["written"] for entry in json.loads(done.stdout)["tables"]}
    assert (written["callboard_dead_task"], written["callboard_task"]) == (0, 500)
    assert tasks_of(script, target) == tasks_of(script, source)


def tasks_of(script: Any, database: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = printed(script, "tasks", "list", database, "--limit", "5000")["tasks"]
    return listed


def test_copy_refuses_in_one_line(
    script: Any, file: Path, postgres_url: str, filled: str, make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing.db")
    for arguments, status, message in (
        (
            [str(file), filled],
            1,
            "has rows in callboard_dead_task that no copy has written; give an empty database",
        ),
        ([missing, str(tmp_path / "new.db")], 1, "missing.db does not exist; check the path"),
        ([str(file), str(file)], 2, "is both source and target; give two databases"),
        ([str(file), "mysql://db/name"], 2, "not a URL that begins with mysql://"),
        ([str(file)], 2, "Missing argument 'TARGET'"),
    ):
        done = script.run("copy", *arguments)
        assert (done.returncode, done.stdout) == (status, "")
        assert message in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "new.db").exists()
    with make_engine(database=f"sqlite:///{file}") as engine:
        done = script.run("copy", str(file), str(tmp_path / "new.db"))
        assert done.returncode == 1
        assert f"is in use by node {engine.nodes()[0].id} (process {os.getpid()} on " in done.stderr
    assert not (tmp_path / "new.db").exists()
