"""Look after deferred rows: take up those this node can run, bury those whose time is up (rules 16 and 17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard._actors.claiming import BATCH, SET_ASIDE_BATCH, SET_ASIDE_NS, Memory
from callboard._lifecycle import Bury
from callboard._task import DeadReason, FinishedTask

if TYPE_CHECKING:
    from callboard._core import Core
    from callboard._store.interface import Session
    from callboard._store.task_table import Heads


class Deferral:
    """The deferred rows as one node sees them."""

    def __init__(self, core: Core, memory: Memory) -> None:
        """Look after them for `core`; `memory` is the claims'."""
        self._core = core
        self._memory = memory
        self.may_have_changed = True

    def concerns(self, heads: Heads, now_ns: int) -> bool:
        """Return whether `tend` has something to do; deferred kinds are looked at anew when others wrote."""
        runnable = self._core.registry.runnable
        mine = [at_ns for kind, at_ns in heads.deferred.items() if kind in runnable]
        concerned = bool(mine) and (self.may_have_changed or min(mine) <= now_ns)
        self.may_have_changed = False
        return concerned or heads.expiry_ns <= now_ns or heads.stray_ns <= now_ns

    def tend(self, session: Session, heads: Heads, now_ns: int) -> list[FinishedTask]:
        """Take up, set aside and bury, a bounded number each; return what died."""
        tasks, runnable = self._core.store.tasks, self._core.registry.runnable
        if heads.stray_ns <= now_ns:  # a claim sets aside only rows that need not run alone
            until_ns = now_ns + SET_ASIDE_NS
            for kind, ids in tasks.set_strays_aside(session, runnable, now_ns, until_ns, SET_ASIDE_BATCH).items():
                remedy = self._core.registry.remedy(kind)
                self._memory.warn(kind, ids, remedy, self._core.clock.monotonic_ns())
        mine = [kind for kind in heads.deferred if kind in runnable]
        if mine:
            self._memory.forget_undecodable(now_ns)
            taken = tasks.take_up(session, mine, self._memory.undecodable, now_ns, SET_ASIDE_BATCH)
            self.may_have_changed = taken == SET_ASIDE_BATCH
        expired = tasks.deferred_expired(session, now_ns, BATCH)
        burials = [(task.id, Bury(DeadReason.EXPIRED, task.attempts, task.last_error)) for task in expired]
        if burials:
            tasks.bury(session, burials, now_ns)
        return [FinishedTask(task, None, DeadReason.EXPIRED) for task in expired]
