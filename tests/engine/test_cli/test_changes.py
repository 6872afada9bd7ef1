"""The commands that change tasks, on both databases: what becomes of the rows, and what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from tests.engine.either_store import callboard_database
from tests.engine.rows import sql
from tests.engine.test_cli.invoking import callboard

from callboard import DeadReason, Engine, EngineStateError, SystemClock

__all__ = ["callboard_database"]

STRING = "google.protobuf.StringValue"
DAY_NS = 86_400 * 10**9


def done(*arguments: str, answer: str | None = None) -> str:
    result = callboard(*arguments, answer=answer)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str, answer: str | None = None) -> str:
    """Return the one line with which a command ends that changed nothing."""
    result = callboard(*arguments, answer=answer)
    assert result.exit_code == 1, result.output
    line = result.output.splitlines()[-1]
    assert line.startswith("Error: ")
    return line


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    """Task 1 is due in an hour, 2 and 3 are dead (dead 1 and 2, the second of another kind)."""
    made = make_engine(clock=SystemClock())
    made.enqueue(StringValue(value="later"), allow_unknown=True, not_before=timedelta(hours=1))
    for message in (StringValue(value="gone"), BytesValue(value=b"gone")):
        task_id = made.enqueue(message, allow_unknown=True).task_id
        assert task_id is not None
        made.cancel(task_id)
    return made


def claim(url: str, task_id: int) -> None:
    """Have a task run on a node that will not answer."""
    sql(
        url,
        "INSERT INTO callboard_node (id, host, pid, version, kinds, lease_ns, started_at_ns, heartbeat_at_ns)"
        " VALUES (77, 'elsewhere', 4711, '0', '', 15000000000, 1, 1)",
    )
    sql(
        url,
        "UPDATE callboard_task SET state = 'running', owner = 77, token = 1 WHERE id = ?",
        task_id,
    )


def test_a_retried_task_is_due_now(engine: Engine, callboard_database: str) -> None:
    before = engine.clock.now_ns()
    assert "task 1 is due by " in done("tasks", "retry", callboard_database, "1")
    [task] = engine.tasks()
    assert before <= task.next_attempt_at_ns <= engine.clock.now_ns()
    assert json.loads(done("tasks", "retry", callboard_database, "1", "--json"))["status"] == "unchanged"


def test_pull_in_lowers_a_deadline_and_never_raises_it(engine: Engine, callboard_database: str) -> None:
    answer = json.loads(done("tasks", "pull-in", callboard_database, "1", "--by", "5m", "--json"))
    [task] = engine.tasks()
    assert answer == {"task": 1, "by_ns": task.next_attempt_at_ns, "status": "lowered"}
    assert "as it is" in done("tasks", "pull-in", callboard_database, "1", "--by", "2h")
    assert engine.tasks() == [task]


def test_pull_in_takes_a_date(engine: Engine, callboard_database: str) -> None:
    done("tasks", "pull-in", callboard_database, "1", "--by", "2001-09-09T03:46:40+02:00")
    assert engine.tasks()[0].next_attempt_at_ns == 10**18


def test_the_deadline_of_a_running_task_is_lowered_for_later(engine: Engine, callboard_database: str) -> None:
    claim(callboard_database, 1)
    assert "task 1 is running; if it is to run again" in done("tasks", "retry", callboard_database, "1")
    [task] = engine.tasks()
    assert task.pulled_in_ns is not None and task.next_attempt_at_ns > task.pulled_in_ns


def test_a_cancelled_task_is_dead(engine: Engine, callboard_database: str) -> None:
    assert "task 1 is cancelled" in done("tasks", "cancel", callboard_database, "1")
    assert engine.tasks() == []
    assert engine.dead_tasks()[-1].reason == DeadReason.CANCELLED


def test_a_running_task_that_is_cancelled_stays_until_its_handler_returns(
    engine: Engine, callboard_database: str
) -> None:
    claim(callboard_database, 1)
    assert "task 1 is running and has been told" in done("tasks", "cancel", callboard_database, "1")
    assert json.loads(done("tasks", "cancel", callboard_database, "1", "--json"))["status"] == "cancelling"
    [task] = engine.tasks()
    assert (task.state, task.token) == ("running", 2)


def test_dead_tasks_are_retried_by_id(engine: Engine, callboard_database: str) -> None:
    [again] = json.loads(done("dead", "retry", callboard_database, "2", "--json"))["retried"]
    assert (again["id"], again["status"]) == (2, "inserted")
    assert again["task"] in {task.id for task in engine.tasks()}
    assert [dead.id for dead in engine.dead_tasks()] == [1]


def test_dead_tasks_are_retried_by_kind(engine: Engine, callboard_database: str) -> None:
    assert done("dead", "retry", callboard_database, "--kind", STRING).startswith("dead task 1 lives as task ")
    assert [dead.id for dead in engine.dead_tasks()] == [2]
    assert done("dead", "retry", callboard_database, "--kind", STRING) == "retried 0 dead tasks\n"


def test_with_one_wrong_id_none_is_retried(engine: Engine, callboard_database: str) -> None:
    before = engine.dead_tasks()
    assert "no dead task 8, 9" in refused("dead", "retry", callboard_database, "1", "8", "2", "9")
    assert engine.dead_tasks() == before


def test_a_dead_task_whose_key_lives_with_another_payload_stays(engine: Engine, callboard_database: str) -> None:
    task_id = engine.enqueue(StringValue(value="old"), allow_unknown=True, key="k").task_id
    assert task_id is not None
    engine.cancel(task_id)
    engine.enqueue(StringValue(value="new"), allow_unknown=True, key="k")
    assert "3 is dead still" in refused("dead", "retry", callboard_database, "1", "3")
    assert [dead.id for dead in engine.dead_tasks()] == [2, 3]


@pytest.mark.parametrize("answer", ["n\n", ""], ids=["no", "nobody there"])
def test_purge_asks(engine: Engine, callboard_database: str, answer: str) -> None:
    assert "--yes deletes without asking" in refused("dead", "purge", callboard_database, answer=answer)
    assert len(engine.dead_tasks()) == 2


def test_purge_deletes_for_good(engine: Engine, callboard_database: str) -> None:
    output = done("dead", "purge", callboard_database, answer="y\n")
    assert "Delete 2 dead tasks of database " in output
    assert output.endswith("deleted 2 dead tasks\n")
    assert engine.dead_tasks() == []
    assert len(engine.tasks()) == 1


def test_purge_by_age_and_kind(engine: Engine, callboard_database: str) -> None:
    for dead_id in (1, 2):
        sql(
            callboard_database,
            "UPDATE callboard_dead_task SET died_at_ns = died_at_ns - ? WHERE id = ?",
            10 * DAY_NS,
            dead_id,
        )
    assert json.loads(done("dead", "purge", callboard_database, "--before", "11d", "--json")) == {"deleted": 0}
    done("dead", "purge", callboard_database, "--before", "9d", "--kind", STRING, "--yes")
    assert [dead.id for dead in engine.dead_tasks()] == [2]


def test_long_work_tells_how_far_it_is(engine: Engine, callboard_database: str) -> None:
    sql(
        callboard_database,
        "INSERT INTO callboard_dead_task (task_id, kind, identity, data, data_hash, attempts, created_at_ns,"
        " expires_at_ns, reason, died_at_ns) WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n"
        " WHERE i < 1500) SELECT i, 'k', identity, data, data_hash, 0, 1, 2, 'expired', 3 FROM n,"
        " (SELECT * FROM callboard_dead_task WHERE id = 1) AS d",
    )
    output = done("dead", "purge", callboard_database, "--yes")
    assert output == "deleting: 1493 of 1493 rows\ndeleted 1493 dead tasks\n"
    assert engine.dead_tasks() == []


@pytest.mark.parametrize(
    "command",
    [
        ["tasks", "show"],
        ["tasks", "retry"],
        ["tasks", "cancel"],
        ["tasks", "pull-in", "--by", "1s"],
        ["dead", "show"],
        ["dead", "retry"],
    ],
    ids=" ".join,
)
def test_a_wrong_id_is_refused(engine: Engine, callboard_database: str, command: list[str]) -> None:
    before = (engine.tasks(), engine.dead_tasks())
    line = refused(*command, callboard_database, "99")
    assert f"no {'dead' if command[0] == 'dead' else 'live'} task 99" in line
    assert "callboard dead list" in line
    assert (engine.tasks(), engine.dead_tasks()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["tasks", "show", "x.db"],
        ["tasks", "show", "x.db", "0"],
        ["tasks", "cancel", "x.db", "seven"],
        ["tasks", "retry", "x.db", str(2**63)],
        ["tasks", "pull-in", "x.db", "1"],
        ["tasks", "pull-in", "x.db", "1", "--by", "soon"],
        ["tasks", "pull-in", "x.db", "1", "--by", "1x"],
        ["dead", "retry", "x.db"],
        ["dead", "retry", "x.db", "1", "--kind", "k"],
        ["dead", "purge", "x.db", "--before", "30"],
        ["groups", "show", "x.db", "xyz"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_makes_no_sense_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = callboard(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [["tasks", "cancel", "1"], ["tasks", "retry", "1"], ["dead", "retry", "1"], ["dead", "purge", "--yes"]],
    ids=" ".join,
)
def test_a_command_that_changes_rows_makes_no_database_and_no_tables(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "no.db"
    group, name, *rest = command
    assert "does not exist" in refused(group, name, str(path), *rest)
    assert not path.exists()
    path.touch()
    assert "run `callboard migrate" in refused(group, name, str(path), *rest)
    assert path.read_bytes() == b""


def test_while_an_engine_runs_it_takes_up_what_is_retried(
    make_engine: Callable[..., Engine], callboard_database: str
) -> None:
    from tests.engine.acting import WAIT_S, Plugin, Scripted, receipt, receipts

    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)), clock=SystemClock())
    with engine:
        task_id = engine.enqueue(receipt("hello"), not_before=timedelta(days=1)).task_id
        done("tasks", "retry", callboard_database, str(task_id))
        engine.wake()
        assert engine.wait_idle(WAIT_S)
    assert handler.played == ["hello"]
    with pytest.raises(EngineStateError):
        engine.tasks()
