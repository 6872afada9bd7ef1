"""One run of one task: what a claim hands to an actor, and what comes back from the handler."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from google.protobuf.message import Message

from callboard._kinds import TaskKind
from callboard._outcome import Failure, Outcome
from callboard._pid import current_pid
from callboard._task import NewTask, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from callboard._actors.group import GroupMemory
    from callboard._lifecycle import Transition

Unsettled = Literal["handed back", "dropped"]
"""How a run may end without an outcome: never started, or no longer the holder of its row."""


class Run:
    """A claimed task on its way through an actor.

    Attributes:
        cancelled: set when the run should end: cancelled, timed out, or its engine stops waiting.
        timed_out: set when it is cancelled because its handler is over the kind's timeout.
        started_ns: when the handler was called, on the monotonic clock; 0 before.
        thread_id: the thread that runs a blocking handler.
        result: what the handler returned or raised, once it did.
        pid: the process in which the handler was called.
        delivered: whether it has been handed in; once is all that the scheduler can count.
        buffered: tasks to enqueue together with the outcome.
        committed: what `ctx.complete` already wrote.
        completed: the outcome that it was given.
        cancel_coroutine: cancels an async handler, once it has been called.
        group: what the group's actor remembers of the group's rows.
        requests: the row's `requests` that this run answers.
    """

    __slots__ = (
        "buffered",
        "cancel_coroutine",
        "cancelled",
        "committed",
        "completed",
        "delivered",
        "group",
        "kind",
        "message",
        "pid",
        "requests",
        "result",
        "started_ns",
        "task",
        "thread_id",
        "timed_out",
    )

    def __init__(self, task: Task, kind: TaskKind[Any], message: Message) -> None:
        """Prepare to run `task`, whose payload is `message`."""
        self.task = task
        self.kind = kind
        self.message = message
        self.cancelled = False
        self.timed_out = False
        self.started_ns = 0
        self.thread_id: int | None = None
        self.result: Outcome | Failure | Unsettled | None = None
        self.pid = 0
        self.delivered = False
        self.buffered: list[NewTask] = []
        self.committed: Transition | None = None
        self.completed: Outcome | None = None
        self.cancel_coroutine: Callable[[], None] | None = None
        self.group: GroupMemory | None = None
        self.requests = task.requests

    def begin(self) -> None:
        """Note that the handler is called now, by this thread or coroutine in this process."""
        self.pid = current_pid()
        current_run.set(self)

    def is_elsewhere(self) -> bool:
        """Return whether this is a child that the handler forked, in which the run must come to nothing."""
        return self.pid != current_pid()

    def note_request(self) -> None:
        """Answer one more request, which has been committed, if the handler has not been called yet.

        It will see everything that the request could mean, so the task need not run again for it.
        """
        if self.started_ns == 0:
            self.requests += 1

    def cancel(self) -> None:
        """Ask the handler to end: it sees `ctx.cancelled`, and a coroutine is cancelled; on any thread.

        Only the first call does anything, because a second would tear a coroutine out of its cleaning up.
        """
        if self.cancelled:
            return
        self.cancelled = True
        if self.cancel_coroutine is not None:
            self.cancel_coroutine()


current_run: ContextVar[Run | None] = ContextVar("callboard_run", default=None)
"""The run whose handler this thread or coroutine is in, or was when it began."""
