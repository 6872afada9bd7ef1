"""The tasks of a simulated service: blocking, asynchronous and recurring ones, which take time and go wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import StringValue
from tests.engine.acting import receipt, thread
from tests.engine.messages import ReceiptThread, SendReceipt
from tests.ledger import Came

from callboard import (
    Defer,
    Discard,
    RescheduleAt,
    RetryPolicy,
    ServiceUnavailable,
    StaleRunError,
    TaskContext,
    TaskKind,
    hookimpl,
)
from callboard.errors import DatabaseUnavailableError

if TYPE_CHECKING:
    from tests.simulation.node import SimulatedNode

POLICY = RetryPolicy(
    initial=timedelta(seconds=0.5),
    factor=2.0,
    cap=timedelta(seconds=2),
    max_attempts=4,
    expires_after=timedelta(hours=1),
)
RECUR_S = 4.0
TIMEOUT = timedelta(seconds=5)

BLOCKING, ASYNC, RECURRING = (
    "acme.receipts.SendReceipt",
    "acme.receipts.ReceiptThread",
    "google.protobuf.StringValue",
)

_KINDS: dict[str, tuple[type[Message], str]] = {
    BLOCKING: (SendReceipt, "blocking"),
    ASYNC: (ReceiptThread, "coroutine"),
    RECURRING: (StringValue, "recurring"),
}

_LIMITS = {BLOCKING: 1, ASYNC: 2, RECURRING: 1}


def message_of(kind: str, name: str) -> Any:
    """Return the payload of the task called `name`; what stands before the dot is its group."""
    group = group_of(name).encode()
    match kind:
        case "acme.receipts.SendReceipt":
            return receipt(name, group)
        case "acme.receipts.ReceiptThread":
            return thread(name, group)
    return StringValue(value=name)


def group_of(name: str) -> str:
    """Return the group that a task's name says."""
    return name.partition(".")[0] if "." in name else ""


def _name_of(message: Any) -> str:
    if isinstance(message, SendReceipt):
        return message.text
    return message.receipt.text if isinstance(message, ReceiptThread) else str(message.value)


class Service:
    """One node's plugin."""

    __name__ = "service"

    def __init__(self, node: SimulatedNode, kinds: Collection[str]) -> None:
        self._node = node
        self._world = node.world
        self._kinds = kinds
        self._running: Counter[str] = Counter()

    @hookimpl
    def callboard_task_kinds(self) -> list[TaskKind[Any]]:
        return [
            TaskKind(
                message_type,
                getattr(self, handler),
                group_id=lambda message: group_of(_name_of(message)).encode() or None,
                retry=POLICY,
                recurring=kind == RECURRING,
                timeout=TIMEOUT,
                concurrency=_LIMITS[kind] if self._world.throttled else None,
                pause_after=2 if self._world.throttled else None,
            )
            for kind, (message_type, handler) in _KINDS.items()
            if kind in self._kinds
        ]

    def blocking(self, message: Any, ctx: TaskContext) -> Any:
        """Take some steps, with others' between them, and end in one of the ways there are."""
        with self._one_of(BLOCKING):
            run = self._world.book.begin(self._node, ctx, _name_of(message))
            self._take_time()
            return self._end(run, ctx)

    async def coroutine(self, message: Any, ctx: TaskContext) -> Any:
        """Do the same while others run on the same loop."""
        with self._one_of(ASYNC):
            return await self._awaited(message, ctx)

    async def _awaited(self, message: Any, ctx: TaskContext) -> Any:
        run = self._world.book.begin(self._node, ctx, _name_of(message))
        try:
            for pause_ns in self._world.pauses_ns():
                await self._node.sleep(pause_ns)
                self._node.may_crash()
        except asyncio.CancelledError:
            self._world.book.end(run, Came.FAILED, ctx)
            raise
        return self._end(run, ctx)

    def recurring(self, message: Any, ctx: TaskContext) -> Any:
        """Come again and again."""
        with self._one_of(RECURRING):
            return self._recur(message, ctx)

    def _recur(self, message: Any, ctx: TaskContext) -> Any:
        run = self._world.book.begin(self._node, ctx, _name_of(message))
        self._take_time()
        if self._world.faults.happens("fail", 0.2):
            self._world.book.end(run, Came.FAILED, ctx)
            raise RuntimeError("this time it failed")
        self._world.book.end(run, Came.RESCHEDULED, ctx, RECUR_S)
        return RescheduleAt(timedelta(seconds=RECUR_S))

    @contextmanager
    def _one_of(self, kind: str) -> Iterator[None]:
        """Count a handler, and find more of its kind at once than its limit says."""
        self._running[kind] += 1
        if self._world.throttled and self._running[kind] > _LIMITS[kind]:
            self._world.book.found.append(f"{kind}: {self._running[kind]} at once on {self._node.name}")
        try:
            yield
        finally:
            self._running[kind] -= 1

    def _take_time(self) -> None:
        for pause_ns in self._world.pauses_ns():
            self._world.stage.pause(for_ns=pause_ns)
            self._node.may_crash()

    def _end(self, run: str, ctx: TaskContext) -> Any:
        world = self._world
        for follower in world.followers(ctx.task.origin or ""):
            world.book.buffered(run, follower, BLOCKING)
            ctx.enqueue(message_of(BLOCKING, follower), origin=follower)
        if world.faults.happens("fail", 0.25):
            world.book.end(run, Came.FAILED, ctx)
            raise RuntimeError("it failed")
        if world.faults.happens("fail", 0.05):
            world.book.end(run, Came.OUTAGE, ctx)
            raise ServiceUnavailable("the network is away")
        match world.ending():
            case "complete":
                return self._complete(run, ctx)
            case "again":
                world.book.end(run, Came.RESCHEDULED, ctx, 1.0)
                return RescheduleAt(timedelta(seconds=1))
            case "later":
                world.book.end(run, Came.DEFERRED, ctx, 1.5)
                return Defer(timedelta(seconds=1.5))
            case "discard":
                world.book.end(run, Came.DISCARDED, ctx)
                return Discard("nobody wants it")
        world.book.end(run, Came.DONE, ctx)
        return None

    def _complete(self, run: str, ctx: TaskContext) -> None:
        world = self._world
        try:
            with ctx.complete() as tx:
                tx.connection.execute("INSERT INTO effect VALUES (?, ?)", (ctx.task.origin, run))
        except StaleRunError:
            world.book.end(run, Came.STALE, ctx)
            raise
        except DatabaseUnavailableError:
            world.book.end(run, Came.OUTAGE, ctx)
            raise
        world.book.end(run, Came.DONE, ctx, completed=True)
        if world.faults.happens("fail", 0.1):
            raise RuntimeError("it failed after it had completed")
