"""Send each claimed task to where it runs: its group's actor, started on demand, or straight to the pool."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import pykka

from callboard._actors.dispatcher import Dispatcher
from callboard._actors.group import GroupActor, GroupMemory
from callboard._actors.runner import Runner
from callboard._run import Run
from callboard._store.sqlite import SqliteStore

MAX_LIVE_ACTORS = 4_096
"""How many group actors are kept; beyond it the one idle for longest is stopped, and its rows remain."""


class Router:
    """The live group actors of one engine.

    Senders go through here because Pykka's `tell` to an actor that is just stopping loses the message: an
    actor is stopped under this lock, and only when it has nothing to do.
    """

    def __init__(
        self, store: SqliteStore, dispatcher: Dispatcher, runner: Runner, is_idle: Callable[[bytes], bool]
    ) -> None:
        """Start actors on `dispatcher`; `is_idle` tells whether a group has no run outstanding."""
        self._store = store
        self._dispatcher = dispatcher
        self._runner = runner
        self._is_idle = is_idle
        self._lock = threading.Lock()
        self._actors: OrderedDict[bytes, pykka.ActorRef[GroupActor]] = OrderedDict()

    def send(self, run: Run) -> None:
        """Have `run` run."""
        group_id = run.task.group_id
        if group_id is None:
            self._dispatcher.submit(partial(self._run_alone, run))
            return
        with self._lock:
            actor = self._actors.get(group_id)
            if actor is None or not actor.is_alive():
                memory = GroupMemory(self._store, group_id)
                actor = self._actors[group_id] = GroupActor.start(self._dispatcher, self._runner, memory)
            self._actors.move_to_end(group_id)
            actor.tell(run)
            if len(self._actors) > MAX_LIVE_ACTORS:
                self._passivate()

    def live(self) -> int:
        """Return how many group actors there are."""
        return len(self._actors)

    def _run_alone(self, run: Run) -> None:
        self._runner.run(run)

    def _passivate(self) -> None:
        for group_id, actor in self._actors.items():
            if self._is_idle(group_id):
                del self._actors[group_id]
                actor.stop(block=False)
                return
