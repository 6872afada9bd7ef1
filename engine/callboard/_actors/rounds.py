"""What the fleet does every six hours, on one node: reconcile without a cause, and prune what is old.

Old are dead tasks, and the rows of nodes that hold nothing and have given no sign of life for a day. A node whose
process ended is noticed at once on its own machine; from another machine it looks like one that is idle. So each
node gives a sign of life with its rounds, however idle it is. One that was asleep longer joins anew when it next
has something to do.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

from callboard._actors.hooks import HookCaller
from callboard._actors.node import Node
from callboard._clock import nanoseconds
from callboard._log import logger

if TYPE_CHECKING:
    from callboard._core import Core

INTERVAL_NS = nanoseconds(timedelta(hours=6))
FIRST_LOOK_NS = (nanoseconds(timedelta(minutes=1)), nanoseconds(timedelta(minutes=5)))
"""How soon after its start a node looks for the first time, at the earliest and at the latest."""

_JITTER = 0.1  # of the interval, so that a fleet started together does not come together
_LONGEST_NS = int(INTERVAL_NS * (1 + _JITTER))
_PRUNE_BATCH = 10_000

NODE_RETENTION_NS = nanoseconds(timedelta(days=1))
"""How long a node that holds nothing may be silent: several rounds."""


class Rounds:
    """One node's part in the fleet's regular work; a stamp in the database says whose turn it is.

    Attributes:
        deadline_ns: when this node looks next.
    """

    def __init__(self, core: Core, node: Node, hooks: HookCaller) -> None:
        """Look for the first time in some minutes: a host that starts anew each hour must have its turns, too."""
        self._core = core
        self._node = node
        self._hooks = hooks
        self._began_ns = core.clock.now_ns()
        self.deadline_ns = self._began_ns + random.randint(*FIRST_LOOK_NS)

    def make(self) -> None:
        """Take the turn if it is this node's; does nothing before `deadline_ns`."""
        now_ns = self._core.clock.now_ns()
        if now_ns < self.deadline_ns:
            self.deadline_ns = min(self.deadline_ns, now_ns + _LONGEST_NS)  # the clock may have been set back
            return
        mine = self._take_turn(now_ns)
        self.deadline_ns = self._next_ns()  # last: where the database refuses, the round is still to be made
        if mine:
            if not 0 <= now_ns - self._began_ns < INTERVAL_NS:  # else the start has just done so
                self._hooks.want_reconcile("interval")
            self.prune()

    def make_at_start(self) -> None:
        """Take the turn if it is this node's; plugins reconcile anyhow and nothing waits for the deadline."""
        if self._take_turn(self._core.clock.now_ns()):
            self.prune()

    def _take_turn(self, now_ns: int) -> bool:
        store = self._core.store
        with self._node.renewing(store.transaction()) as session:
            mine = store.take_turn(session, "rounds", now_ns, INTERVAL_NS)
            silent = store.nodes.prune(session, self._node.id, now_ns - NODE_RETENTION_NS) if mine else []
        for row in silent:
            logger.info("node {} (process {} on {}) has been silent for a day", row.id, row.pid, row.host)
        return mine

    def prune(self) -> None:
        """Delete dead tasks that have been kept for the retention period."""
        retention = self._core.dead_retention
        if retention is None:
            return
        store = self._core.store
        before_ns = self._core.clock.now_ns() - nanoseconds(retention)
        pruned = _PRUNE_BATCH
        while pruned == _PRUNE_BATCH:
            with store.transaction() as session:
                pruned = store.tasks.prune_dead(session, before_ns, _PRUNE_BATCH)

    def _next_ns(self) -> int:
        return self._core.clock.now_ns() + int(INTERVAL_NS * random.uniform(1, 1 + _JITTER))
