"""Send each claimed task to where it runs: its group's actor, started on demand, or straight to the pool."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pykka

from callboard._actors.dispatcher import Dispatcher
from callboard._actors.group import GroupActor, GroupMemory
from callboard._actors.runner import Runner
from callboard._run import Run
from callboard._store.interface import Store

MAX_LIVE_ACTORS = 4_096
"""How many group actors are kept; beyond it the one idle for longest becomes the next group's."""


class _Entry(NamedTuple):
    actor: pykka.ActorRef[GroupActor]
    memory: GroupMemory


class Router:
    """The live group actors of one engine.

    A group is passivated by giving its idle actor to another group, because that is cheaper than stopping
    one actor and starting the next (which was a third of the work of draining 10,000 groups). Senders go
    through here: an actor changes hands under this lock, and only when its group has no run outstanding. What
    it remembers of its group comes with each run, because a message of its own for it was a tenth of that work.
    """

    def __init__(
        self, store: Store, dispatcher: Dispatcher, runner: Runner, is_idle: Callable[[bytes], bool]
    ) -> None:
        """Start actors on `dispatcher`; `is_idle` tells whether a group has no run outstanding."""
        self._store = store
        self._dispatcher = dispatcher
        self._runner = runner
        self._is_idle = is_idle
        self._lock = threading.Lock()
        self._actors: OrderedDict[bytes, _Entry] = OrderedDict()

    def send(self, runs: Sequence[Run]) -> None:
        """Have `runs` run, those of a group in their order."""
        of_group: dict[bytes, list[Run]] = {}
        for run in runs:
            group_id = run.task.group_id
            if group_id is None:
                self._dispatcher.submit(partial(self._run_alone, run))
            else:
                of_group.setdefault(group_id, []).append(run)
        with self._lock:
            for group_id, its in of_group.items():
                entry = self._actors.get(group_id)
                if entry is None or not entry.actor.is_alive():
                    entry = _Entry(self._free_actor(), GroupMemory(self._store, group_id))
                    self._actors[group_id] = entry
                else:
                    self._actors.move_to_end(group_id)
                for run in its:
                    run.group = entry.memory
                entry.actor.tell(its)  # one message: each is a sixth of the work of a task

    def live(self) -> int:
        """Return how many group actors there are."""
        return len(self._actors)

    def _run_alone(self, run: Run) -> None:
        self._runner.run(run)

    def _free_actor(self) -> pykka.ActorRef[GroupActor]:
        """Return the actor that has been idle for longest, if it is worth taking, or a new one."""
        full = len(self._actors) >= MAX_LIVE_ACTORS
        for group_id, entry in self._actors.items():
            if self._is_idle(group_id) and (full or entry.memory.is_empty()):
                del self._actors[group_id]
                return entry.actor
            if not full:
                break
        return GroupActor.start(self._dispatcher, self._runner)
