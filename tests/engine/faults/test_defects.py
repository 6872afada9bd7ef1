"""Parts of the engine die of what is raised in them or thrown into them: each goes on, and so does its work."""

import asyncio
import ctypes
import gc
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pykka
import pytest
from tests.engine.acting import (
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.rows import sql

from callboard import Engine
from callboard._actors.dispatcher import OneThread, ThreadPool
from callboard._actors.group import GroupActor
from callboard._actors.mailbox import SchedulerActor
from callboard._actors.runner import Runner
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

SECOND = timedelta(seconds=1)
AFTER_BACKOFF = timedelta(seconds=3)


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the alarm ring often, so that what is thrown into its thread arrives soon."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)


def throw_into(name: str, before: set[threading.Thread]) -> threading.Thread:
    """Throw `SystemExit` into the thread of that name which is none of `before`; it arrives when it next runs."""
    [victim] = [each for each in threading.enumerate() if each.name == name and each not in before]
    assert victim.ident is not None
    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert throw(ctypes.c_ulong(victim.ident), ctypes.py_object(SystemExit)) == 1
    return victim


class Once:
    """A method in place of another: it raises the first time it is called, and the other is called after that."""

    def __init__(self, original: Callable[..., Any], error: BaseException) -> None:
        self._original = original
        self._error: BaseException | None = error

    def __get__(self, instance: Any, owner: Any) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return self._original(instance, *args, **options)

        return call


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("callboard-alarm", "the alarm"),
        ("callboard-heartbeat", "the heartbeat"),
        ("callboard-scheduler", "the scheduler's"),
        ("callboard-1", "a thread of the pool"),
        ("callboard-watch", "the pool's watch"),
        ("callboard-loop", "the loop of coroutine handlers"),
    ],
)
def test_a_thread_into_which_an_exception_is_thrown_goes_on(
    name: str, part: str, make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    handler = Blocking()
    awaited: list[str] = []

    async def wait(message: Any, ctx: Any) -> None:
        await asyncio.sleep(0)
        awaited.append(message.receipt.text)

    before = {each for each in threading.enumerate() if each.name.startswith("callboard")}
    engine = make_engine(Plugin(receipts(handler), threads(wait)), lease=timedelta(seconds=0.3))

    def work(*texts: str) -> None:
        """Have every part do something: sleep and ring, beat, claim, run side by side, and await."""
        awaited.clear()
        engine.enqueue_many([receipt(text) for text in texts])
        engine.enqueue(receipt(f"{texts[0]} later"), not_before=SECOND)
        engine.enqueue(thread(texts[0]))
        handler.wait_begun(*texts)  # at once, so the pool has grown
        beats = "SELECT heartbeat_at_ns FROM callboard_node"
        first = sql(callboard_database, beats)
        eventually(lambda: sql(callboard_database, beats) != first)
        eventually(lambda: awaited)
        callboard_clock.advance(SECOND)
        handler.wait_begun(f"{texts[0]} later")
        handler.let_go(*texts, f"{texts[0]} later")
        assert engine.wait_idle(WAIT_S)

    with logged("ERROR") as log:
        engine.start()
        work("one", "two")
        victim = throw_into(name, before)
        work("three", "four")
        assert engine.stop(WAIT_S)

    assert part in log[0] and " failed" in log[0] and "SystemExit" in log[0]
    victim.join(WAIT_S)
    assert not victim.is_alive()  # it ended with its engine, and not before
    # The thread that was hit may not have given its connection back, or have lost one that was being made.
    engine._core.store.database.close_all()  # type: ignore[attr-defined]
    gc.collect()


@pytest.mark.parametrize("make", [lambda: OneThread("the victim"), lambda: ThreadPool(1, "the victim")])
def test_a_call_outlives_what_is_thrown_into_the_idle_thread_that_gets_it(make: Callable[[], Any]) -> None:
    before = set(threading.enumerate())
    dispatcher = make()
    name = "the victim" if isinstance(dispatcher, OneThread) else "the victim-1"
    called = threading.Semaphore(0)
    with logged("ERROR") as log:
        for _ in range(10):
            dispatcher.submit(called.release)
            assert called.acquire(timeout=WAIT_S)
            throw_into(name, before)
            dispatcher.submit(called.release)
            assert called.acquire(timeout=WAIT_S)
    dispatcher.close()
    assert len(log) == 10


ERRORS = [ZeroDivisionError("a bug"), SystemExit("a bug"), KeyboardInterrupt("a bug")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_group_actor_that_fails_goes_on_and_its_task_runs_again(
    error: BaseException, make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Scripted()
    host = pykka.ThreadingActor.start()
    monkeypatch.setattr(GroupActor, "on_receive", Once(GroupActor.on_receive, error))
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue_many([receipt("one", b"group"), receipt("two", b"group"), receipt("other", b"other")])
        assert engine.wait_idle(WAIT_S)
        first = list(handler.played)
        failed = engine.tasks()
        assert [(task.attempts, "a bug" in (task.last_error or "")) for task in failed] == [(1, True)] * len(
            failed
        )
        callboard_clock.advance(AFTER_BACKOFF)
        eventually(lambda: not engine.tasks())

    assert len(failed) == 3 - len(first) > 0, "a group's runs reach its actor together"
    assert sorted(handler.played) == ["one", "other", "two"]
    assert host.is_alive()
    host.stop()


def actors_of(engine: Engine) -> list[pykka.ActorRef[GroupActor]]:
    assert engine._core.running is not None
    return [entry.actor for entry in engine._core.running.router._actors.values()]


def test_a_group_actor_that_is_stopped_from_outside_stays_for_what_waits_in_it(make_engine: MakeEngine) -> None:
    handler = Blocking()
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("one", b"group"))
        handler.wait_begun("one")
        [actor] = actors_of(engine)
        actor.stop(block=False)
        engine.enqueue(receipt("two", b"group"))
        handler.let_go()
        assert engine.wait_idle(WAIT_S)

    assert handler.begun == ["one", "two"]


def test_the_group_of_an_actor_that_is_gone_is_free_again(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pykka has ended it although it refuses: what waited in its inbox is a failed attempt."""
    handler = Blocking()
    with logged("ERROR"), make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("one", b"group"))
        handler.wait_begun("one")
        engine.enqueue(receipt("two", b"group"))
        [actor] = actors_of(engine)
        eventually(lambda: not actor.actor_inbox.empty())
        monkeypatch.setattr(GroupActor, "_stop", pykka.Actor._stop)
        actor.actor_stopped.set()
        handler.let_go()
        assert engine.wait_idle(WAIT_S)
        [failed] = engine.tasks()
        assert "the group's actor was stopped" in (failed.last_error or "")
        callboard_clock.advance(AFTER_BACKOFF)
        eventually(lambda: not engine.tasks())

    assert handler.begun == ["one", "two"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("group", [b"group", b""], ids=["group", "loose"])
def test_a_run_that_fails_outside_its_handler_is_a_failed_attempt(
    group: bytes,
    error: BaseException,
    make_engine: MakeEngine,
    callboard_clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = Scripted()
    monkeypatch.setattr(Runner, "_run", Once(Runner._run, error))
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("one", group))
        assert engine.wait_idle(WAIT_S)
        assert [task.attempts for task in engine.tasks()] == [1]
        callboard_clock.advance(AFTER_BACKOFF)
        eventually(lambda: not engine.tasks())

    assert handler.played == ["one"]


def test_an_interrupt_in_the_engines_own_code_ends_run_due_and_nothing_else(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Scripted()
    host = pykka.ThreadingActor.start()
    monkeypatch.setattr(GroupActor, "on_receive", Once(GroupActor.on_receive, KeyboardInterrupt()))
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("one", b"group"))

    with pytest.raises(KeyboardInterrupt):
        engine.run_due()

    assert [(task.state, task.attempts) for task in engine.tasks()] == [("pending", 0)]
    assert engine.run_due() == 1
    assert host.is_alive()
    host.stop()


@pytest.mark.parametrize("hook", ["reconcile", "tasks_finished", "event"])
def test_an_interrupt_in_a_hook_ends_run_due_and_nothing_else(hook: str, make_engine: MakeEngine) -> None:
    """The hook runs on the thread of `run_due`, so the interrupt is the user's."""
    host = pykka.ThreadingActor.start()
    lines: list[BaseException] = [KeyboardInterrupt()]

    def interrupted(**_: Any) -> None:
        if lines:
            raise lines.pop()

    hooks: Any = {
        "reconcile": lambda engine, reason: interrupted(),
        "tasks_finished": lambda engine, finished: interrupted(),
        "event": lambda engine, event: interrupted(),
    }
    engine = make_engine(Plugin(receipts(Scripted()), **{hook: hooks[hook]}))
    engine.enqueue(receipt("one"))

    with pytest.raises(KeyboardInterrupt):
        if hook == "event":
            engine.publish("an event")
        engine.run_due()

    engine.run_due()
    assert engine.tasks() == []
    assert host.is_alive()
    host.stop()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["on_receive", "_postpone", "_handle"])
def test_the_schedulers_actor_that_fails_goes_on(
    method: str, error: BaseException, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Scripted()
    with make_engine(Plugin(receipts(handler))) as engine:
        assert engine.wait_idle(WAIT_S)
        if method == "_postpone":
            monkeypatch.setattr(SchedulerActor, "_handle", Once(SchedulerActor._handle, error))
        monkeypatch.setattr(SchedulerActor, method, Once(getattr(SchedulerActor, method), error))
        engine.enqueue(receipt("one", b"group"))
        eventually(lambda: handler.played)
        assert engine.wait_idle(WAIT_S)
        assert engine.tasks() == []


def test_the_schedulers_actor_that_is_stopped_from_outside_goes_on(make_engine: MakeEngine) -> None:
    handler = Scripted()
    with make_engine(Plugin(receipts(handler))) as engine:
        assert engine._core.running is not None
        engine._core.running.actor.actor_ref.stop(timeout=WAIT_S)
        engine.enqueue(receipt("one"))
        assert engine.wait_idle(WAIT_S)
        assert engine.stop(WAIT_S)

    assert handler.played == ["one"]


def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


def exit_from_the_loop() -> None:
    def leave() -> None:
        raise SystemExit("a callback of the handler's")

    asyncio.get_running_loop().call_soon(leave)


@pytest.mark.parametrize("harm", [stop_the_loop, exit_from_the_loop])
def test_a_coroutine_handler_that_ends_the_private_loop_ends_no_others(
    harm: Callable[[], None], make_engine: MakeEngine
) -> None:
    ended: list[str] = []
    others_begun = asyncio.Event()
    harmed = threading.Event()

    async def send(message: Any, ctx: Any) -> None:
        if message.text == "harmful":
            await others_begun.wait()
            harm()
            await asyncio.sleep(0.05)
            harmed.set()
        elif message.text == "beside":
            others_begun.set()
            while not harmed.is_set():
                await asyncio.sleep(0.01)
        ended.append(message.text)

    with make_engine(Plugin(receipts(send))) as engine:
        engine.enqueue_many([receipt("harmful"), receipt("beside")])
        assert engine.wait_idle(WAIT_S)
        engine.enqueue(receipt("after"))
        assert engine.wait_idle(WAIT_S)
        assert engine.tasks() == []

    assert sorted(ended) == ["after", "beside", "harmful"]


@pytest.fixture(autouse=True)
def quiet_pykka() -> Any:
    """Pykka's own log is no part of what an operator sees."""
    logging.getLogger("pykka").disabled = True
    yield
    logging.getLogger("pykka").disabled = False
