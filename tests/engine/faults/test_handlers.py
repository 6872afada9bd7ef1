"""Handlers that harm what is around them: they fail, and the engine and the others go on."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
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
from tests.engine.rows import path_of

from callboard import CompletionError, EngineStateError, TaskContext
from callboard.testing import FakeClock

AFTER_BACKOFF = timedelta(seconds=3)


@pytest.fixture(params=["url", "peewee"])
def database(request: pytest.FixtureRequest, callboard_database: str) -> Any:
    """The database as a URL and as the host's own."""
    if request.param == "url":
        return callboard_database
    return peewee.SqliteDatabase(path_of(callboard_database), pragmas={"journal_mode": "wal"})


def close_in_complete(ctx: TaskContext) -> None:
    with ctx.complete() as tx:
        tx.enqueue(thread("never"))
        tx.connection.close()


def close_in_transaction(ctx: TaskContext) -> None:
    with ctx.engine.transaction() as tx:
        tx.enqueue(thread("never"))
        tx.connection.close()


@pytest.mark.parametrize("harm", [close_in_complete, close_in_transaction])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["function", "coroutine"])
def test_a_handler_that_closes_the_connection_it_got_fails_and_the_next_one_gets_another(
    asynchronous: bool, harm: Callable[[TaskContext], None], make_engine: MakeEngine, database: Any
) -> None:
    harmful = True

    def act(ctx: TaskContext) -> None:
        if harmful:
            harm(ctx)
        else:
            with ctx.complete() as tx:
                tx.enqueue(thread("effect"))

    def send(message: Any, ctx: TaskContext) -> None:
        act(ctx)

    async def send_later(message: Any, ctx: TaskContext) -> None:
        act(ctx)

    effects = Scripted()
    plugin = Plugin(receipts(send_later if asynchronous else send), threads(effects))
    with make_engine(plugin, database=database, workers=1) as engine:
        engine.enqueue(receipt("harmful"))
        eventually(lambda: [task.attempts for task in engine.tasks()] == [1])
        assert engine.wait_idle(WAIT_S)
        assert effects.played == []
        harmful = False
        engine.enqueue(receipt("harmless"))
        eventually(lambda: effects.played)
        assert engine.wait_idle(WAIT_S)
        [failed] = engine.tasks()
        assert "Error" in (failed.last_error or "")
        assert engine.health().database_error is None

    assert effects.played == ["effect"]


def test_a_coroutine_that_awaits_and_fails_leaves_the_effects_of_others_alone(make_engine: MakeEngine) -> None:
    """They share a thread, and so its connection: neither what it buffered nor its transaction is theirs."""
    inside, tried = asyncio.Event(), asyncio.Event()
    refused: list[str] = []

    async def send(message: Any, ctx: TaskContext) -> None:
        match message.text:
            case "fails":
                ctx.enqueue(thread("buffered"))
                await inside.wait()
                await tried.wait()
                raise RuntimeError("after the others")
            case "fails in a transaction":
                with ctx.engine.transaction() as tx:
                    tx.enqueue(thread("rolled back"))
                    inside.set()
                    await tried.wait()
                    raise RuntimeError("inside")
            case "completes":
                await inside.wait()
                try:
                    ctx.engine.enqueue(thread("would be rolled back with a stranger's"))
                except CompletionError as error:
                    refused.append(str(error))
                tried.set()
                while ctx.engine.health().counters["failed"] < 2:
                    await asyncio.sleep(0.005)
                with ctx.complete() as tx:
                    tx.enqueue(thread("effect"))
                    ctx.enqueue(thread("follow-up"))

    effects = Scripted()
    with make_engine(Plugin(receipts(send), threads(effects))) as engine:
        engine.enqueue_many([receipt(text) for text in ("fails", "fails in a transaction", "completes")])
        assert engine.wait_idle(WAIT_S)
        assert [task.attempts for task in engine.tasks()] == [1, 1]

    assert sorted(effects.played) == ["effect", "follow-up"]
    [why] = refused
    assert "another async handler awaits inside ctx.complete or engine.transaction()" in why


@pytest.mark.parametrize("call", ["stop", "wait_idle"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["function", "coroutine"])
def test_a_handler_that_waits_for_its_own_engine_is_refused(
    asynchronous: bool, call: str, make_engine: MakeEngine
) -> None:
    def send(message: Any, ctx: TaskContext) -> None:
        getattr(ctx.engine, call)()

    async def send_later(message: Any, ctx: TaskContext) -> None:
        if message.text == "to a thread":
            await asyncio.to_thread(getattr(ctx.engine, call))
        send(message, ctx)

    handler = Scripted()
    with make_engine(Plugin(receipts(send_later if asynchronous else send), threads(handler))) as engine:
        engine.enqueue_many([receipt("hello"), receipt("to a thread", b"group")])
        assert engine.wait_idle(WAIT_S)
        assert [task.attempts for task in engine.tasks()] == [1, 1]
        assert all(f"{call} waits for handlers and hooks" in (task.last_error or "") for task in engine.tasks())
        engine.enqueue(thread("after"))
        assert engine.wait_idle(WAIT_S)
        assert engine.stop()

    assert handler.played == ["after"]


@pytest.mark.parametrize("call", ["stop", "wait_idle"])
@pytest.mark.parametrize("hook", ["reconcile", "event", "tasks_finished"])
def test_a_hook_that_waits_for_its_own_engine_is_refused(hook: str, call: str, make_engine: MakeEngine) -> None:
    hooks: dict[str, Any] = {
        "reconcile": lambda engine, reason: getattr(engine, call)(),
        "event": lambda engine, event: getattr(engine, call)(),
        "tasks_finished": lambda engine, finished: getattr(engine, call)(),
    }
    kinds: Any = {hook: hooks[hook]}
    with make_engine(Plugin(receipts(Scripted()), **kinds)) as engine:
        engine.publish("an event")
        engine.enqueue(receipt("hello"))
        assert engine.wait_idle(WAIT_S)
        [plugin] = engine.health().plugins
        assert "waits for handlers and hooks" in plugin.problems[f"callboard_{hook}"]


def test_a_handler_may_stop_another_engine_and_have_its_own_stopped_later(
    make_engine: MakeEngine, tmp_path: Any
) -> None:
    other = make_engine(database=f"sqlite:///{tmp_path}/other.db")
    other.start()
    own = []

    async def send(message: Any, ctx: TaskContext) -> None:
        assert await asyncio.to_thread(other.stop)

        async def stop_later() -> None:
            while ctx.engine.tasks():
                await asyncio.sleep(0.005)
            own.append(await asyncio.to_thread(ctx.engine.stop))

        later.append(asyncio.create_task(stop_later()))

    later: list[Any] = []

    async def main() -> None:
        async with make_engine(Plugin(receipts(send))) as engine:
            await engine.aenqueue(receipt("hello"))
            while not own:
                await asyncio.sleep(0.005)

    asyncio.run(main())
    assert own == [True]
    with pytest.raises(EngineStateError):
        other.tasks()


def test_handlers_that_never_return_hold_all_workers_but_one_and_the_others_go_on(
    make_engine: MakeEngine, callboard_clock: FakeClock, callboard_database: str
) -> None:
    """Three blocking ones and a coroutine, each in its group; they are shown, and run again after the stop."""
    stuck, never = Blocking(), asyncio.Event()
    waiting: list[str] = []

    async def wait(message: Any, ctx: TaskContext) -> None:
        waiting.append("begun")
        while not never.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue  # it never returns

    engine = make_engine(Plugin(receipts(stuck), threads(wait)), workers=4)
    engine.start()
    groups = [b"stuck 1", b"stuck 2", b"stuck 3"]
    engine.enqueue_many([receipt(f"stuck {number}", group) for number, group in enumerate(groups)])
    engine.enqueue(thread("waits", b"waiting"))
    stuck.wait_count(3)
    eventually(lambda: waiting)

    texts = [f"passes {number}" for number in range(100)]
    stuck.let_go(*texts)
    engine.enqueue_many([receipt(text, text.encode()[-1:]) for text in texts])
    engine.enqueue_many([receipt("behind", group) for group in groups])
    eventually(lambda: engine.health().counters["done"] == 100)
    assert "behind" not in stuck.begun

    callboard_clock.advance(timedelta(minutes=5, seconds=1))
    eventually(lambda: all(stuck.contexts[f"stuck {number}"].cancelled for number in range(3)))
    overdue = engine.health().overdue
    assert len(overdue) == 4
    assert sum("in __call__" in run.stack for run in overdue) == 3
    assert engine.stop(timeout=0) is False

    following = Blocking()
    following.let_go()
    others = Scripted()
    with make_engine(Plugin(receipts(following), threads(others))) as successor:
        callboard_clock.advance(timedelta(minutes=1))  # the lease is over
        eventually(lambda: not successor.tasks())
    never.set()
    stuck.let_go()
    assert sorted(following.begun) == ["behind"] * 3 + ["stuck 0", "stuck 1", "stuck 2"]
    assert others.played == ["waits"]
    with closing(sqlite3.connect(path_of(callboard_database))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
