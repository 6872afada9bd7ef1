"""The steps of a task's life that are decisions and no SQL, so that every database makes them alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from callboard import _lifecycle
from callboard._compose import revived
from callboard._store.interface import Session
from callboard._store.task_table import Held
from callboard._task import DeadReason, Enqueued, EnqueueStatus, FinishedTask, NewTask, Task, TaskState


class Orphan(NamedTuple):
    """A running row whose node has no row.

    Attributes:
        owner: the node; `None` in a row that was written by hand.
        alone: whether it ran with nothing beside it.
        spared: whether `spare` said of it that its node's end tells nothing against it.
        crashes: how often in a row its node ended while it did.
        cancelled: the number of requests when it was cancelled; 0 when it was not.
    """

    owner: int | None
    alone: bool
    spared: bool
    crashes: int
    cancelled: int
    task: Task


class TaskPolicy(ABC):
    """What a store's `TaskTable` may inherit; it adds the statements, which are the abstract methods here."""

    @abstractmethod
    def insert(self, session: Session, new: NewTask) -> int | None:
        """Write a row and return its id; `None`, and nothing written, when its identity is live."""

    @abstractmethod
    def by_identity(self, session: Session, identity: bytes) -> Task | None:
        """Return the live row that was in the way of `insert`, and keep others from it; `None` if it has gone."""

    @abstractmethod
    def enqueue_many(
        self, session: Session, new: Sequence[NewTask], recurring: Collection[str], died: list[FinishedTask]
    ) -> list[Enqueued]:
        """Do what `enqueue` does for many."""

    @abstractmethod
    def pull_in(self, session: Session, identity: bytes, not_later_than_ns: int) -> bool:
        """Lower a live row's deadline, never raise it; `False` if there is no such row."""

    @abstractmethod
    def request(self, session: Session, task_id: int) -> None:
        """Count one more request of a live row."""

    @abstractmethod
    def bury(self, session: Session, burials: Sequence[tuple[int, _lifecycle.Bury]], now_ns: int) -> None:
        """Move rows to the dead-task table, each with its reason."""

    @abstractmethod
    def still_running(self, session: Session, ids: Sequence[int]) -> dict[int, Held]:
        """Return the state of those rows that are still there and running."""

    @abstractmethod
    def mark_cancelled(self, session: Session, task_id: int) -> None:
        """Keep a running row's number of requests as `cancelled` and add 1 to its token, unless that was done."""

    @abstractmethod
    def orphans(self, session: Session) -> list[Orphan]:
        """Return the running rows whose node has no row."""

    @abstractmethod
    def run_again(self, session: Session, task_id: int, *, alone: bool, crashes: int, not_before_ns: int) -> None:
        """Make an orphan pending with a new token, at its deadline or `pulled_in_ns` but not before that time."""

    @abstractmethod
    def unpark_free(self, session: Session) -> None:
        """Give the parked rows of groups that nobody runs back to the due ones."""

    def enqueue(
        self, session: Session, new: NewTask, recurring: Collection[str], died: list[FinishedTask]
    ) -> Enqueued:
        """Write one task, or raise the `requests` of the live one with its identity (rules 13 and 14)."""
        live = None
        while live is None:
            task_id = self.insert(session, new)
            if task_id is not None:
                return Enqueued(task_id, EnqueueStatus.INSERTED)
            live = self.by_identity(session, new.identity)
        if live.state != TaskState.RUNNING:
            burial = _lifecycle.overdue(live, new.created_at_ns, recurring=new.kind in recurring)
            if burial is not None:
                self.bury(session, [(live.id, burial)], new.created_at_ns)
                died.append(FinishedTask(live, None, burial.reason))
                return Enqueued(self.insert(session, new), EnqueueStatus.INSERTED)
        if live.data_hash != new.data_hash:
            return Enqueued(live.id, EnqueueStatus.CONFLICT)
        self.request(session, live.id)
        running = live.state == TaskState.RUNNING
        return Enqueued(live.id, EnqueueStatus.RERUN if running else EnqueueStatus.MERGED)

    def accept(
        self, session: Session, new: Sequence[NewTask], recurring: Collection[str], died: list[FinishedTask]
    ) -> list[Enqueued]:
        """Enqueue at once: where one transaction writes at a time, none has to wait for more than that."""
        if len(new) == 1:
            return [self.enqueue(session, new[0], recurring, died)]
        return self.enqueue_many(session, new, recurring, died)

    def accept_pull_in(self, session: Session, identity: bytes, not_later_than_ns: int) -> bool:
        """Pull in at once."""
        return self.pull_in(session, identity, not_later_than_ns)

    def merge_accepted(
        self, session: Session, recurring: Collection[str], died: list[FinishedTask], limit: int
    ) -> int:
        """Merge nothing."""
        return 0

    def has_orphans(self, session: Session) -> bool:
        """Return that none is: whoever is in a write transaction is the only one."""
        return False

    def hold(self, session: Session, ids: Sequence[int], *, wait: bool) -> dict[int, Held | None]:
        """Only look: whoever is in a write transaction is the only one."""
        return dict(self.still_running(session, ids))

    def cancel(self, session: Session, task: Task, now_ns: int) -> FinishedTask | None:
        """Bury a task, or mark the row of a running one, whose run buries it when its handler has returned."""
        if task.state == TaskState.RUNNING:
            self.mark_cancelled(session, task.id)
            return None
        self.bury(session, [(task.id, _lifecycle.cancelled(task))], now_ns)
        return FinishedTask(task, None, DeadReason.CANCELLED)

    def bury_cancelled(
        self, session: Session, tasks: Sequence[tuple[Task, Held]], now_ns: int, recurring: Collection[str]
    ) -> list[FinishedTask]:
        """Bury cancelled tasks that run no more; one that was requested since then starts a new life."""
        self.bury(session, [(task.id, _lifecycle.cancelled(task)) for task, _ in tasks], now_ns)
        finished = [FinishedTask(task, None, DeadReason.CANCELLED) for task, _ in tasks]
        for task, held in tasks:
            if held.requests > held.cancelled:
                self.enqueue(session, revived(task, now_ns), recurring, finished)
        return finished

    def rescue(
        self, session: Session, now_ns: int, max_crashes: int, recurring: Collection[str]
    ) -> tuple[int, list[FinishedTask]]:
        """Take over the tasks of nodes that are gone; return how many run again, and those that died.

        Each runs again with nothing beside it, and only a crash while it did so counts against it; one that only
        outlived an orderly stop is no suspect.
        """
        of_node: dict[int | None, list[Orphan]] = {}
        for orphan in self.orphans(session):
            of_node.setdefault(orphan.owner, []).append(orphan)
        finished: list[FinishedTask] = []
        rescued = 0
        for owner, orphans in of_node.items():
            for _, alone, spared, before, cancelled, task in orphans:
                crashes = before + 1 if alone and not spared and len(orphans) == 1 else before
                if cancelled:
                    held = Held(task.token, task.requests, cancelled)
                    finished += self.bury_cancelled(session, [(task, held)], now_ns, recurring)
                elif crashes >= max_crashes:
                    burial = _lifecycle.crashed(task, crashes)
                    self.bury(session, [(task.id, burial)], now_ns)
                    finished.append(FinishedTask(task, None, burial.reason))
                else:
                    not_before_ns = _lifecycle.after_crash_ns(task, crashes, now_ns)
                    self.run_again(
                        session,
                        task.id,
                        alone=alone if spared else owner is not None,
                        crashes=crashes,
                        not_before_ns=not_before_ns,
                    )
                    rescued += 1
        self.unpark_free(session)
        return rescued, finished
