"""`doctor` names what is wrong and what to do; `top` shows what goes on. Both on both databases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from tests.engine.either_store import callboard_database
from tests.engine.rows import is_postgres, sql
from tests.engine.test_cli.conftest import SCRIPT
from tests.engine.test_cli.invoking import callboard

from callboard import Engine, SystemClock

__all__ = ["callboard_database"]

STRING, BYTES = "google.protobuf.StringValue", "google.protobuf.BytesValue"
GROUP = bytes.fromhex("0a1b2c")
MINUTE_NS = 60 * 10**9


def examined(database: str, status: int) -> dict[str, Any]:
    """Return the findings by their codes; no two have the same."""
    result = callboard("doctor", database, "--json")
    assert result.exit_code == status, result.output
    document = json.loads(result.output)
    assert document["healthy"] == (status == 0)
    found = {finding["code"]: finding for finding in document["findings"]}
    assert len(found) == len(document["findings"])
    return found


def add_node(url: str, node_id: int, kinds: str = "", heartbeat_ns: int | None = None) -> None:
    heartbeat_ns = time.time_ns() if heartbeat_ns is None else heartbeat_ns
    sql(
        url,
        "INSERT INTO callboard_node (id, host, pid, version, kinds, lease_ns, started_at_ns, heartbeat_at_ns)"
        " VALUES (?, 'elsewhere', 4711, '0', ?, 15000000000, 1, ?)",
        node_id,
        kinds,
        heartbeat_ns,
    )


def hold(url: str, task_id: int, node_id: int, since_ns: int) -> None:
    sql(
        url,
        "UPDATE callboard_task SET state = 'running', owner = ?, token = 1, last_attempted_at_ns = ? WHERE id = ?",
        node_id,
        since_ns,
        task_id,
    )


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    made = make_engine(clock=SystemClock())
    made.migrate()
    return made


def enqueue(engine: Engine, message: Any, **options: Any) -> int:
    task_id = engine.enqueue(message, allow_unknown=True, **options).task_id
    assert task_id is not None
    return task_id


def test_all_is_well(engine: Engine, callboard_database: str) -> None:
    add_node(callboard_database, 7, STRING)
    enqueue(engine, StringValue(value="due"))
    enqueue(engine, StringValue(value="later"), not_before=timedelta(hours=1))
    assert examined(callboard_database, 0) == {}
    result = callboard("doctor", callboard_database)
    assert (result.exit_code, result.output.endswith(": no problems\n")) == (0, True)


def test_tasks_are_due_and_no_engine_runs(engine: Engine, callboard_database: str) -> None:
    assert examined(callboard_database, 0)["no-engine"]["severity"] == "note"
    enqueue(engine, StringValue(value="due"))
    finding = examined(callboard_database, 3)["no-engine"]
    assert (finding["severity"], finding["tasks"]) == ("problem", 1)
    assert "`callboard run`" in finding["remedy"]


def test_a_group_that_is_held_for_long(engine: Engine, callboard_database: str) -> None:
    add_node(callboard_database, 7, STRING)
    ids = [enqueue(engine, StringValue(value=str(number)), group_id=GROUP) for number in range(3)]
    hold(callboard_database, ids[0], 7, time.time_ns() - 12 * MINUTE_NS)
    finding = examined(callboard_database, 3)["held-long"]
    assert (finding["group_id"], finding["node"], finding["tasks"]) == (GROUP.hex(), 7, 3)
    assert "with 2 due tasks behind it, has been held on node 7 (elsewhere:4711) for 12m" in finding["text"]
    assert f"callboard tasks cancel DATABASE {ids[0]}" in finding["remedy"]


def test_what_a_node_holds_that_is_gone_or_silent(engine: Engine, callboard_database: str) -> None:
    first, second = (enqueue(engine, StringValue(value=str(number))) for number in range(2))
    add_node(callboard_database, 7, STRING, heartbeat_ns=time.time_ns() - MINUTE_NS)
    hold(callboard_database, first, 7, time.time_ns())
    hold(callboard_database, second, 8, time.time_ns())
    found = examined(callboard_database, 3)
    assert set(found) == {"silent-node", "orphaned"}
    assert (found["silent-node"]["node"], found["orphaned"]["node"]) == (7, 8)


def test_a_node_of_this_machine_that_has_ended(engine: Engine, callboard_database: str) -> None:
    with Engine(callboard_database, plugins=[], clock=SystemClock()) as running:
        assert running.wait_idle(20)
        [node] = running.nodes()
        enqueue(engine, StringValue(value="x"))
        hold(callboard_database, 1, node.id, time.time_ns())
        assert "ended-node" not in examined(callboard_database, 0)
        running._core.store.nodes.unlock(node.id)
        Path(running._core.store.nodes._lock_path(node.id)).touch()  # type: ignore[attr-defined]
        assert examined(callboard_database, 3)["ended-node"]["node"] == node.id
        sql(callboard_database, "DELETE FROM callboard_task")


def test_deferred_tasks(engine: Engine, callboard_database: str) -> None:
    add_node(callboard_database, 7, STRING)
    for message in (StringValue(value="x"), BytesValue(value=b"x")):
        enqueue(engine, message)
    sql(callboard_database, "UPDATE callboard_task SET state = 'deferred' WHERE kind = ?", STRING)
    assert examined(callboard_database, 0)["deferred"]["severity"] == "note"
    sql(callboard_database, "UPDATE callboard_task SET state = 'deferred'")
    sql(callboard_database, "DELETE FROM callboard_task WHERE kind = ?", STRING)
    finding = examined(callboard_database, 3)["deferred"]
    assert (finding["kind"], finding["tasks"]) == (BYTES, 1)
    assert "install or upgrade the plugin" in finding["remedy"]


def test_late_tasks(engine: Engine, callboard_database: str) -> None:
    add_node(callboard_database, 7, STRING)
    for message in (StringValue(value="x"), BytesValue(value=b"x")):
        enqueue(engine, message, not_before=time.time_ns() - 3 * MINUTE_NS)
    found = examined(callboard_database, 3)
    assert (found["late"]["kind"], found["unserved-kind"]["kind"]) == (STRING, BYTES)
    assert "the first for 3m" in found["late"]["text"]


def test_a_due_task_counts_once_wherever_it_waits(engine: Engine, callboard_database: str) -> None:
    for number, (parked, alone) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        task_id = enqueue(engine, StringValue(value=str(number)), group_id=GROUP)
        sql(
            callboard_database,
            "UPDATE callboard_task SET parked = ?, alone = ? WHERE id = ?",
            parked,
            alone,
            task_id,
        )
    assert examined(callboard_database, 3)["no-engine"]["tasks"] == 4


def test_dead_tasks(engine: Engine, callboard_database: str) -> None:
    add_node(callboard_database, 7)
    engine.cancel(enqueue(engine, StringValue(value="x")))
    assert examined(callboard_database, 0)["dead"]["severity"] == "note"
    sql(callboard_database, "UPDATE callboard_dead_task SET reason = 'exhausted', kind = 'a b'")
    finding = examined(callboard_database, 3)["dead"]
    assert "callboard dead retry DATABASE --kind 'a b'" in finding["remedy"]
    output = callboard("doctor", callboard_database).output
    assert "1 task is dead of kind a b: exhausted" in output
    assert output.endswith(": 1 problem\n")


@pytest.mark.parametrize("command", [["doctor"], ["top", "--once"]], ids=" ".join)
def test_where_nothing_can_be_found_out_the_status_is_1(tmp_path: Path, command: list[str]) -> None:
    result = callboard(*command, str(tmp_path / "no.db"))
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert list(tmp_path.iterdir()) == []


def test_top_shows_what_is_there(engine: Engine, callboard_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    add_node(callboard_database, 7, STRING)
    ids = [enqueue(engine, StringValue(value=str(number)), group_id=GROUP) for number in range(4)]
    enqueue(engine, BytesValue(value=b"deferred"))
    sql(callboard_database, "UPDATE callboard_task SET state = 'deferred' WHERE kind = ?", BYTES)
    hold(callboard_database, ids[0], 7, time.time_ns() - 12 * MINUTE_NS)
    engine.cancel(ids[3])
    result = callboard("top", callboard_database, "--once")
    assert result.exit_code == 0
    words = [line.split() for line in result.output.splitlines()]
    assert words[1] == ["nodes", "1", "due", "2", "claimed", "1", "deferred", "1", "dead", "1"]
    assert words[5][0] == "2" and words[5][2:] == ["0", STRING]
    assert words[6] == ["0", "1", BYTES]
    assert words[9] == ["12m", "1", GROUP.hex(), "elsewhere:4711"]
    assert "\x1b" not in result.output


def test_what_a_transaction_left_in_the_inbox(engine: Engine, callboard_database: str) -> None:
    if not is_postgres(callboard_database):
        pytest.skip("on SQLite nothing waits to be merged")
    with engine.transaction() as tx:
        tx.enqueue(StringValue(value="accepted"), allow_unknown=True)
        tx.enqueue(StringValue(value="for later"), allow_unknown=True, not_before=timedelta(hours=1))
    found = examined(callboard_database, 3)
    assert (found["no-engine"]["tasks"], found["no-engine"]["severity"]) == (1, "problem")
    assert (found["accepted"]["tasks"], found["accepted"]["severity"]) == (2, "note")

    add_node(callboard_database, 7, STRING)
    assert "accepted" not in examined(callboard_database, 0)  # they have just come

    sql(callboard_database, "UPDATE callboard_inbox SET created_at_ns = created_at_ns - ?", 5 * MINUTE_NS)
    late = examined(callboard_database, 3)["accepted"]
    assert late["severity"] == "problem"
    assert (
        "2 requests wait in the inbox that a transaction accepted, to enqueue or pull in, the first for 5m"
        in (late["text"])
    )


@pytest.mark.timeout(60)
def test_top_goes_on_until_ctrl_c(engine: Engine, callboard_database: str) -> None:
    pty = pytest.importorskip("pty")
    termios = pytest.importorskip("termios")
    enqueue(engine, StringValue(value="first"))
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 40))
    environment = {**os.environ, "PYTHONWARNINGS": "error", "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [str(SCRIPT), "top", callboard_database, "--every", "0.5"],
        env=environment,
        stdin=follower,
        stdout=follower,
        stderr=subprocess.PIPE,
    )
    os.close(follower)
    try:
        said = read_until(leader, b"due 1")
        enqueue(engine, StringValue(value="second"))
        said += read_until(leader, b"due 2")
        if not is_postgres(callboard_database):  # which counts with a delay
            assert b"ended 0/s" in said
        process.send_signal(signal.SIGINT)
        read_until(leader, b"")
        assert process.wait() == 0
        assert process.stderr is not None and process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        os.close(leader)


def read_until(leader: int, text: bytes) -> bytes:
    """Return what a terminal shows until `text` is there, or until its program has ended."""
    said = b""
    while not text or text not in said:
        try:
            more = os.read(leader, 4096)
        except OSError:  # the program has ended
            more = b""
        if not more:
            assert not text, said
            break
        said += more
    return said
