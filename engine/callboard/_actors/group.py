"""The actor of one group: its tasks, one at a time, and what its rows say, kept between them."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

from pykka import ActorDeadError

from callboard._actors.dispatcher import Dispatcher
from callboard._actors.pooled import PooledActor
from callboard._actors.runner import Runner
from callboard._group_state import GroupState
from callboard._run import Run
from callboard._store.interface import Store

_GO_ON = object()


class GroupMemory:
    """What the rows say of one group: read when a handler first asks, and again when they have changed."""

    __slots__ = ("_group_id", "_known", "_store")

    def __init__(self, store: Store, group_id: bytes) -> None:
        """Remember `group_id`, starting with nothing."""
        self._store = store
        self._group_id = group_id
        self._known: GroupState | None = None

    def is_empty(self) -> bool:
        """Return whether nothing would be lost with this memory."""
        return self._known is None

    def state(self) -> GroupState | None:
        """Return the group's state as the rows say at this moment; `None` without a group row."""
        groups = self._store.groups
        with self._store.reading() as session:
            version = groups.version(session, self._group_id)
            if version is None:
                self._known = None
            elif self._known is None or self._known.version != version:
                self._known = groups.state(session, self._group_id)
        return self._known


class GroupActor(PooledActor):
    """Run the tasks of one group in the order in which they come.

    A blocking handler holds the actor's thread. A coroutine holds only the group: later tasks wait here
    until it has ended.
    """

    def __init__(self, dispatcher: Dispatcher, runner: Runner) -> None:
        """Run tasks with `runner`."""
        super().__init__(dispatcher)
        self._runner = runner
        self._held = False
        self._waiting: deque[Run] | None = None

    def on_receive(self, message: Any) -> None:
        """Take a run, or go on after a coroutine has ended."""
        if message is not _GO_ON:
            if not self._held:
                self._run(message)
            elif self._waiting is None:
                self._waiting = deque([message])
            else:
                self._waiting.append(message)
            return
        self._held = False
        while self._waiting and not self._held:
            self._run(self._waiting.popleft())
        if not self._waiting:
            self._waiting = None

    def on_error(self, message: Any, error: BaseException) -> None:
        """Fail the run in hand, so that it is tried again and its group does not stay occupied."""
        super().on_error(message, error)
        if message is not _GO_ON:
            self._runner.fail(message, error)
            return
        self._held = False
        waiting, self._waiting = self._waiting or (), None
        for run in waiting:
            self._runner.fail(run, error)

    def on_lost(self, message: Any) -> None:
        """Fail a run that reached this actor after its end."""
        if message is not _GO_ON:
            self._runner.fail(message, ActorDeadError("the group's actor was stopped"))

    def _stop(self) -> None:
        """Stay: a group's actor changes hands but has no end, and what waits in it must be run."""

    def _run(self, run: Run) -> None:
        self._held = not self._runner.run(run, self._go_on)

    def _go_on(self) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(_GO_ON)
