"""`tasks show`, `dead show` and `groups`: all that is known of one thing, and a payload only for who asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from tests.engine.either_store import callboard_database
from tests.engine.rows import sql, write_by_hand
from tests.engine.test_cli.invoking import callboard, printed
from tests.engine.test_cli.processes import PLUGIN

from callboard import DeadTask, Engine, SystemClock, Task

__all__ = ["callboard_database"]

SECRET = "the payload is private"
GROUP = bytes.fromhex("0a1b2c3d4e5f")
OTHER = b"\xff"


def fields(*arguments: str) -> dict[str, str]:
    """Return what is printed for people, by the names of the fields."""
    result = callboard(*arguments)
    assert result.exit_code == 0, result.output
    name = ""
    found: dict[str, str] = {}
    for line in result.output.splitlines():
        if not line.startswith(" "):
            name, _, line = line.partition("  ")
        found[name] = f"{found[name]}\n{line.strip()}" if name in found else line.strip()
    return found


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    """A live task 1 and a dead task 1 of a group with a member who asked to leave, and a group of no task."""
    made = make_engine(clock=SystemClock())
    made.enqueue(StringValue(value=SECRET), allow_unknown=True, group_id=GROUP, origin="test")
    doomed = made.enqueue(StringValue(value=SECRET + " too"), allow_unknown=True, group_id=GROUP)
    assert doomed.task_id is not None
    made.cancel(doomed.task_id)
    made.group(GROUP).created("alice", members=["bob"], super_admins=["alice"], consent="allowed")
    made.group(GROUP).leave_requested("bob", b"message")
    made.group(OTHER).created("alice")
    return made


def test_a_task_is_shown_whole_and_without_its_payload(engine: Engine, callboard_database: str) -> None:
    shown = fields("tasks", "show", callboard_database, "1")
    assert shown["STATE"] == "pending"
    assert shown["GROUP"] == GROUP.hex()
    assert shown["ORIGIN"] == "test"
    assert shown["DUE"].startswith("now (20")
    assert shown["PAYLOAD"].endswith("bytes; --payload shows them")
    document = printed("tasks", "show", callboard_database, "1", "--json")["task"]
    assert set(document) == set(Task._fields) - {"data"} | {"node"}


def test_a_dead_task_is_shown_with_its_whole_error(engine: Engine, callboard_database: str) -> None:
    error = "Traceback (most recent call last):\n  a frame\nValueError: \x1b[2J no\n"
    sql(callboard_database, "UPDATE callboard_dead_task SET last_error = ?", error)
    shown = fields("dead", "show", callboard_database, "1")
    assert (shown["REASON"], shown["TASK ID"]) == ("cancelled", "2")
    assert shown["LAST ERROR"] == "Traceback (most recent call last):\na frame\nValueError: �[2J no"
    document = printed("dead", "show", callboard_database, "1", "--json")["dead"]
    assert set(document) == set(DeadTask._fields) - {"data"}
    assert document["last_error"] == error


@pytest.mark.parametrize("kind", ["tasks", "dead"])
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["people", "programs"])
def test_without_payload_none_is_shown(
    engine: Engine, callboard_database: str, kind: str, flags: list[str]
) -> None:
    output = callboard(kind, "show", callboard_database, "1", *flags).output
    assert "google.protobuf.StringValue" in output
    assert SECRET not in output
    assert SECRET.encode().hex() not in output


def test_a_payload_of_a_kind_that_nobody_here_knows_is_shown_in_hex(
    engine: Engine, callboard_database: str
) -> None:
    [task] = engine.tasks()
    shown = fields("tasks", "show", callboard_database, "1", "--payload")["PAYLOAD"]
    assert shown.replace("\n", "") == task.data.hex()
    document = printed("tasks", "show", callboard_database, "1", "--payload", "--json")["task"]
    assert (document["data"], document["payload"]) == (task.data.hex(), None)


def test_a_payload_of_a_kind_that_is_known_here_is_decoded(
    engine: Engine, callboard_database: str, script: Any, install: Callable[..., None]
) -> None:
    install("acme", PLUGIN, callboard="acme = acme")
    done = script.run("dead", "show", callboard_database, "1", "--payload")
    assert (done.returncode, done.stderr) == (0, "")
    assert f'value: "{SECRET} too"' in done.stdout
    done = script.run("tasks", "show", callboard_database, "1", "--payload", "--json")
    assert json.loads(done.stdout)["task"]["payload"] == SECRET


@pytest.mark.parametrize("data", [b"", b"\x07", b"\xa2\x06\x03abc"], ids=["empty", "no protobuf", "no kind"])
def test_a_payload_that_is_none_is_no_error(
    engine: Engine, callboard_database: str, script: Any, install: Callable[..., None], data: bytes
) -> None:
    install("acme", PLUGIN, callboard="acme = acme")
    task_id = write_by_hand(callboard_database, "google.protobuf.StringValue", data)
    done = script.run("tasks", "show", callboard_database, str(task_id), "--payload")
    assert (done.returncode, done.stderr) == (0, "")
    assert (data.hex() or "(empty)") in done.stdout
    done = script.run("tasks", "show", callboard_database, str(task_id), "--payload", "--json")
    document = json.loads(done.stdout)["task"]
    assert (document["data"], document["payload"]) == (data.hex(), None)


def test_groups_are_listed_page_by_page(engine: Engine, callboard_database: str) -> None:
    first = printed("groups", "list", callboard_database, "--json", "--limit", "1")
    assert [group["group_id"] for group in first["groups"]] == [GROUP.hex()]
    assert first["next_after"] == GROUP.hex()
    rest = printed("groups", "list", callboard_database, "--json", "--after", first["next_after"])
    assert [group["group_id"] for group in rest["groups"]] == [OTHER.hex()]
    assert rest["next_after"] is None
    lines = callboard("groups", "list", callboard_database).output.splitlines()
    assert lines[0].split() == ["CONSENT", "ACTIVE", "MEMBERS", "LEAVING", "GROUP"]
    assert lines[1].split() == ["allowed", "0s", "ago", "2", "1", GROUP.hex()]


@pytest.mark.parametrize(
    ("option", "number"), [(["--pending"], 1), (["--member", "alice"], 2), (["--member", "x"], 0)]
)
def test_groups_are_chosen(engine: Engine, callboard_database: str, option: list[str], number: int) -> None:
    assert len(printed("groups", "list", callboard_database, "--json", *option)["groups"]) == number


def test_a_group_is_shown_with_its_members_and_who_holds_its_tasks(
    engine: Engine, callboard_database: str
) -> None:
    sql(
        callboard_database,
        "INSERT INTO callboard_node (id, host, pid, version, kinds, lease_ns, started_at_ns, heartbeat_at_ns)"
        " VALUES (77, 'elsewhere', 4711, '0', '', 15000000000, 1, 1)",
    )
    sql(callboard_database, "UPDATE callboard_task SET state = 'running', owner = 77, token = 1")
    shown = fields("groups", "show", callboard_database, GROUP.hex())
    assert shown["MEMBERS"] == "alice (super-admin)\nbob"
    assert shown["ASKED TO LEAVE"].startswith("bob, ")
    assert shown["TO EVICT"]
    assert shown["TASKS"] == "1 running"
    assert shown["HELD BY"] == "elsewhere:4711"
    assert fields("tasks", "show", callboard_database, "1")["STATE"] == "running on elsewhere:4711"
    document = printed("groups", "show", callboard_database, GROUP.hex(), "--json")
    assert document["group"]["pending_removes"][0]["inbox_id"] == "bob"
    assert [task["id"] for task in document["tasks"]] == [1]


def test_a_group_that_only_tasks_name_is_shown(engine: Engine, callboard_database: str) -> None:
    engine.enqueue(StringValue(value="x"), allow_unknown=True, group_id=b"\x01")
    shown = fields("groups", "show", callboard_database, "01")
    assert shown["MEMBERS"] == "the host has not told of this group"
    assert (shown["TASKS"], shown["DUE"]) == ("1 pending", "1")


def test_a_group_that_nobody_knows_is_refused(engine: Engine, callboard_database: str) -> None:
    result = callboard("groups", "show", callboard_database, "02")
    assert result.exit_code == 1
    assert "has no group 02" in result.output
