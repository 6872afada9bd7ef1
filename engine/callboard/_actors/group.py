"""The actor of one group: its tasks, one at a time, and what its rows say, kept between them."""

from __future__ import annotations

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
        self._in_hand: Run | None = None
        self._waiting: list[Run] = []  # not a deque, of which an empty one takes 760 bytes

    def on_receive(self, message: Any) -> None:
        """Take runs, or go on after a coroutine has ended."""
        if message is _GO_ON:
            self._in_hand = None
        else:
            self._waiting += message
            self.actor_inbox.spend(len(message) - 1)  # type: ignore[attr-defined]
        while self._waiting and self._in_hand is None:
            self._in_hand = self._waiting[0]
            del self._waiting[0]
            if self._runner.run(self._in_hand, self._go_on):
                self._in_hand = None

    def on_error(self, message: Any, error: BaseException) -> None:
        """Fail what was lost between this actor and the runner, so that it is tried again, and go on."""
        super().on_error(message, error)
        in_hand = self._in_hand
        if in_hand is not None and (in_hand.cancel_coroutine is None or in_hand.result is not None):
            self._in_hand = None
            self._runner.fail(in_hand, error)
        for run in () if message is _GO_ON else message:
            if run is not self._in_hand and run not in self._waiting:
                self._runner.fail(run, error)
        with suppress(ActorDeadError):
            self.actor_ref.tell([])

    def on_lost(self, message: Any) -> None:
        """Fail runs that reached this actor after its end."""
        for run in () if message is _GO_ON else message:
            self._runner.fail(run, ActorDeadError("the group's actor was stopped"))

    def _stop(self) -> None:
        """Stay: a group's actor changes hands but has no end, and what waits in it must be run."""

    def _go_on(self) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(_GO_ON)
