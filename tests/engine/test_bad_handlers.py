"""A handler that raises, returns or completes what it must not has failed an attempt, and the engine goes on."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    MakeEngine,
    Plugin,
    Scripted,
    logged,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.messages import SendReceipt
from tests.engine.rows import payload

from callboard import (
    CompletionError,
    Defer,
    Done,
    Engine,
    TaskContext,
    TaskKind,
)


class OwnError(BaseException):
    """No `Exception`."""


class UnspeakableError(Exception):
    """An exception that raises another when it is asked what it is."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Unspeakable:
    """An object that nobody can print."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


# Handlers


ERRORS = [
    ZeroDivisionError("oops"),
    SystemExit("oops"),
    KeyboardInterrupt("oops"),
    GeneratorExit("oops"),
    StopIteration("oops"),
    StopAsyncIteration("oops"),
    asyncio.CancelledError("oops"),
    OwnError("oops"),
    UnspeakableError("oops"),
    ValueError("half a pair: \ud800"),
    ValueError("nul: \0"),
    ValueError("long: " + "x" * 100_000),
    ExceptionGroup("several", [ValueError("one"), ZeroDivisionError("two")]),
]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["function", "coroutine"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_handler_that_raises_anything_has_failed_an_attempt_with_the_traceback_in_last_error(
    make_engine: MakeEngine, error: BaseException, asynchronous: bool
) -> None:
    with make_engine(Plugin(receipts(playing(error, asynchronous, raises=True)))) as engine:
        for group in (b"", b"g"):
            engine.enqueue(receipt("first", group))
            assert engine.wait_idle(WAIT_S)
            engine.enqueue(receipt("second", group))  # which shows that all goes on
            assert engine.wait_idle(WAIT_S)

        tasks = engine.tasks()
        assert engine.health().counters["failed"] == 4
        assert engine.health().database_error is None
    assert [(task.state, task.attempts) for task in tasks] == [("pending", 1)] * 4
    for task in tasks:
        assert type(error).__name__ in (task.last_error or "")
        assert len(task.last_error or "") <= 10_000
    if len(str(error.args)) < 1_000:
        assert "in play" in (tasks[0].last_error or "")  # the handler's own frame


def playing(line: Any, asynchronous: bool, *, raises: bool) -> Callable[..., Any]:
    """Return a handler that raises or returns one thing."""

    def play(message: Message, ctx: TaskContext) -> Any:
        if raises:
            raise line
        return line

    async def play_later(message: Message, ctx: TaskContext) -> Any:
        await asyncio.sleep(0)
        return play(message, ctx)

    return play_later if asynchronous else play


async def a_coroutine() -> None:
    """Do nothing."""


@pytest.mark.parametrize("asynchronous", [False, True], ids=["function", "coroutine"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: 7, id="number"),
        pytest.param(lambda: True, id="true"),
        pytest.param(lambda: False, id="false"),
        pytest.param(lambda: "done", id="text"),
        pytest.param(lambda: Done, id="class"),
        pytest.param(lambda: [Done()], id="list"),
        pytest.param(lambda: iter(()), id="generator"),
        pytest.param(a_coroutine, id="coroutine"),
        pytest.param(Unspeakable, id="unspeakable"),
        pytest.param(lambda: NotImplemented, id="not-implemented"),
    ],
)
def test_a_handler_that_returns_no_outcome_has_failed_an_attempt_that_says_so(
    make_engine: MakeEngine, make: Callable[[], Any], asynchronous: bool
) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> Any:
        return make()

    async def send_later(message: SendReceipt, ctx: TaskContext) -> Any:
        return make()

    with make_engine(Plugin(receipts(send_later if asynchronous else send))) as engine:
        engine.enqueue(receipt("read"))
        assert engine.wait_idle(WAIT_S)
        [task] = engine.tasks()

    assert (task.state, task.attempts) == ("pending", 1)
    assert any(word in (task.last_error or "") for word in ("the handler returned", "ZeroDivisionError"))


def test_a_kind_whose_group_cannot_be_told_fails_at_the_enqueue(make_engine: MakeEngine) -> None:
    kind = TaskKind(SendReceipt, Scripted(), group_id=lambda message: b"g" * 256)
    engine = make_engine(Plugin(kind))

    with pytest.raises(ValueError, match="group_id must be 1 to 255 bytes"):
        engine.enqueue(receipt("read"))

    assert engine.tasks() == []


# ctx.complete


def run_one(make_engine: MakeEngine, handler: Callable[..., Any]) -> Engine:
    """Run one receipt with this handler; threads are taken and kept, as what the handler leaves behind."""
    engine = make_engine(Plugin(receipts(handler), threads(Scripted(Defer(timedelta(days=1))))))
    engine.enqueue(receipt("read"))
    engine.run_due()
    return engine


def test_complete_twice_is_refused_and_the_first_stands(make_engine: MakeEngine) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        with ctx.complete(Done()) as tx:
            tx.enqueue(thread("first"))
        with ctx.complete(Done()) as tx:
            tx.enqueue(thread("second"))

    with logged("WARNING") as log:
        engine = run_one(make_engine, send)

    assert [task.data for task in engine.tasks()] == [payload(thread("first"))]
    [line] = log
    assert "raised after ctx.complete had committed; its outcome stands" in line
    assert "CompletionError" in line
    assert "has been completed" in line


def test_complete_inside_complete_is_refused_and_nothing_is_committed(make_engine: MakeEngine) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        with ctx.complete(Done()) as tx:
            tx.enqueue(thread("outer"))
            with ctx.complete(Done()):
                raise AssertionError

    engine = run_one(make_engine, send)

    [task] = engine.tasks()
    assert (task.kind, task.attempts) == (RECEIPT, 1)
    assert "CompletionError" in (task.last_error or "")


def test_complete_inside_another_transaction_is_refused(make_engine: MakeEngine) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        with ctx.engine.transaction() as outer:
            outer.enqueue(thread("outer"))
            with pytest.raises(CompletionError, match="leave the one this thread is in first"), ctx.complete():
                raise AssertionError

    engine = run_one(make_engine, send)

    assert [task.data for task in engine.tasks()] == [payload(thread("outer"))]


def test_nothing_can_be_added_after_complete(make_engine: MakeEngine) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        with ctx.complete():
            pass
        with pytest.raises(CompletionError, match=r"ctx\.complete is the handler's last act"):
            ctx.enqueue(thread("too late"))
        refused.append(message.text)

    refused: list[str] = []
    engine = run_one(make_engine, send)

    assert refused == ["read"]
    assert engine.tasks() == []


@pytest.mark.parametrize("outcome", ["done", Done, 7, ZeroDivisionError()])
def test_complete_with_something_that_is_no_outcome_is_refused_and_nothing_is_committed(
    make_engine: MakeEngine, outcome: Any
) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        with ctx.complete(outcome) as tx:
            tx.enqueue(thread("never"))

    engine = run_one(make_engine, send)

    [task] = engine.tasks()
    assert (task.kind, task.attempts) == (RECEIPT, 1)
    assert "CompletionError" in (task.last_error or "")
    assert "which is no outcome" in (task.last_error or "")


def test_awaiting_inside_complete_is_refused_and_nothing_is_committed(make_engine: MakeEngine) -> None:
    async def send(message: SendReceipt, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            tx.enqueue(thread("never"))
            await asyncio.sleep(0)

    engine = run_one(make_engine, send)

    [task] = engine.tasks()
    assert (task.kind, task.attempts) == (RECEIPT, 1)
    assert "ctx.complete was awaited inside; do all awaiting before it" in (task.last_error or "")


def test_a_coroutine_may_complete_without_awaiting(make_engine: MakeEngine) -> None:
    async def send(message: SendReceipt, ctx: TaskContext) -> None:
        await asyncio.sleep(0)
        with ctx.complete() as tx:
            tx.enqueue(thread("follow-up"))

    engine = run_one(make_engine, send)

    assert [task.data for task in engine.tasks()] == [payload(thread("follow-up"))]


def test_another_coroutine_gets_an_error_and_not_the_transaction_of_one_that_awaits_inside_complete(
    make_engine: MakeEngine,
) -> None:
    async def send(message: SendReceipt, ctx: TaskContext) -> None:
        if message.text == "awaits inside":
            with ctx.complete():
                inside.set()
                await tried.wait()
        else:
            await inside.wait()
            with pytest.raises(CompletionError, match=r"another async handler awaits inside ctx\.complete"):
                ctx.engine.enqueue(thread("never"))
            with (
                pytest.raises(CompletionError, match=r"another async handler awaits inside ctx\.complete"),
                ctx.complete(),
            ):
                raise AssertionError
            tried.set()

    inside, tried = asyncio.Event(), asyncio.Event()
    with make_engine(Plugin(receipts(send), threads(Scripted()))) as engine:
        engine.enqueue_many([receipt("awaits inside"), receipt("comes between")])
        assert engine.wait_idle(WAIT_S)
        [task] = engine.tasks()

    assert task.data == payload(receipt("awaits inside"))
    assert "ctx.complete was awaited inside" in (task.last_error or "")
