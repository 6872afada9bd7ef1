"""Coroutine handlers: which loop they run on, what they hold, and how they end."""

import asyncio
import functools
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import peewee
import pytest
from tests.engine.acting import (
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.rows import sql

from callboard import Done, EngineStateError, EnqueueStatus, RescheduleAt, TaskContext, UnknownKindError
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)


class Loops:
    """A coroutine handler that notes which loop and thread it ran on."""

    def __init__(self) -> None:
        self.seen: list[tuple[asyncio.AbstractEventLoop, int]] = []

    async def __call__(self, message: Any, ctx: TaskContext) -> None:
        self.seen.append((asyncio.get_running_loop(), threading.get_ident()))


def test_coroutines_run_on_the_loop_that_entered_the_engine(make_engine: MakeEngine) -> None:
    loops = Loops()
    engine = make_engine(Plugin(receipts(loops)))

    async def main() -> asyncio.AbstractEventLoop:
        async with engine:
            await engine.aenqueue(receipt("hello"))
            assert await asyncio.to_thread(engine.wait_idle, WAIT_S)
        return asyncio.get_running_loop()

    loop = asyncio.run(main())

    assert loops.seen == [(loop, threading.get_ident())]
    assert engine.health().state == "stopped"


@pytest.mark.parametrize("how", ["start", "run_due"])
def test_coroutines_run_on_a_private_loop_otherwise(how: str, make_engine: MakeEngine) -> None:
    loops = Loops()
    engine = make_engine(Plugin(receipts(loops)))
    engine.enqueue_many([receipt("one"), receipt("two")])

    if how == "start":
        engine.start()
        assert engine.wait_idle(WAIT_S)
    else:
        assert engine.run_due() == 2

    assert len(loops.seen) == 2
    assert len(set(loops.seen)) == 1
    assert loops.seen[0][1] != threading.get_ident()


def test_no_private_loop_is_made_without_coroutines(make_engine: MakeEngine) -> None:
    with make_engine(Plugin(receipts(Scripted()))) as engine:
        engine.enqueue(receipt("hello"))
        assert engine.wait_idle(WAIT_S)
        assert "callboard-loop" not in {one.name for one in threading.enumerate()}


def test_a_private_loop_ends_with_its_engine(make_engine: MakeEngine) -> None:
    with make_engine(Plugin(receipts(Loops()))) as engine:
        engine.enqueue(receipt("hello"))
        assert engine.wait_idle(WAIT_S)
        assert "callboard-loop" in {one.name for one in threading.enumerate()}

    assert "callboard-loop" not in {one.name for one in threading.enumerate()}


class AllTogether:
    """A coroutine handler that waits until a number of them are inside at once."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._complete = asyncio.Event()

    async def __call__(self, message: Any, ctx: TaskContext) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._complete.set()
        await asyncio.wait_for(self._complete.wait(), WAIT_S)


def test_coroutines_hold_their_group_and_not_a_thread(make_engine: MakeEngine) -> None:
    """A hundred wait for one another with one worker, and a blocking handler still has it."""
    blocking = Scripted()
    engine = make_engine(Plugin(receipts(AllTogether(101)), threads(blocking)), workers=1)
    engine.start()
    engine.enqueue_many([receipt("hello", b"group %d" % number) for number in range(50)])
    engine.enqueue_many([receipt(str(number)) for number in range(50)])
    engine.enqueue(thread("hello"))
    engine.enqueue(receipt("the last", b"last"))

    assert engine.wait_idle(WAIT_S)

    assert blocking.played == ["hello"]
    assert engine.health().counters["done"] == 102
    assert engine.health().threads == 1


def test_the_next_task_of_a_group_waits_for_the_coroutine(make_engine: MakeEngine) -> None:
    order: list[str] = []

    async def coroutine(message: Any, ctx: TaskContext) -> None:
        order.append(f"{message.text} begins")
        for _ in range(5):
            await asyncio.sleep(0)
        order.append(f"{message.text} ends")

    def blocking(message: Any, ctx: TaskContext) -> None:
        order.append(message.receipt.text)

    with make_engine(Plugin(receipts(coroutine), threads(blocking)), workers=4) as engine:
        for message in (receipt("one", b"group"), thread("two", b"group"), receipt("three", b"group")):
            engine.enqueue(message)
        assert engine.wait_idle(WAIT_S)

    for text in ("one", "three"):
        assert order[order.index(f"{text} begins") + 1] == f"{text} ends"
    assert "two" in order


def test_what_a_coroutine_returns_is_its_outcome(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    async def handler(message: Any, ctx: TaskContext) -> Any:
        return {"done": Done(), "again": RescheduleAt(HOUR), "nonsense": "nonsense"}[message.text]

    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue_many([receipt("done"), receipt("again"), receipt("nonsense")])
    assert engine.run_due() == 3

    again, nonsense = sorted(engine.tasks(), key=lambda task: task.attempts)
    assert (again.attempts, again.last_error) == (0, None)
    assert again.next_attempt_at_ns == callboard_clock.now_ns() + 3_600 * 10**9
    assert nonsense.attempts == 1 and "no outcome" in str(nonsense.last_error)


@pytest.mark.parametrize(
    "make_handler",
    [
        lambda coroutine: functools.partial(coroutine),
        lambda coroutine: type("Handler", (), {"__call__": lambda self, message, ctx: None})(),
        lambda coroutine: type("Handler", (), {"handle": staticmethod(coroutine)})().handle,
    ],
    ids=["partial", "object", "method"],
)
def test_any_callable_is_a_handler(make_handler: Any, make_engine: MakeEngine) -> None:
    async def coroutine(message: Any, ctx: TaskContext) -> None:
        await asyncio.sleep(0)

    engine = make_engine(Plugin(receipts(make_handler(coroutine))))
    engine.enqueue(receipt("hello"))
    engine.run_due()

    assert engine.tasks() == []


def test_a_function_that_returns_a_coroutine_is_told_what_it_should_be(make_engine: MakeEngine) -> None:
    async def coroutine(message: Any, ctx: TaskContext) -> None:
        raise AssertionError

    engine = make_engine(Plugin(receipts(lambda message, ctx: coroutine(message, ctx))))
    engine.enqueue(receipt("hello"))
    engine.run_due()

    assert "async def" in str(engine.tasks()[0].last_error)


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt()], ids=repr)
def test_what_a_coroutine_raises_does_not_end_the_hosts_loop(
    error: BaseException, make_engine: MakeEngine
) -> None:
    """asyncio lets these two out of `run_forever`."""

    async def handler(message: Any, ctx: TaskContext) -> None:
        raise error

    engine = make_engine(Plugin(receipts(handler)))

    async def main() -> int:
        async with engine:
            await engine.aenqueue(receipt("hello"))
            assert await asyncio.to_thread(engine.wait_idle, WAIT_S)
            [task] = await asyncio.to_thread(engine.tasks)
            return task.attempts

    assert asyncio.run(main()) == 1


def test_a_loop_that_its_host_closed_fails_the_attempt(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Loops()), threads(Scripted())))

    async def main() -> None:
        await engine.__aenter__()

    asyncio.run(main())
    engine.enqueue_many([receipt("alone"), receipt("grouped", b"group"), thread("fine", b"group")])

    assert engine.wait_idle(WAIT_S)
    left = engine.tasks()
    assert [task.attempts for task in left] == [1, 1]
    assert all("closed" in str(task.last_error) for task in left)


# Timeouts and stops


def test_a_timed_out_coroutine_is_cancelled_and_holds_its_group_while_it_cleans_up(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    begun, cleaning, clean = threading.Event(), threading.Event(), threading.Event()
    cancellations: list[bool] = []

    async def handler(message: Any, ctx: TaskContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancellations.append(ctx.cancelled)
            cleaning.set()
            await asyncio.to_thread(clean.wait, WAIT_S)
            raise

    following = Blocking()
    engine = make_engine(Plugin(receipts(handler, timeout=timedelta(minutes=1)), threads(following)))
    engine.start()
    engine.enqueue(receipt("hello", b"group"))
    assert begun.wait(WAIT_S)
    engine.enqueue(thread("next", b"group"))

    callboard_clock.advance(timedelta(minutes=2))
    assert cleaning.wait(WAIT_S)
    following.let_go()
    engine.enqueue(thread("passer-by"))
    following.wait_begun("passer-by")
    assert following.begun == ["passer-by"]
    assert [overdue.stack for overdue in engine.health().overdue] == [""]

    clean.set()
    assert engine.wait_idle(WAIT_S)
    assert following.begun == ["passer-by", "next"]
    assert cancellations == [True]
    [task] = engine.tasks()
    assert task.attempts == 1 and "time was over" in str(task.last_error)


@pytest.mark.parametrize("how", ["its time seems over", "the lease was lost"])
def test_what_is_cancelled_before_its_handler_was_called_is_no_failed_attempt(
    how: str, make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that blocks its loop holds up the others on it."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    handler = Blocking()
    attempts: list[int] = []

    async def blocking(message: Any, ctx: TaskContext) -> Any:
        attempts.append(ctx.task.attempts)
        return handler(message, ctx)

    engine = make_engine(Plugin(receipts(blocking, timeout=timedelta(minutes=1))))
    engine.start()
    engine.enqueue(receipt("first"))
    handler.wait_begun("first")
    second = engine.enqueue(receipt("second")).task_id or 0
    running = engine._core.running
    assert running is not None
    eventually(lambda: second in running.workload.runs and running.workload.runs[second].cancel_coroutine)
    if how == "the lease was lost":
        running.cancel(second)
    else:
        callboard_clock.advance(timedelta(minutes=2))
        eventually(lambda: handler.contexts["first"].cancelled)
        assert [overdue.task_id for overdue in engine.health().overdue] == [second - 1]

    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert handler.begun == ["first", "second"]
    assert attempts == [0, 0]


def test_a_coroutine_may_finish_in_spite_of_its_cancellation(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    begun = threading.Event()

    async def handler(message: Any, ctx: TaskContext) -> Done:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return Done()

    engine = make_engine(Plugin(receipts(handler, timeout=timedelta(minutes=1))))
    engine.start()
    engine.enqueue(receipt("hello"))
    assert begun.wait(WAIT_S)

    callboard_clock.advance(timedelta(minutes=2))

    assert engine.wait_idle(WAIT_S)
    assert engine.health().counters == {"done": 1, "dead": 0, "failed": 0, "stale": 0}


def test_leaving_the_engine_drains_coroutines_on_the_hosts_loop(make_engine: MakeEngine) -> None:
    ended: list[str] = []
    go_on = asyncio.Event()

    async def handler(message: Any, ctx: TaskContext) -> None:
        begun.set()
        await go_on.wait()
        ended.append(message.text)

    engine = make_engine(Plugin(receipts(handler)))
    begun = threading.Event()

    async def main() -> None:
        async with engine:
            await engine.aenqueue(receipt("hello"))
            assert await asyncio.to_thread(begun.wait, WAIT_S)
            asyncio.get_running_loop().call_later(0.02, go_on.set)

    asyncio.run(main())

    assert ended == ["hello"]


def test_stop_cancels_coroutines_that_are_not_done_in_time(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def handler(message: Any, ctx: TaskContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("hello"))
    assert begun.wait(WAIT_S)

    engine.stop(timeout=0)

    assert cancelled.wait(WAIT_S)
    [(attempts, error)] = sql(callboard_database, "SELECT attempts, last_error FROM callboard_task")
    assert (attempts, error) == (0, None)  # the stop is no fault of the task's


def test_a_timeout_while_a_stop_waits_is_a_failed_attempt(
    make_engine: MakeEngine, callboard_clock: FakeClock, callboard_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    begun = threading.Event()

    async def handler(message: Any, ctx: TaskContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    engine = make_engine(Plugin(receipts(handler, timeout=timedelta(minutes=1))))
    engine.start()
    engine.enqueue(receipt("hello"))
    assert begun.wait(WAIT_S)
    running = engine._core.running
    assert running is not None
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    eventually(lambda: running.runner.stopping)
    callboard_clock.advance(timedelta(minutes=2))

    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert sql(callboard_database, "SELECT state, attempts FROM callboard_task") == [("pending", 1)]


def test_stop_hands_back_what_its_loop_has_not_come_to(make_engine: MakeEngine, callboard_database: str) -> None:
    handler = Blocking()

    async def blocking(message: Any, ctx: TaskContext) -> Any:
        return handler(message, ctx)

    engine = make_engine(Plugin(receipts(blocking)))
    engine.start()
    engine.enqueue(receipt("first"))
    handler.wait_begun("first")
    second = engine.enqueue(receipt("second")).task_id or 0
    running = engine._core.running
    assert running is not None
    eventually(lambda: second in running.workload.runs and running.workload.runs[second].cancel_coroutine)

    assert not engine.stop(timeout=0)
    states = sql(callboard_database, "SELECT state, attempts FROM callboard_task ORDER BY id")
    assert states == [("running", 0), ("pending", 0)]
    handler.let_go()
    assert handler.begun == ["first"]


# aenqueue


def test_aenqueue_takes_and_answers_what_enqueue_does(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    async def main() -> list[EnqueueStatus]:
        answers = [
            await engine.aenqueue(receipt("hello"), not_before=HOUR, key="key", group_id=b"group", origin="test"),
            await engine.aenqueue(receipt("hello"), key="key"),
            await engine.aenqueue(receipt("other"), key="key"),
        ]
        with pytest.raises(UnknownKindError):
            await engine.aenqueue(thread("unknown"))
        return [answer.status for answer in answers]

    assert asyncio.run(main()) == [EnqueueStatus.INSERTED, EnqueueStatus.MERGED, EnqueueStatus.CONFLICT]
    [task] = engine.tasks()
    assert (task.group_id, task.origin) == (b"group", "test")
    assert task.next_attempt_at_ns == task.created_at_ns + 3_600 * 10**9


def test_aenqueue_does_not_block_the_loop(make_engine: MakeEngine, tmp_path: Path) -> None:
    """The loop itself releases the lock that the enqueue waits for."""
    path = str(tmp_path / "host.db")
    engine = make_engine(
        Plugin(receipts(Scripted())), database=peewee.SqliteDatabase(path, pragmas={"journal_mode": "wal"})
    )
    engine.migrate()

    async def main() -> EnqueueStatus:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            enqueueing = asyncio.create_task(engine.aenqueue(receipt("hello")))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not enqueueing.done()
            other.execute("COMMIT")
            return (await enqueueing).status

    assert asyncio.run(main()) == EnqueueStatus.INSERTED


def test_async_with_is_a_start_and_a_stop(make_engine: MakeEngine) -> None:
    engine = make_engine()

    async def main() -> None:
        async with engine as entered:
            assert entered is engine
            assert engine.health().state == "running"
        with pytest.raises(EngineStateError):
            async with engine:
                pass

    asyncio.run(main())
