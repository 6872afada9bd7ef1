"""The services around the engines: they enqueue, ask again, pull in and cancel, each on some node."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.simulation.handlers import ASYNC, BLOCKING, RECURRING, message_of

from callboard.errors import DatabaseUnavailableError, EngineStateError

if TYPE_CHECKING:
    from tests.simulation.node import SimulatedNode
    from tests.simulation.world import World

HORIZON_S = 8.0
"""How long the host goes on enqueueing."""

_S = 10**9


class _ChangedMindError(Exception):
    """Roll a transaction back."""


class Host:
    """Whoever enqueues.

    Attributes:
        due_ns: when its deeds come, earliest first.
    """

    def __init__(self, world: World, seed: int, deeds: int) -> None:
        self._world = world
        self._draw = random.Random(f"{seed} host")
        self._groups = self._draw.randrange(1, 4)
        self._kinds: dict[str, str] = {}
        self.due_ns = sorted(_S + int(self._draw.uniform(0, HORIZON_S) * _S) for _ in range(deeds))

    def act(self) -> None:
        """Do the next deed, on a thread of some node's."""
        self.due_ns.pop(0)
        nodes = [node for node in self._world.nodes if node.is_serving()]
        if not nodes:
            return
        node = self._draw.choice(nodes)
        deeds = (self._enqueue, self._enqueue, self._enqueue, self._enqueue_two, self._ask_again, self._pull_in)
        deed = self._draw.choice(deeds)
        if self._world.faults.happens("cancel", 0.1):
            deed = self._cancel
        node.enter(deed.__name__.strip("_"), lambda: self._try(deed, node))

    def _try(self, deed: Callable[[SimulatedNode], None], node: SimulatedNode) -> None:
        try:
            deed(node)
        except (DatabaseUnavailableError, EngineStateError) as error:
            reason = str(error).replace(self._world.path, "the file")  # or no two runs' traces were alike
            self._world.book.say(f"the host was refused: {reason}")

    def _enqueue(self, node: SimulatedNode) -> None:
        name, kind = self._new_name()
        not_before_s = self._draw.choice((None, None, 1.5, 5.0))
        ref = self._world.book.ask(name, kind, not_before_s)
        node.engine.enqueue(
            message_of(kind, name),
            origin=name,
            allow_unknown=True,
            not_before=None if not_before_s is None else timedelta(seconds=not_before_s),
        )
        self._world.book.accepted(name, ref)

    def _enqueue_two(self, node: SimulatedNode) -> None:
        """Enqueue two tasks in one transaction, with a pause inside and perhaps a change of mind at its end."""
        book, keeps = self._world.book, self._draw.random() < 0.7
        names = [self._new_name() for _ in range(2)]
        refs: list[str] = []
        if not keeps:
            book.never.update(name for name, _ in names)
        try:
            with node.engine.transaction() as tx:
                for name, kind in names:
                    refs += [book.ask(name, kind)] if keeps else []
                    tx.enqueue(message_of(kind, name), origin=name, allow_unknown=True)
                    self._world.stage.pause(for_ns=int(self._draw.uniform(0, 0.5) * _S))
                if not keeps:
                    raise _ChangedMindError
        except _ChangedMindError:
            book.say(f"{names[0][0]} and {names[1][0]} are rolled back")
        for (name, _), ref in zip(names, refs, strict=False):
            book.accepted(name, ref)

    def _ask_again(self, node: SimulatedNode) -> None:
        name = self._some_name()
        if name is not None:
            ref = self._world.book.ask(name, self._kinds[name])
            node.engine.enqueue(message_of(self._kinds[name], name), origin=name, allow_unknown=True)
            self._world.book.accepted(name, ref)

    def _pull_in(self, node: SimulatedNode) -> None:
        name = self._some_name()
        if name is not None:
            in_ns = self._draw.randrange(2 * _S)
            self._world.book.pulled(name, in_ns)
            at_ns = self._world.clock.now_ns() + in_ns
            node.engine.pull_in(message_of(self._kinds[name], name), not_later_than_ns=at_ns)

    def _cancel(self, node: SimulatedNode) -> None:
        name = self._some_name()
        row_id = None if name is None else self._world.rows.id_of(name)
        if name is not None and row_id is not None:
            self._world.book.cancelled(name)
            node.engine.cancel(row_id)

    def _new_name(self) -> tuple[str, str]:
        kind = self._draw.choice((BLOCKING, BLOCKING, ASYNC, RECURRING))
        number = len(self._kinds)
        group = self._draw.randrange(self._groups + 1)
        name = f"g{group}.{number}" if group and kind != RECURRING else f"t{number}"
        self._kinds[name] = kind
        return name, kind

    def _some_name(self) -> str | None:
        names = [name for name in self._kinds if name not in self._world.book.never]
        return self._draw.choice(names) if names else None
