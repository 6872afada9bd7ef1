"""Plugins and handlers that tests put together: they tell what happens in them, and stay as long as it takes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from loguru import logger
from tests.engine.messages import ReceiptThread, SendReceipt

from callboard import Engine, TaskContext, TaskKind, hookimpl

WAIT_S = 20.0
"""How long a test waits for what must happen: far above what it takes, and only spent by one that fails."""

RECEIPT = "acme.receipts.SendReceipt"
"""The kind of the tasks that most tests enqueue."""

MakeEngine = Callable[..., Engine]


class Plugin:
    """A plugin of these kinds, and of these hooks under their names without `callboard_`."""

    def __init__(self, *kinds: TaskKind[Any], name: str = "acme", **hooks: Callable[..., Any]) -> None:
        self.__name__ = name
        if kinds:
            self.callboard_task_kinds = hookimpl(lambda engine: kinds)
        for hook, call in hooks.items():
            setattr(self, f"callboard_{hook}", hookimpl(call))


def receipt(text: str, group: bytes = b"") -> SendReceipt:
    return SendReceipt(text=text, group_id=group)


def receipts(handler: Callable[..., Any], **options: Any) -> TaskKind[SendReceipt]:
    """Return the kind of `SendReceipt`, whose tasks belong to the message's group if it names one."""
    return TaskKind(SendReceipt, handler, group_id=lambda message: message.group_id or None, **options)


def threads(handler: Callable[..., Any], **options: Any) -> TaskKind[ReceiptThread]:
    """Return another kind, for a second handler in the same groups."""
    return TaskKind(ReceiptThread, handler, group_id=lambda thread: thread.receipt.group_id or None, **options)


def thread(text: str, group: bytes = b"") -> ReceiptThread:
    return ReceiptThread(receipt=receipt(text, group))


def text_of(message: SendReceipt | ReceiptThread) -> str:
    return message.text if isinstance(message, SendReceipt) else message.receipt.text


class Scripted:
    """A handler that plays one line for each run, the last one again and again: exceptions are raised."""

    def __init__(self, *lines: Any) -> None:
        self._lines = lines or (None,)
        self.played: list[str] = []

    def __call__(self, message: SendReceipt | ReceiptThread, ctx: TaskContext) -> Any:
        line = self._lines[min(len(self.played), len(self._lines) - 1)]
        self.played.append(text_of(message))
        if isinstance(line, BaseException):
            raise line
        return line


class Blocking:
    """A handler that stays in each run until the test lets that text go."""

    def __init__(self, outcome: Any = None, *, patience_s: float = WAIT_S) -> None:
        self._outcome = outcome
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._free: set[str] = set()
        self._all_free = False
        self.begun: list[str] = []
        self.contexts: dict[str, TaskContext] = {}

    def __call__(self, message: SendReceipt | ReceiptThread, ctx: TaskContext) -> Any:
        text = text_of(message)
        with self._changed:
            self.begun.append(text)
            self.contexts[text] = ctx
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._all_free or text in self._free, self._patience_s)
        return self._outcome

    def wait_begun(self, *texts: str) -> None:
        """Wait until a run of each of these has begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: set(texts) <= set(self.begun), WAIT_S), self.begun

    def wait_count(self, count: int) -> None:
        """Wait until this many runs have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, WAIT_S), self.begun

    def let_go(self, *texts: str) -> None:
        """Let these texts' runs end; without any, all of them."""
        with self._changed:
            self._free.update(texts)
            self._all_free = self._all_free or not texts
            self._changed.notify_all()


def pass_by(engine: Engine, through: Blocking, text: str) -> None:
    """Have the scheduler make whole passes: one claims this task, which `through` lets go, another finishes it."""
    through.let_go(text)
    task_id = engine.enqueue(receipt(text)).task_id
    assert task_id is not None
    eventually(lambda: engine.task(task_id) is None)


def eventually(condition: Callable[[], Any]) -> None:
    """Wait for something of which nothing tells."""
    deadline_s = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        pause.wait(0.005)


@contextmanager
def logged(level: str = "DEBUG") -> Iterator[list[Any]]:
    """Collect what Callboard logs at `level` or above, as loguru's messages."""
    messages: list[Any] = []
    sink = logger.add(messages.append, level=level, format="{level} {message}", filter="callboard")
    logger.enable("callboard")
    try:
        yield messages
    finally:
        logger.disable("callboard")
        logger.remove(sink)
