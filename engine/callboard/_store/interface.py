"""What the engine asks of a store. Everything above this line of the code knows these protocols and no database.

`callboard.testing.store_contract.StoreContract` holds a test for each promise made here.

Three things hold for every method that takes a session. It is one step inside the transaction of that session,
and leaves no trace if that is rolled back. It takes any number of kinds and of ids, ten thousand and more. And
whatever a driver raises comes out as a `StoreError` (or one of its subclasses) that names the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

from callboard._group_state import GroupState
from callboard._migration import Migration
from callboard._store.task_table import TaskTable
from callboard._task import DeadTask, Enqueued, NewTask, Task

Row = tuple[Any, ...]


class NodeRow(NamedTuple):
    """A node as its row says: one running engine on the database.

    Attributes:
        host: the name of the machine that it runs on.
        pid: its process there.
        lease_ns: how long the node may go without a heartbeat before others take its tasks over.
        heartbeat: a number that changes with each heartbeat.
        holds: whether it has claimed tasks.
    """

    id: int
    host: str
    pid: int
    lease_ns: int
    heartbeat: int
    holds: bool


class Session(Protocol):
    """Run statements in one open transaction."""

    @property
    def connection(self) -> Any:
        """The connection, for a caller's own statements in the same transaction."""
        ...

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows, as plain tuples."""
        ...

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed.

        The engine itself runs `SAVEPOINT name`, `ROLLBACK TO name` and `RELEASE name` here.
        """
        ...

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of `rows`."""
        ...

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Have `call` made once the outermost transaction has committed, and never if it is rolled back.

        Returns:
            `False` where nothing can tell of the commit; then the call is never made.
        """
        ...


@runtime_checkable
class Store(Protocol):
    """One database with Callboard's tables. Making one connects to nothing.

    Attributes:
        where: the database as messages name it, such as `database service.db`; no password is in it.
        poll_interval_s: how often an idle engine asks for `data_version`, in seconds.
        tasks: the task and dead-task tables.
        groups: the group, member and pending-remove tables.
        nodes: the node table.
    """

    @property
    def where(self) -> str: ...
    @property
    def poll_interval_s(self) -> float: ...
    @property
    def tasks(self) -> TaskTable: ...
    @property
    def groups(self) -> GroupTable: ...
    @property
    def nodes(self) -> NodeTable: ...

    def prepare(self, now_ns: int) -> list[str]:
        """Migrate the tables if they need it; return the titles of what was done, nothing the second time.

        Several processes may do this at once: one of them migrates, the others find it done.

        Raises:
            SchemaError: a newer engine wrote the tables. Nothing has been changed.
            StoreError: the database cannot be used.
        """
        ...

    def transaction(self) -> AbstractContextManager[Session]:
        """Open a write transaction on the calling thread, or join the one that is open there.

        It commits when the outermost block ends and rolls back, whole, when that raises. A commit that fails
        raises a `StoreError`, and has written nothing.
        """
        ...

    def claiming(self) -> AbstractContextManager[Session]:
        """Open a write transaction whose commit need not survive a power failure: its claims run again then."""
        ...

    def reading(self) -> AbstractContextManager[Session]:
        """Open a session that reads, in the calling thread's transaction if it has one."""
        ...

    def insert_now(self, new: NewTask) -> int | None:
        """Write and commit a task, and return its id; `None`, and nothing written, when its identity is live.

        It is called outside of transactions, and need not open one: a single statement is quicker.
        """
        ...

    def session_on(self, connection: Any) -> AbstractContextManager[Session]:
        """Open a session on the host's own connection, in its transaction or else in one of our own.

        It neither commits nor rolls back a transaction that the host has open, and it leaves the connection's
        settings as they were.

        Raises:
            ConfigurationError: `connection` is nothing that this store knows.
        """
        ...

    def in_transaction(self) -> bool:
        """Return whether the calling thread is in a transaction on this database."""
        ...

    def thread(self) -> AbstractContextManager[None]:
        """Keep the calling thread's connection open, for a thread of the engine's own."""
        ...

    def drop_connection(self) -> None:
        """Close the calling thread's connection for good, because it may be broken; the next use opens another."""
        ...

    def close(self) -> None:
        """Close the connections that no thread is using. The store stays usable."""
        ...

    def forget(self) -> None:
        """Drop every connection and lock without closing it, as a forked child must: they are its parent's."""
        ...

    def data_version(self) -> int:
        """Return a number that changes when another connection commits, and only then; read no table if none has.

        It is called by one thread, inside its `thread()`.

        Raises:
            StoreError: the database cannot be used any more. This is the regular look at it, so an idle engine
                learns here what no statement of its would tell; `thread()` says the same until it is over.
            SchemaError: a newer engine has migrated the tables and says that this one cannot use them.
        """
        ...

    def watching(self, changed: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `changed`, on any thread, soon after another connection has committed something.

        It is a hint only, and stores that are not told of commits give none: `data_version` is looked at, too.
        """
        ...

    def take_turn(self, session: Session, name: str, now_ns: int, interval_ns: int) -> bool:
        """Return whether it is this caller's turn to do what the fleet does once in `interval_ns`.

        The first to ask gets it, and again the first after the interval. A turn that lies in the future (the
        clock was set back) counts for nothing.
        """
        ...

    def list_tasks(
        self, kind: str | None, group_id: bytes | None, state: str | None, limit: int, after_id: int
    ) -> list[Task]:
        """Return live rows that meet every condition given, in the order of their ids, from `after_id` on."""
        ...

    def list_dead(self, kind: str | None, group_id: bytes | None, limit: int, after_id: int) -> list[DeadTask]:
        """Return dead rows that meet every condition given, in the order of their ids, from `after_id` on."""
        ...

    def count_tasks(self) -> dict[tuple[str, str], int]:
        """Return how many live rows there are of each kind and state."""
        ...


@runtime_checkable
class AwaitedConnections(Protocol):
    """What a store has besides that also writes on hosts' asynchronous connections; none has to."""

    def is_awaited(self, connection: Any) -> bool:
        """Return whether `connection` is for `accept_on`."""
        ...

    async def accept_on(self, connection: Any, new: Sequence[NewTask]) -> list[Enqueued]:
        """Do what `TaskTable.accept` does, in the transaction of the host's connection as in `session_on`."""
        ...


@runtime_checkable
class PluginTables(Protocol):
    """What a store has besides in which plugins may have tables of their own; none has to.

    Attributes:
        dialect: whose SQL it takes, as plugins name it: `sqlite` or `postgres`.
    """

    @property
    def dialect(self) -> str: ...

    def recorded(self) -> dict[str, tuple[int, int]]:
        """Return, for each series in `callboard_migration`, its latest `number` and greatest `compatible_with`."""
        ...

    def migrate_plugin(self, plugin: str, migration: Migration, now_ns: int) -> bool:
        """Run one of a plugin's migrations and record it in `callboard_migration`, in one transaction.

        Of several processes that do this at once, and of those that are in `prepare`, one is at work at a time.

        Returns:
            `False`, with nothing done, if another process has run it.

        Raises:
            DatabaseUnavailableError: the database cannot be written just now.
            StoreError: the statements are wrong. Nothing of them is left.
        """
        ...


class GroupTable(Protocol):
    """What the host says of groups. Each change makes a missing group row, is idempotent, and ends with the marks.

    The marks `is_leaving` and `has_pending_leave_request` follow from the rows, whatever the order of events.
    """

    def created(
        self,
        session: Session,
        group_id: bytes,
        own_inbox_id: str,
        members: Collection[str],
        super_admins: Collection[str],
        consent: str,
        active_at_ns: int,
    ) -> None:
        """Write what the host says of a group that it created or was added to; take nothing away."""
        ...

    def membership_changed(
        self,
        session: Session,
        group_id: bytes,
        *,
        removed: Collection[str],
        added: Collection[str],
        promoted: Collection[str],
        demoted: Collection[str],
        active_at_ns: int,
    ) -> None:
        """Write a commit's change of membership; a removed member's leave request is settled by it."""
        ...

    def leave_requested(
        self, session: Session, group_id: bytes, inbox_id: str, message_id: bytes, requested_at_ns: int
    ) -> bool:
        """Write a leave request; `False`, and nothing changed, when the member's request is already there."""
        ...

    def leave_settled(self, session: Session, group_id: bytes, inbox_ids: Collection[str]) -> None:
        """Drop leave requests, and the group's mark once none is left that asks for it."""
        ...

    def set_consent(self, session: Session, group_id: bytes, consent: str) -> None:
        """Write the user's consent to the group."""
        ...

    def set_active(self, session: Session, group_id: bytes, at_ns: int) -> None:
        """Write when the group was last active; an earlier time changes nothing."""
        ...

    def version(self, session: Session, group_id: bytes) -> int | None:
        """Return a number that grows with each change of the group's rows; `None` without a group row."""
        ...

    def state(self, session: Session, group_id: bytes) -> GroupState | None:
        """Return the group's rows, `None` without a group row."""
        ...

    def matching(
        self,
        session: Session,
        *,
        pending: bool | None,
        active_since_ns: int | None,
        consent: Sequence[str] | None,
        member: str | None,
        limit: int,
        after: bytes,
    ) -> list[bytes]:
        """Return ids of groups, in their order, that meet every condition given; page with `after`.

        `pending` groups are those that are marked, and those with anybody's leave request.
        """
        ...


class NodeTable(Protocol):
    """Who executes the tasks, and for whom a row, a lock and a heartbeat tell that it is still there."""

    def add(self, session: Session, version: str, kinds: str, lease_ns: int, now_ns: int) -> int:
        """Write this engine's row and take its lock; return the node's id, which is never used twice.

        The lock is taken before the row is committed, so nobody sees the one without the other. Where nothing
        like a lock tells that a process has ended, the lease does.
        """
        ...

    def renew(self, session: Session, node_id: int, now_ns: int) -> bool:
        """Write a heartbeat; `False` when others have found this node gone and taken its tasks over.

        Each one changes the number that others see, wherever the clock stands.
        """
        ...

    def tell_kinds(self, session: Session, node_id: int, kinds: str) -> None:
        """Write anew what `add` wrote of the kinds that the node runs; nothing if its row is gone."""
        ...

    def remove(self, session: Session, node_id: int) -> None:
        """Delete this engine's row; `unlock` follows the commit."""
        ...

    def unlock(self, node_id: int) -> None:
        """Give a node's lock back, if there is one."""
        ...

    def others(self, session: Session, node_id: int) -> list[NodeRow]:
        """Return the other nodes' rows, in the order of their ids; all of them for the `node_id` 0."""
        ...

    def has_ended(self, node: NodeRow) -> bool:
        """Return whether a node's process has ended; `False` where that cannot be told at once."""
        ...

    def bury(self, session: Session, node: NodeRow) -> bool:
        """Delete the row of a node that is gone; `False` when it has given a sign of life since it was read."""
        ...

    def prune(self, session: Session, node_id: int, before_ns: int) -> list[NodeRow]:
        """Delete the rows of other nodes that hold nothing and whose last heartbeat is older; return them."""
        ...
