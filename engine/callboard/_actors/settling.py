"""Decide what becomes of a batch of runs that ended, and write it inside the scheduler's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from callboard import _crash_points, _lifecycle
from callboard._lifecycle import Bury, Finish, Transition
from callboard._outcome import Failure
from callboard._run import Run
from callboard._store.task_table import Held
from callboard._task import FinishedTask, Task

if TYPE_CHECKING:
    from callboard._core import Core
    from callboard._store.interface import Session


class Settlement:
    """One batch of ended runs, inside one transaction.

    Attributes:
        finished: tasks that ended with this batch, for the hook.
        failures: the runs that failed.
        stale: how many outcomes were dropped, because the run no longer held its row.
        postponed: runs whose rows somebody else has locked, to be settled later.
        again: whether a row may be due at once.
    """

    def __init__(self, core: Core, runs: Sequence[Run]) -> None:
        """Settle `runs` for `core`."""
        self._core = core
        self._runs = runs
        self.finished: list[FinishedTask] = []
        self.failures: list[tuple[Task, Failure]] = []
        self.postponed: list[Run] = []
        self.stale = 0
        self.again = False

    def write(self, session: Session, now_ns: int) -> None:
        """Write the outcomes of runs that still hold their rows, with what they buffered (rules 10 and 14)."""
        _crash_points.reach("callboard.settle.begun")
        tasks = self._core.store.tasks
        open_runs = [run for run in self._runs if run.committed is None]
        ids = [run.task.id for run in open_runs]
        held = tasks.hold(session, ids, wait=False) if ids else {}
        changes: list[tuple[int, Transition]] = []
        handed_back: list[int] = []
        cancelled: list[tuple[Task, Held]] = []
        for run in self._runs:
            if run.committed is not None:
                self._count(run, run.committed)
                continue
            row = held.get(run.task.id)
            if row is None and run.task.id in held:
                self.postponed.append(run)
                continue
            if row is None or row.token != run.task.token:
                self.stale += 1
                if row is not None and row.cancelled and row.token == run.task.token + 1:
                    cancelled.append((run.task, row))  # while it ran here
            elif run.result is None or isinstance(run.result, str):
                handed_back.append(run.task.id)
            else:
                requested = row.requests != run.requests
                change = _lifecycle.settle(
                    run.task, run.result, now_ns, recurring=run.kind.recurring, requested=requested
                )
                changes.append((run.task.id, change))
                self._count(run, change)
                if run.buffered and not isinstance(run.result, Failure):
                    for new in run.buffered:
                        tasks.accept(session, [new], self._core.recurring_kinds, self.finished)
                    self.again = True
        tasks.settle(session, changes, now_ns)
        if cancelled:
            self.finished += tasks.bury_cancelled(session, cancelled, now_ns, self._core.recurring_kinds)
            self.again = True
        if handed_back:
            tasks.hand_back(session, handed_back)
            self.again = True  # they are due, and were not when this pass read the deadlines
        _crash_points.reach("callboard.settle.written")

    def _count(self, run: Run, change: Transition) -> None:
        outcome = run.result if run.completed is None else run.completed
        if isinstance(outcome, Failure):
            self.failures.append((run.task, outcome))
        if isinstance(change, (Finish, Bury)):
            reason = change.reason if isinstance(change, Bury) else None
            returned = None if isinstance(outcome, (Failure, str)) else outcome
            self.finished.append(FinishedTask(run.task, returned, reason))
        else:
            self.again = True
