"""Faults of the MLS world: requests inside others' transactions, outages, and time that passes."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import peewee
import pytest
from tests.engine.acting import WAIT_S, Plugin, eventually, receipt, receipts
from tests.engine.rows import path_of
from tests.plugins.mls.fake_backend import FakeBackend

from callboard import DeadReason, Engine, ServiceUnavailable, TaskContext
from callboard.testing import FakeClock
from callboard.wire import ProcessPendingSelfRemove
from callboard_mls import Backend

KIND = "process_pending_self_remove"
GROUP = b"group"
MakeEngine = Callable[..., Engine]


@pytest.fixture
def host_database(callboard_database: str) -> Iterator[peewee.SqliteDatabase]:
    """The host's own database, with a table of its messages."""
    database = peewee.SqliteDatabase(path_of(callboard_database), pragmas={"journal_mode": "wal"})
    execute(database, "CREATE TABLE message (id TEXT)")
    database.close()
    yield database
    database.close()


def execute(database: peewee.SqliteDatabase, statement: str, *params: object) -> list[Any]:
    rows: list[Any] = database.execute_sql(statement, params).fetchall()  # type: ignore[no-untyped-call]
    return rows


def found(engine: Engine, backend: FakeBackend) -> None:
    """Make a group whose super-admin is `ann`, whose engine this is, with `bob` and `cid` in it."""
    backend.found(GROUP, "bob", "cid")
    engine.group(GROUP).created("ann", members=["bob", "cid"], super_admins=["ann"])


def pending(engine: Engine) -> set[str]:
    state = engine.group(GROUP).state()
    assert state is not None
    return {request.inbox_id for request in state.pending_removes}


# A leave request inside something else


def test_a_leave_request_in_the_hosts_write_transaction_returns_at_once_and_is_part_of_it(
    mls_engine: MakeEngine, backend: FakeBackend, host_database: peewee.SqliteDatabase
) -> None:
    """While a task of the same group runs and does not end before it has returned."""
    engine = mls_engine(KIND, database=host_database)
    found(engine, backend)
    running, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        running.set()
        assert go_on.wait(WAIT_S)

    def process(inbox_id: str) -> None:
        with host_database.atomic():
            execute(host_database, "INSERT INTO message VALUES (?)", inbox_id)
            engine.group(GROUP).leave_requested(inbox_id, inbox_id.encode())

    backend.meanwhile["members"] = hold
    with engine:
        process("bob")
        assert running.wait(WAIT_S)

        with pytest.raises(RuntimeError), host_database.atomic():
            process("cid")
            assert pending(engine) == {"bob", "cid"}
            raise RuntimeError("rolled back")
        assert pending(engine) == {"bob"}
        assert execute(host_database, "SELECT id FROM message") == [("bob",)]

        process("cid")
        assert not go_on.is_set()
        assert pending(engine) == {"bob", "cid"}
        go_on.set()
        eventually(lambda: sorted(backend.commits) == ["-bob", "-cid"])
        assert engine.wait_idle(WAIT_S)
        assert (pending(engine), engine.tasks(), engine.dead_tasks()) == (set(), [], [])
        assert execute(host_database, "SELECT id FROM message") == [("bob",), ("cid",)]


def test_a_leave_request_in_a_handler_of_the_same_group_returns_at_once_and_is_part_of_its_outcome(
    make_engine: MakeEngine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    """It is rolled back with the outcome that it is part of, and made again with the next attempt."""
    seen: list[set[str]] = []

    def receive(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            tx.group(GROUP).leave_requested("bob", b"m1")
            if not seen:
                seen.append(set())
                raise RuntimeError("rolled back")

    with make_engine(KIND, Plugin(receipts(receive)), services={Backend: backend}) as engine:
        found(engine, backend)
        engine.enqueue(receipt("a message of the group", GROUP))
        assert engine.wait_idle(WAIT_S)
        assert (pending(engine), backend.commits) == (set(), [])
        [failed] = engine.tasks()
        assert failed.attempts == 1

        callboard_clock.advance(timedelta(seconds=2))
        eventually(lambda: backend.commits == ["-bob"])
        assert engine.wait_idle(WAIT_S)
        assert (pending(engine), engine.tasks(), engine.dead_tasks()) == (set(), [], [])


# Time and outages


def test_kp_rotation_outlives_a_month_and_a_two_hour_outage_of_the_network(
    make_engine: MakeEngine, backend: FakeBackend, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    offline = threading.Event()
    fail = backend._fail

    def fail_offline(method: str) -> None:
        if offline.is_set():
            raise ServiceUnavailable("offline")
        fail(method)

    monkeypatch.setattr(backend, "_fail", fail_offline)
    watcher = Plugin(reconcile=lambda engine, reason: reasons.append(reason))
    with make_engine("kp_liveness", watcher, services={Backend: backend}) as engine:

        def pass_time(duration: timedelta) -> None:
            callboard_clock.advance(duration)
            assert engine.wait_idle(WAIT_S)

        assert engine.wait_idle(WAIT_S)
        for _ in range(4 * 30 - 1):
            pass_time(timedelta(hours=6))
        assert backend.rotations == 0

        pass_time(timedelta(hours=5))
        offline.set()
        for _ in range(120):
            pass_time(timedelta(minutes=1))
        assert backend.rotations == 0
        rotation = next(task for task in engine.tasks() if task.kind == "kp_rotation")
        assert (rotation.attempts, rotation.outages > 20) == (0, True)
        assert "service" not in reasons

        offline.clear()
        pass_time(timedelta(minutes=1))  # the longest backoff
        eventually(lambda: backend.rotations == 1)
        pass_time(timedelta(minutes=1))
        eventually(lambda: "service" in reasons)
        for _ in range(4):
            pass_time(timedelta(hours=6))
        assert backend.rotations == 1
        assert {task.kind: task.attempts for task in engine.tasks()} == {
            "kp_liveness": 0,
            "kp_rotation": 0,
            "kp_deletion": 0,
        }
        assert engine.dead_tasks() == []


@pytest.mark.parametrize("started", [False, True])
def test_an_expired_row_that_nobody_swept_and_a_reconcile_leave_one_live_task(
    started: bool, mls_engine: MakeEngine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    first = mls_engine(KIND)
    found(first, backend)
    first.group(GROUP).leave_requested("bob", b"m1")
    [expired] = first.tasks()
    first.stop()
    callboard_clock.advance(timedelta(days=4))
    backend.failures["members"] = [ServiceUnavailable("offline")] * 100

    engine = mls_engine(KIND)
    if started:
        engine.start()
        assert engine.wait_idle(WAIT_S)
    else:
        engine.run_due()

    [live] = engine.tasks()
    assert (live.kind, live.attempts, live.expires_at_ns > callboard_clock.now_ns()) == (KIND, 0, True)
    [dead] = engine.dead_tasks()
    assert (dead.task_id, dead.reason) == (expired.id, DeadReason.EXPIRED)
    for _ in range(3):
        engine.enqueue(ProcessPendingSelfRemove(group_id=GROUP))
    assert [task.id for task in engine.tasks()] == [live.id]

    backend.failures.clear()
    callboard_clock.advance(timedelta(minutes=1))
    if started:
        eventually(lambda: backend.commits)
        assert engine.wait_idle(WAIT_S)
    else:
        engine.run_due()
    assert (backend.commits, engine.tasks()) == (["-bob"], [])
