"""Defects that adversarial programs found, each pinned by the rule that it broke."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import peewee
import pytest
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    receipt,
    receipts,
)
from tests.engine.messages import SendReceipt
from tests.engine.rows import path_of, payload, sql

from callboard import CallboardError, ConfigurationError, Engine, EngineStateError, RescheduleAt, TaskContext
from callboard._actors import dispatcher, runtime
from callboard._actors.outbox import Outbox
from callboard._clock import NEVER_NS, SystemClock
from callboard._codec import hash_of
from callboard.errors import DatabaseUnavailableError
from callboard.testing import FakeClock

AHEAD = 32
"""Rows that a claim takes ahead for one group; those beyond it are parked."""

LATER_FIELD = bytes.fromhex("923f00")
"""An envelope whose oneof is field 1010, of a build to come."""


def parked(database: str) -> int:
    count: int = sql(database, "SELECT count(*) FROM callboard_task WHERE parked = 1")[0][0]
    return count


def left(database: str) -> list[Any]:
    return sql(database, "SELECT state, parked, count(*) FROM callboard_task GROUP BY state, parked")


@pytest.fixture
def host_database(callboard_database: str) -> Iterator[peewee.SqliteDatabase]:
    """Return a peewee database that does not wait for a lock."""
    database = peewee.SqliteDatabase(path_of(callboard_database), pragmas={"journal_mode": "wal"}, timeout=0)
    yield database
    database.close()


@contextmanager
def write_lock(database: str) -> Iterator[None]:
    with closing(sqlite3.connect(path_of(database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_rule_08_rows_parked_behind_their_group_outlive_a_clock_set_back(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue_many([receipt(str(number), b"g") for number in range(AHEAD + 40)])
    eventually(lambda: parked(callboard_database) == 40)
    callboard_clock.jump(timedelta(hours=-1))
    handler.let_go()
    eventually(lambda: parked(callboard_database) == 0)
    callboard_clock.jump(timedelta(hours=2))
    assert engine.wait_idle(WAIT_S)
    assert left(callboard_database) == []


def test_rule_11_rows_parked_behind_their_group_outlive_a_pass_that_the_database_refused(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue_many([receipt(str(number), b"g") for number in range(AHEAD + 8)])
    eventually(lambda: parked(callboard_database) == 8)
    sql(
        callboard_database,
        "CREATE TRIGGER refuse BEFORE UPDATE OF state ON callboard_task WHEN NEW.state = 'running'"
        " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
    )
    handler.let_go()
    eventually(lambda: engine.health().database_error)
    sql(callboard_database, "DROP TRIGGER refuse")
    assert engine.wait_idle(WAIT_S)
    assert left(callboard_database) == []


def test_rule_16_a_payload_of_a_newer_build_is_deferred_out_of_the_rows_that_wait_for_their_group(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue_many([receipt(str(number), b"g") for number in range(AHEAD)])
    handler.wait_count(1)
    digest = hash_of(LATER_FIELD)
    sql(
        callboard_database,
        "INSERT INTO callboard_task (kind, group_id, identity, data, data_hash) VALUES (?, ?, ?, ?, ?)",
        *(RECEIPT, b"g", digest, LATER_FIELD, digest),
    )
    engine.wake()
    eventually(lambda: parked(callboard_database) == 1)
    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert left(callboard_database) == [("deferred", 0, 1)]


def test_rule_08_a_clock_set_back_while_the_database_is_away_is_still_noticed(
    make_engine: MakeEngine,
    callboard_database: str,
    callboard_clock: FakeClock,
    host_database: peewee.SqliteDatabase,
) -> None:
    engine = make_engine(Plugin(receipts(Scripted(ValueError("not yet")))), database=host_database)
    engine.start()
    task_id = engine.enqueue(receipt("hello")).task_id
    assert engine.wait_idle(WAIT_S)
    with write_lock(callboard_database):
        callboard_clock.jump(timedelta(days=-1))
        eventually(lambda: engine.health().database_error)
    in_a_minute_ns = callboard_clock.now_ns() + 60 * 10**9
    query = "SELECT next_attempt_at_ns FROM callboard_task WHERE id = ?"
    eventually(lambda: sql(callboard_database, query, task_id)[0][0] <= in_a_minute_ns)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("data", "text"),
        ("data_hash", "text"),
        ("group_id", "text"),
        ("expires_at_ns", "2026-01-01 00:00:00"),
        ("next_attempt_at_ns", "2026-01-01 00:00:00"),
        ("next_attempt_at_ns", 1.5),
        ("attempts", "none"),
        ("max_attempts", "many"),
        ("backoff_factor", "twice"),
        ("initial_backoff_ns", "soon"),
    ],
)
def test_rule_05_a_row_by_hand_that_no_pass_could_read_is_refused_by_the_table(
    make_engine: MakeEngine, callboard_database: str, column: str, value: Any
) -> None:
    make_engine().migrate()
    data = payload(receipt("by hand"))
    row = {"kind": RECEIPT, "identity": hash_of(data), "data": data, "data_hash": hash_of(data), column: value}
    with pytest.raises(sqlite3.IntegrityError, match=column):
        sql(
            callboard_database,
            f"INSERT INTO callboard_task ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
            *row.values(),
        )


def test_rule_21_a_wait_for_idle_ends_with_the_engine(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("hello"))
    handler.wait_begun("hello")
    answers: list[object] = []

    def wait() -> None:
        try:
            answers.append(engine.wait_idle(WAIT_S))
        except EngineStateError as error:
            answers.append(error)

    running = engine._core.running
    assert running is not None
    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: running.actor._when_idle)
    engine.stop(timeout=0)
    waiter.join(WAIT_S)
    handler.let_go()
    assert [str(answer) for answer in answers] == ["the engine was stopped before it was idle"]


def test_rule_21_a_stop_without_a_wait_leaves_the_tasks_of_an_idle_engine_to_the_next(
    make_engine: MakeEngine,
) -> None:
    first = make_engine(Plugin(receipts(Scripted())))
    first.start()
    assert first.wait_idle(WAIT_S)
    assert first.stop(timeout=0)
    make_engine(Plugin(receipts(Scripted()))).start()


def test_rule_21_a_stop_while_the_database_is_locked_leaves_the_tasks_to_the_next(
    make_engine: MakeEngine, callboard_database: str, host_database: peewee.SqliteDatabase
) -> None:
    first = make_engine(Plugin(receipts(Scripted())), database=host_database)
    first.start()
    assert first.wait_idle(WAIT_S)
    with write_lock(callboard_database):
        assert first.stop(timeout=WAIT_S)
    make_engine(Plugin(receipts(Scripted()))).start()


def test_rule_21_an_engine_whose_database_is_away_stops_at_once_when_nothing_runs(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.start()
    assert engine.wait_idle(WAIT_S)
    lose_connection(engine, monkeypatch)
    assert engine.stop(timeout=None)


def test_rule_11_a_wait_that_began_while_the_database_was_away_ends_once_it_is_back(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.start()
    assert engine.wait_idle(WAIT_S)
    with monkeypatch.context() as lost:
        lose_connection(engine, lost)
        assert not engine.wait_idle(0)
        answered = threading.Thread(target=engine.wait_idle, args=(WAIT_S,))
        answered.start()
        running = engine._core.running
        assert running is not None
        eventually(lambda: len(running.actor._when_idle) == 2)
    answered.join(WAIT_S / 2)
    assert not answered.is_alive()


def lose_connection(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the scheduler lose its connection, and fail to connect again until the patch is undone."""
    running = engine._core.running
    assert running is not None

    def refuse() -> Any:
        raise DatabaseUnavailableError("the disk is away")

    monkeypatch.setattr(engine._core.store, "thread", refuse)
    monkeypatch.setattr(running.actor, "_connected", False)
    engine.wake()
    eventually(lambda: engine.health().database_error)


def test_rule_21_a_deadline_that_passes_while_handlers_end_does_not_ring_without_a_pause(
    make_engine: MakeEngine,
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("hello"))
    handler.wait_begun("hello")
    engine.enqueue(receipt("later"), not_before=timedelta(seconds=5))
    running = engine._core.running
    assert running is not None
    eventually(lambda: running.scheduler.deadline_ns < engine.clock.now_ns() + 6 * 10**9)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    eventually(lambda: running.scheduler.deadline_ns == NEVER_NS)
    handler.let_go()
    stopping.join(WAIT_S)


def test_rule_19_a_reconcile_that_is_wanted_while_one_runs_does_not_ring_without_a_pause(
    make_engine: MakeEngine,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    reasons: list[str] = []

    def reconcile(engine: Engine, reason: str) -> None:
        reasons.append(reason)
        begun.set()
        assert go_on.wait(WAIT_S)

    engine = make_engine(Plugin(receipts(Scripted()), reconcile=reconcile))
    engine.start()
    assert begun.wait(WAIT_S)
    engine.request_reconcile("again")
    running = engine._core.running
    assert running is not None
    assert running.hooks.deadline_ns() == NEVER_NS
    go_on.set()
    assert engine.wait_idle(WAIT_S)
    assert reasons == ["start", "again"]


def test_an_outcome_that_comes_at_the_same_moment_as_another_starts_the_clock_of_its_batch() -> None:
    class Crowded(deque[Any]):
        """What is put comes together with another thread's."""

        def append(self, item: Any) -> None:
            super().append(item)
            super().append(item)

    flushes: list[float] = []
    outbox = Outbox(lambda: None, flushes.append)
    outbox.expect(10)
    outbox._runs = Crowded()
    for batch in (1, 2):
        outbox.put(object())  # type: ignore[arg-type]
        assert len(flushes) == batch
        assert len(outbox.take()) == 2


def test_a_pool_that_gets_no_thread_from_the_system_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Event()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        refused.set()
        raise RuntimeError("can't start new thread")

    pool = dispatcher.ThreadPool(2, "callboard-test")
    begun, go_on = threading.Barrier(3), threading.Event()

    def call() -> None:
        begun.wait(WAIT_S)
        go_on.wait(WAIT_S)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.submit(call)
    pool.submit(call)
    assert refused.wait(WAIT_S)
    monkeypatch.setattr(threading.Thread, "start", start)
    begun.wait(WAIT_S)  # with both calls, each on a thread of its own
    assert pool.size() == 2
    go_on.set()
    pool.close()


class Ticking(SystemClock):
    """A clock on which time passes with every look."""

    def __init__(self) -> None:
        self._now_ns = 10**18

    def now_ns(self) -> int:
        self._now_ns += 10**6
        return self._now_ns


def test_rule_21_run_due_runs_a_task_that_falls_due_while_it_looks_for_the_last_time(
    make_engine: MakeEngine,
) -> None:
    delays = [timedelta(microseconds=500 * number) for number in range(20)]

    def again(message: SendReceipt, ctx: TaskContext) -> RescheduleAt | None:
        return RescheduleAt(delays.pop()) if delays else None

    engine = make_engine(Plugin(receipts(again)), clock=Ticking())
    engine.enqueue(receipt("hello"))
    for _ in range(21):
        engine.run_due()
    assert engine.tasks() == []


def test_rule_12_run_due_cancels_a_coroutine_that_is_over_its_time(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(message: SendReceipt, ctx: TaskContext) -> None:
        callboard_clock.advance(timedelta(minutes=6))
        await asyncio.Event().wait()

    monkeypatch.setattr(runtime, "_LOOK_S", 0.01)
    engine = make_engine(Plugin(receipts(stuck)))
    engine.enqueue(receipt("hello"))
    assert engine.run_due() == 1
    assert [task.attempts for task in engine.tasks()] == [1]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals go to a process here, not to a thread")
def test_rule_12_run_due_hands_an_interrupted_coroutine_back_un_attempted(make_engine: MakeEngine) -> None:
    async def interrupted(message: SendReceipt, ctx: TaskContext) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.Event().wait()

    engine = make_engine(Plugin(receipts(interrupted)))
    engine.enqueue(receipt("hello"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # others' tests may have set another
    with pytest.raises(KeyboardInterrupt):
        engine.run_due()
    signal.signal(signal.SIGINT, before)
    assert [(task.state, task.attempts, task.last_error) for task in engine.tasks()] == [("pending", 0, None)]


@pytest.mark.parametrize("call", [Engine.run_due, Engine.start])
def test_rule_21_tasks_do_not_run_inside_a_transaction_of_the_caller(make_engine: MakeEngine, call: Any) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    with engine.transaction() as tx:
        tx.enqueue(receipt("hello"))
        with pytest.raises(EngineStateError, match="leave the one this thread is in"):
            call(engine)
    assert engine.run_due() == 1


def test_rule_07_engines_on_two_names_of_a_file_see_each_other(
    make_engine: MakeEngine, callboard_database: str, tmp_path: Path
) -> None:
    handler = Blocking()
    first = make_engine(Plugin(receipts(handler)))
    first.start()
    first.enqueue(receipt("hello", b"group"))
    handler.wait_begun("hello")
    link = tmp_path / "link.db"
    link.symlink_to(path_of(callboard_database))

    with make_engine(Plugin(receipts(handler)), database=f"sqlite:///{link}") as other:
        other.enqueue(receipt("another", b"group"))
        assert other.wait_idle(WAIT_S)
        assert handler.begun == ["hello"]
        handler.let_go()
        assert first.wait_idle(WAIT_S)


@pytest.mark.parametrize("deadline", [1_700_000_000.5, "tomorrow"])
def test_rule_15_a_pull_in_to_what_is_no_time_is_refused(make_engine: MakeEngine, deadline: Any) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.enqueue(receipt("hello"), not_before=timedelta(hours=1))
    with pytest.raises(ConfigurationError, match="int of nanoseconds"):
        engine.pull_in(receipt("hello"), not_later_than_ns=deadline)


@pytest.mark.parametrize("deadline", [2**70, -(2**70)])
def test_rule_15_a_pull_in_to_a_time_beyond_the_column_is_brought_into_it(
    make_engine: MakeEngine, deadline: int
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.enqueue(receipt("hello"), not_before=timedelta(hours=1))
    assert engine.pull_in(receipt("hello"), not_later_than_ns=deadline)
    assert engine.run_due() == (0 if deadline > 0 else 1)


def test_rule_21_an_engine_whose_start_was_cancelled_is_stopped(make_engine: MakeEngine) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def startup(engine: Engine) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    engine = make_engine(Plugin(receipts(Scripted()), startup=startup))

    async def enter() -> None:
        async with engine:
            pytest.fail("entered although cancelled")

    async def main() -> None:
        entering = asyncio.create_task(enter())
        await asyncio.to_thread(begun.wait, WAIT_S)
        entering.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await entering

    asyncio.run(main())
    with pytest.raises(CallboardError, match="has been stopped"):
        engine.start()


def test_rule_21_an_engine_that_nobody_stopped_is_stopped_when_the_interpreter_exits(
    callboard_database: str,
) -> None:
    script = (
        "import atexit; atexit.register(lambda: print(engine.health().state))\n"  # after those of what is imported
        "from callboard import Engine\n"
        f"engine = Engine({callboard_database!r}, plugins=[]); engine.migrate()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert (ended.stdout, ended.stderr) == ("stopped\n", "")


def test_rule_01_an_enqueue_that_finds_the_disk_full_says_so(
    make_engine: MakeEngine, host_database: peewee.SqliteDatabase
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())), database=host_database)
    engine.migrate()
    host_database.connect()
    allow_pages(engine, 1)  # for which SQLite takes the number of pages that there are
    with pytest.raises(DatabaseUnavailableError, match="no room to grow"):
        engine.enqueue_many([receipt(f"{number}" * 1_000) for number in range(100)])
    allow_pages(engine, 1_000_000)
    assert engine.enqueue(receipt("hello")).status == "inserted"
    host_database.close()


def allow_pages(engine: Engine, count: int) -> None:
    """Let the database have so many pages, as far as this thread's connection goes."""
    with engine.transaction() as tx:
        tx.connection.execute(f"PRAGMA max_page_count = {count}")
