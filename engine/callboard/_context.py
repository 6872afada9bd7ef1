"""What a handler gets besides its message: its task, its group, the host's services, and ways to commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from callboard import _completion
from callboard._clock import Clock
from callboard._group_state import GroupState
from callboard._log import logger
from callboard._outcome import Done, Outcome
from callboard._run import Run
from callboard._task import Task
from callboard._transaction import Transaction

if TYPE_CHECKING:
    from loguru import Logger

    from callboard._core import Core
    from callboard._engine import Engine

T = TypeVar("T")


class TaskContext:
    """The second argument of every handler. It belongs to one run and is of no use after it."""

    __slots__ = ("_core", "_run")

    def __init__(self, core: Core, run: Run) -> None:
        """Serve `run`; the engine makes these."""
        self._core = core
        self._run = run

    @property
    def task(self) -> Task:
        """The task's row as it was claimed."""
        return self._run.task

    @property
    def engine(self) -> Engine:
        """The engine that runs the task."""
        return self._core.engine

    @property
    def clock(self) -> Clock:
        """The engine's clock; `ctx.clock.now_ns()` is the time."""
        return self._core.clock

    @property
    def cancelled(self) -> bool:
        """Whether the run should end: its task was cancelled or lost, it timed out, or the engine stops."""
        return self._run.cancelled

    @property
    def group(self) -> GroupState | None:
        """What is known of the task's group, as the rows say at this moment; `None` without a group row."""
        return None if self._run.group is None else self._run.group.state()

    @property
    def logger(self) -> Logger:
        """A loguru logger bound to the task's id and kind."""
        return logger.bind(task_id=self._run.task.id, kind=self._run.task.kind)

    def service(self, service_type: type[T]) -> T:
        """Return the host's service of this type.

        Raises:
            ServiceMissingError: the host gave none; list the type in the kind's `requires`, so that the task
                waits for a node that has it.
        """
        return self._core.service(service_type)

    def enqueue(
        self,
        message: Message,
        *,
        not_before: timedelta | int | None = None,
        expires_after: timedelta | int | None = None,
        key: str | None = None,
        group_id: bytes | None = None,
        origin: str | None = None,
        allow_unknown: bool = False,
    ) -> None:
        """Enqueue another task together with this run's outcome: both are committed, or neither.

        A run that fails has no outcome: what it enqueued here is dropped, and the next attempt enqueues it.
        The arguments are those of `Engine.enqueue`. After `complete` nothing can be added.

        Raises:
            UnknownKindError: no plugin here registered the message's kind.
            CompletionError: the run has been completed.
        """
        _completion.check_open(self._run)
        self._run.buffered.append(
            self._core.composer.compose(
                message,
                not_before=not_before,
                expires_after=expires_after,
                key=key,
                group_id=group_id,
                origin=origin,
                allow_unknown=allow_unknown,
            )
        )

    @contextmanager
    def complete(self, outcome: Outcome | None = None) -> Iterator[Transaction]:
        """Commit effects in the engine's database and the outcome in one short transaction, exactly once.

        It is the handler's last act: `with ctx.complete(Done()) as tx:` and, inside, statements on
        `tx.connection` (or the host's own, on this thread) and `tx.enqueue`. Nothing is committed when the
        body raises. Do not await inside. With the commit the group is free for the next of its tasks, on other
        nodes even before the handler returns.

        Args:
            outcome: what the handler would return; `None` is `Done()`.

        Raises:
            StaleRunError: the run no longer holds its row; nothing is committed.
            CompletionError: called twice, inside another transaction, awaited inside, or given no outcome.
        """
        with _completion.complete(self._core, self._run, Done() if outcome is None else outcome) as tx:
            yield tx
