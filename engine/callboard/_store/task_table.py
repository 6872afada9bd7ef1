"""What the engine asks of a store's task and dead-task tables; see `interface` for what holds for all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from callboard._clock import NEVER_NS
from callboard._lifecycle import Bury, Transition
from callboard._task import DeadTask, Enqueued, FinishedTask, NewTask, Task

if TYPE_CHECKING:
    from callboard._store.interface import Session

LOOK = 5_000
"""Due rows of a kind that `TaskTable.due_beside` looks at, at most: about 5 ms."""


class Held(NamedTuple):
    """A running row as it is now, to be compared with what its run remembers.

    Attributes:
        cancelled: the number of requests when it was cancelled; 0 when it was not.
    """

    token: int
    requests: int
    cancelled: int


class Heads(NamedTuple):
    """The earliest deadlines in the task table; `NEVER_NS` where there is no such row.

    Attributes:
        pending: for each kind that has pending rows, known to the node or not.
        deferred: for each kind that has deferred rows.
        expiry_ns: when the first deferred row expires.
        alone_ns: when the first row is due that must run alone, of a kind that the node can run and a group that
            no other node runs.
        stray_ns: when the first row is due that must run alone and is of no kind that the node can run.
        accepted: whether something waits for `merge_accepted`.
    """

    pending: dict[str, int]
    deferred: dict[str, int]
    expiry_ns: int = NEVER_NS
    alone_ns: int = NEVER_NS
    stray_ns: int = NEVER_NS
    accepted: bool = False


class TaskTable(Protocol):
    """The steps of tasks' lives. `callboard.stores.TaskPolicy` has those that need no SQL of their own.

    A row is *due* when it is pending and its `next_attempt_at_ns` has come. Rows that were parked, that must
    run alone or that are deferred are none of `heads` and `due`.
    """

    def enqueue(
        self, session: Session, new: NewTask, recurring: Collection[str], died: list[FinishedTask]
    ) -> Enqueued:
        """Write one task, or raise the `requests` of the live one with its identity (rules 13 and 14).

        A live row with another `data_hash` is a conflict and stays as it is. A row in the way that does not run
        and whose time or attempts are up is buried and added to `died`, and the new one inserted; rows of the
        kinds in `recurring` have no end. It never raises for a row that is in the way.
        """
        ...

    def enqueue_many(
        self, session: Session, new: Sequence[NewTask], recurring: Collection[str], died: list[FinishedTask]
    ) -> list[Enqueued]:
        """Do what `enqueue` does for many, in their order; two calls at once must not deadlock."""
        ...

    def accept(
        self, session: Session, new: Sequence[NewTask], recurring: Collection[str], died: list[FinishedTask]
    ) -> list[Enqueued]:
        """Take tasks in a transaction that may stay open for long, such as a host's.

        It must not wait for other transactions, nor make them wait. Where that means that only the commit can show
        what a task will meet, the answers are `accepted`, and `merge_accepted` enqueues later. Others do what
        `enqueue` and `enqueue_many` do; `TaskPolicy` has that.
        """
        ...

    def accept_pull_in(self, session: Session, identity: bytes, not_later_than_ns: int) -> bool:
        """Take a pull-in as `accept` takes tasks; `False` if there is no such row as far as can be told."""
        ...

    def merge_accepted(
        self, session: Session, recurring: Collection[str], died: list[FinishedTask], limit: int
    ) -> int:
        """Enqueue and pull in what was accepted, at most `limit`, in its order; return how many."""
        ...

    def pull_in(self, session: Session, identity: bytes, not_later_than_ns: int) -> bool:
        """Lower a live row's deadline, never raise it; `False` if there is no such row (rule 15).

        That of a running row stays; the lowest asked for is kept in `pulled_in_ns` until the run ends.
        """
        ...

    def by_id(self, session: Session, task_id: int) -> Task | None:
        """Return a live row."""
        ...

    def heads(self, session: Session, kinds: Collection[str], node_id: int) -> Heads:
        """Return the earliest deadlines for a node that can run `kinds`.

        Its cost must not grow with the number of rows of a kind.
        """
        ...

    def due(
        self, session: Session, kinds: Sequence[str], node_id: int, now_ns: int, limit: int, *, grouped_only: bool
    ) -> list[Task]:
        """Return at most `limit` due rows of `kinds`, earliest deadline first, as `start` will leave them.

        That is: with `state` running, the next `token`, and the node as `owner`. Rows of other kinds are not
        even read. Rows of groups that another node than `node_id` runs are left out, with `grouped_only` those
        without a group. Where nodes work on rows at once, a row is returned to one of them.
        """
        ...

    def due_beside(
        self, session: Session, kind: str, group_ids: Collection[bytes], node_id: int, now_ns: int, limit: int
    ) -> list[Task]:
        """Return due rows of one kind, as `due` does, without those of these groups.

        It need not look further than at the first `LOOK` due rows of the kind, so that its cost is bounded however
        many of them are left out.
        """
        ...

    def parked(self, session: Session, rooms: Mapping[bytes, int], node_id: int, now_ns: int) -> list[Task]:
        """Return parked rows of groups that are due, as `due` does; of each group as many as it has room for."""
        ...

    def start(self, session: Session, ids: Sequence[int], now_ns: int, owner: int) -> None:
        """Mark rows as running for the node `owner`, last attempted now, each with a new token; unpark them."""
        ...

    def spare(self, session: Session, task_ids: Sequence[int], node_id: int) -> None:
        """Note of rows that the node runs: it was stopped in good order, so its end tells nothing against them."""
        ...

    def park(self, session: Session, ids: Sequence[int]) -> None:
        """Keep pending rows from `heads` and `due` until their group has room."""
        ...

    def park_more(
        self, session: Session, kind: str, group_ids: Collection[bytes], now_ns: int, limit: int
    ) -> None:
        """Park the rows of these groups that are among the first `limit` due ones of a kind."""
        ...

    def unpark(self, session: Session, group_ids: Iterable[bytes]) -> None:
        """Give the parked rows of groups back to `heads` and `due`."""
        ...

    def resolve(self, session: Session, task: Task) -> None:
        """Write the task's group, expiry and policy to its row, which came without."""
        ...

    def hold(self, session: Session, ids: Sequence[int], *, wait: bool) -> dict[int, Held | None]:
        """Keep others from changing these rows until the transaction ends.

        Returns:
            What `still_running` does, and `None` for a row that somebody else keeps from being changed just now;
            with `wait` there is no such row.
        """
        ...

    def still_running(self, session: Session, ids: Sequence[int]) -> dict[int, Held]:
        """Return the state of those rows that are still there and running."""
        ...

    def settle(self, session: Session, changes: Sequence[tuple[int, Transition]], now_ns: int) -> None:
        """Write what becomes of running rows.

        `Finish` deletes the row, `Bury` does as `bury`. `Keep` writes its columns and makes the row pending, at
        `pulled_in_ns` if that is earlier, with nothing left of pull-in, node, and crashes.
        """
        ...

    def bury(self, session: Session, burials: Sequence[tuple[int, Bury]], now_ns: int) -> None:
        """Move rows to the dead-task table, with the burial's reason, attempts and error, all else as it was."""
        ...

    def hand_back(self, session: Session, ids: Sequence[int]) -> None:
        """Make running rows pending again, as if they had not been claimed; their tokens do not go back."""
        ...

    def cancel(self, session: Session, task: Task, now_ns: int) -> FinishedTask | None:
        """Bury a task. Mark the row of a running one instead and add 1 to its token, once; return `None` then.

        By just that token its run knows the row as its own, to be buried when the handler has returned. The marked
        row keeps its group occupied until `bury_cancelled`.
        """
        ...

    def bury_cancelled(
        self, session: Session, tasks: Sequence[tuple[Task, Held]], now_ns: int, recurring: Collection[str]
    ) -> list[FinishedTask]:
        """Bury cancelled tasks that run no more; one that was requested since then starts a new life."""
        ...

    def rescue(
        self, session: Session, now_ns: int, max_crashes: int, recurring: Collection[str]
    ) -> tuple[int, list[FinishedTask]]:
        """Take over running rows whose node has no row; return how many run again, and those that died.

        Each gets a new token and must run alone. One whose node ended while it ran alone has crashed once more:
        it is dead at `max_crashes`, waits for its backoff before. Rows without a node (by hand) need not run
        alone. Cancelled ones are buried as by `bury_cancelled`. Groups that nobody runs any more are unparked.
        """
        ...

    def has_orphans(self, session: Session) -> bool:
        """Return whether `rescue` left some behind, because somebody else is at work on their rows."""
        ...

    def alone_due(self, session: Session, kinds: Iterable[str], node_id: int, now_ns: int) -> list[Task]:
        """Return the first due row that must run alone, if there is one, as `due` does."""
        ...

    def set_strays_aside(
        self, session: Session, kinds: Iterable[str], now_ns: int, until_ns: int, limit: int
    ) -> dict[str, list[int]]:
        """Defer due rows that must run alone and are of none of `kinds`; return their ids by kind.

        They go on being rows that must run alone.
        """
        ...

    def set_aside(self, session: Session, kind: str, now_ns: int, until_ns: int, limit: int) -> list[int]:
        """Defer due rows of a kind that nothing here runs (rule 16); return their ids, at most `limit`.

        Deferred ones whose deadline has come are deferred again. Rows that are overdue or have no payload are
        left, so that they can be buried.
        """
        ...

    def set_these_aside(self, session: Session, ids: Iterable[int], until_ns: int) -> None:
        """Defer rows whose payload only a newer build understands."""
        ...

    def take_up(
        self, session: Session, kinds: Iterable[str], except_ids: Iterable[int], now_ns: int, limit: int
    ) -> int:
        """Make deferred rows of kinds that run here pending and due (rule 17), at most `limit`; return how many.

        Those in `except_ids` only once their deadline has come.
        """
        ...

    def deferred_expired(self, session: Session, now_ns: int, limit: int) -> list[Task]:
        """Return deferred rows whose time is up, at most `limit`."""
        ...

    def shorten_backoff(self, session: Session, now_ns: int, cap_ns: int) -> int:
        """Bring back rows whose backoff a clock set back left further away than its cap (rule 8); return how many.

        The cap is the row's own, or `cap_ns` where it has none. Rows that wait for another reason stay.
        """
        ...

    def keep_due(self, session: Session, now_ns: int, set_back_ns: int) -> int:
        """Have rows still due that were before the clock was set back by `set_back_ns`; return how many.

        Pending and running rows whose deadline is later than `now_ns`, but not later than the clock was, are as
        much earlier as it was set back. Those that were not due yet stay.
        """
        ...

    def dead_by_id(self, session: Session, dead_id: int) -> DeadTask | None:
        """Return a dead row."""
        ...

    def forget_dead(self, session: Session, dead_id: int) -> None:
        """Delete a dead row."""
        ...

    def prune_dead(self, session: Session, before_ns: int, limit: int) -> int:
        """Delete rows that died before `before_ns`, at most `limit`, the oldest first; return how many."""
        ...
