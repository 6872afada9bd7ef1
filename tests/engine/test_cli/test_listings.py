"""What `tasks list`, `dead list`, `kinds` and `migrate` print, to people and to scripts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import click
import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from tests.engine.test_cli.invoking import callboard, printed

from callboard import NEVER_NS, DeadTask, Engine, SystemClock, Task
from callboard.cli import _output, main

SECRET = "the payload is private"
GROUP = bytes.fromhex("0a1b2c3d4e5f")


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "callboard.db")


@pytest.fixture
def engine(make_engine: Callable[..., Engine], database: str) -> Engine:
    """Three pending tasks in the database, the second of a group and the third due in an hour, and one dead."""
    made = make_engine(clock=SystemClock())
    made.enqueue(StringValue(value=SECRET), allow_unknown=True, origin="test")
    made.enqueue(BytesValue(value=b"1"), allow_unknown=True, group_id=GROUP)
    made.enqueue(BytesValue(value=b"2"), allow_unknown=True, not_before=timedelta(hours=1, minutes=1))
    doomed = made.enqueue(StringValue(value="doomed"), allow_unknown=True, group_id=GROUP)
    assert doomed.task_id is not None
    made.cancel(doomed.task_id)
    return made


def test_tasks_list_json_has_every_column_but_the_payload(engine: Engine, database: str) -> None:
    document = printed("tasks", "list", database, "--json")
    rows = engine.tasks()
    assert document["next_after"] is None
    assert [set(shown) for shown in document["tasks"]] == [set(Task._fields) - {"data"}] * 3
    assert [shown["id"] for shown in document["tasks"]] == [row.id for row in rows]
    assert document["tasks"][1]["group_id"] == GROUP.hex()
    assert document["tasks"][1]["data_hash"] == rows[1].data_hash.hex()
    assert document["tasks"][2]["next_attempt_at_ns"] == rows[2].next_attempt_at_ns
    assert document["tasks"][0]["origin"] == "test"


def test_dead_list_json_has_the_reason_and_every_column_but_the_payload(engine: Engine, database: str) -> None:
    (shown,) = printed("dead", "list", database, "--json")["dead"]
    (row,) = engine.dead_tasks()
    assert set(shown) == set(DeadTask._fields) - {"data"}
    assert (shown["id"], shown["reason"], shown["died_at_ns"]) == (row.id, "cancelled", row.died_at_ns)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_listing_shows_a_payload(engine: Engine, database: str, flags: list[str]) -> None:
    for listing in (["tasks", "list"], ["dead", "list"], ["kinds"]):
        output = callboard(*listing, database, *flags).output
        assert "google.protobuf.StringValue" in output
        for text in (SECRET, "doomed"):
            assert text not in output
            assert text.encode().hex() not in output


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (["--kind", "google.protobuf.BytesValue"], [2, 3]),
        (["--group", GROUP.hex()], [2]),
        (["--state", "pending"], [1, 2, 3]),
        (["--state", "running"], []),
        (["--after", "1", "--limit", "1"], [2]),
    ],
)
def test_tasks_list_filters(engine: Engine, database: str, filters: list[str], ids: list[int]) -> None:
    assert [task["id"] for task in printed("tasks", "list", database, "--json", *filters)["tasks"]] == ids


def test_next_after_leads_from_page_to_page(engine: Engine, database: str) -> None:
    seen, after = [], 0
    while after is not None:
        page = printed("tasks", "list", database, "--json", "--limit", "1", "--after", str(after))
        seen += [task["id"] for task in page["tasks"]]
        after = page["next_after"]
    assert seen == [1, 2, 3]
    assert callboard("tasks", "list", database, "--limit", "1").output.endswith("there are more: --after 1\n")


def test_a_table_is_plain_and_fits_80_columns(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = callboard("tasks", "list", database).output
    lines = [line.rstrip() for line in output.splitlines()]
    assert lines[0].split() == ["ID", "STATE", "TRIES", "DUE", "AGE", "GROUP", "KIND"]
    assert lines[2].split() == ["2", "pending", "0", "now", "0s", "0a1b2c3d…", "google.protobuf.BytesValue"]
    assert lines[3].split()[:5] == ["3", "pending", "0", "in", "1h"]
    assert max(map(len, output.splitlines())) <= 80
    assert "\x1b" not in output


def test_where_there_is_no_terminal_nothing_is_cut_and_an_error_is_told_by_its_first_line(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    error = "ValueError: " + "e" * 200
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "UPDATE callboard_dead_task SET last_error = ?",
            (f"Traceback (most recent call last):\n  a frame\n{error}\nmore of the message\n",),
        )
    output = callboard("dead", "list", database).output
    assert output.endswith(f"  {error}\n")


def test_hostile_text_in_a_row_is_shown_as_text(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "UPDATE callboard_dead_task SET kind = ?, last_error = ?",
            ("[red]" + "k" * 200, "Traceback\n  a frame\nValueError: \x1b[2J" + "e" * 500),
        )
    output = callboard("dead", "list", database).output
    assert "[red]kkk" in output
    assert "ValueError: �[2J" in output
    assert "Traceback" not in output
    assert len(output.splitlines()) == 2
    assert max(map(len, output.splitlines())) <= 80


def test_kinds_of_a_database_counts_tasks_and_shows_unknown_kinds(engine: Engine, database: str) -> None:
    unknown = {entry["kind"]: entry for entry in printed("kinds", database, "--json")["kinds"]}
    assert unknown["google.protobuf.BytesValue"] == {
        "kind": "google.protobuf.BytesValue",
        "plugin": None,
        "recurring": None,
        "requires": None,
        "tasks": {"pending": 2, "running": 0, "deferred": 0},
    }
    assert "unknown here" in callboard("kinds", database).output


def test_an_empty_listing_says_so(database: str) -> None:
    callboard("migrate", database)
    assert callboard("tasks", "list", database).output == "none\n"
    assert printed("dead", "list", database, "--json") == {"dead": [], "next_after": None}


def test_migrate_makes_the_tables_once(database: str) -> None:
    first, second = callboard("migrate", f"sqlite:///{database}"), callboard("migrate", database)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.output.startswith("applied 0001 ")
    assert second.output == "the tables are up to date\n"


@pytest.mark.parametrize("listing", [["tasks", "list"], ["dead", "list"], ["kinds"]])
def test_a_listing_makes_no_database(database: str, listing: list[str]) -> None:
    result = callboard(*listing, database)
    assert result.exit_code == 1
    assert result.output == (
        f"Error: database {database} does not exist; check the path, or make one with"
        f" `callboard migrate {database}`\n"
    )
    assert not Path(database).exists()


@pytest.mark.parametrize("listing", [["tasks", "list"], ["dead", "list"], ["kinds"]])
def test_a_listing_does_not_migrate(database: str, listing: list[str]) -> None:
    Path(database).touch()
    result = callboard(*listing, database)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert f"run `callboard migrate {database}`" in result.output
    assert Path(database).read_bytes() == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["tasks", "list"],
        ["tasks", "list", "x.db", "--group", "xyz"],
        ["tasks", "list", "x.db", "--group", ""],
        ["tasks", "list", "x.db", "--group", "00" * 256],
        ["tasks", "list", "x.db", "--state", "dead"],
        ["tasks", "list", "x.db", "--limit", "0"],
        ["tasks", "list", "x.db", "--after", str(2**63)],
        ["tasks", "list", "mysql://host/x"],
        ["tasks", "list", ":memory:"],
        ["run", "x.db", "--workers", "0"],
        ["run", "x.db", "--timeout", "-1"],
        ["run", "x.db", "--log-level", "loud"],
        ["run", "sqlite:///:memory:"],
    ],
)
def test_a_usage_error_exits_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    result = callboard(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.output
    assert list(tmp_path.iterdir()) == []


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *path, name)


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
def test_help_has_an_example(path: tuple[str, ...]) -> None:
    result = callboard(*path, "--help")
    assert result.exit_code == 0
    assert f"Example: {' '.join(('callboard', *path))}" in result.output


def test_version() -> None:
    assert callboard("--version").output.startswith("callboard, version ")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0s"), (0, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m"), (7_200, "2h"), (86_400 * 400, "400d")],
)
def test_a_span_is_short(seconds: int, shown: str) -> None:
    assert _output.span(seconds * 10**9) == shown


@pytest.mark.parametrize(("deadline_ns", "shown"), [(5, "now"), (90 * 10**9, "in 1m"), (NEVER_NS, "never")])
def test_a_deadline_is_relative(deadline_ns: int, shown: str) -> None:
    assert _output.until(deadline_ns, 5) == shown
