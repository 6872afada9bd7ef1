"""What the contract's tests are written with: a store's steps, each in a transaction of its own."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

from callboard.stores import (
    Bury,
    DeadReason,
    DeadTask,
    Enqueued,
    FinishedTask,
    Heads,
    Held,
    Keep,
    NewTask,
    Session,
    Store,
    Task,
    Transition,
)

SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
DAY_NS = 86_400 * SECOND_NS
NOW_NS = 1_700_000_000 * SECOND_NS
"""When the tests take place, but for what a database's own clock says."""

KIND, OTHER = "acme.Note", "acme.Other"
"""Two kinds of tasks."""

MANY = 10_000
"""How many rows one call must be able to take."""

PATIENCE_S = 20.0
"""How long a test waits for what must happen, and only one that fails waits so long."""

MakeStore = Callable[[], Store]


def note(text: str, *, key: str | None = None, **columns: Any) -> NewTask:
    """Return a task that is due now; its payload is its identity unless there is a key."""
    data = text.encode()
    row: dict[str, Any] = {
        "kind": KIND,
        "group_id": None,
        "identity": hashlib.sha256(data if key is None else b"key\0" + key.encode()).digest(),
        "data": data,
        "data_hash": hashlib.sha256(data).digest(),
        "max_attempts": 3,
        "created_at_ns": NOW_NS,
        "expires_at_ns": NOW_NS + DAY_NS,
        "next_attempt_at_ns": NOW_NS,
        "initial_backoff_ns": SECOND_NS,
        "backoff_factor": 2.0,
        "max_backoff_ns": MINUTE_NS,
        "origin": None,
    }
    return NewTask(**{**row, **columns})


def texts(rows: Sequence[Task | DeadTask]) -> list[str]:
    """Return what was written into the notes."""
    return [row.data.decode() for row in rows]


def kept(task: Task, **columns: Any) -> Keep:
    """Return the transition that leaves a row as it is, but for these columns."""
    unchanged = Keep(
        task.attempts,
        task.outages,
        task.next_attempt_at_ns,
        task.created_at_ns,
        task.expires_at_ns,
        task.last_error,
    )
    return unchanged._replace(**columns)


def discarded(task: Task, why: str = "of no use") -> Bury:
    """Return a burial."""
    return Bury(DeadReason.DISCARDED, task.attempts, why)


def eventually(condition: Callable[[], Any]) -> None:
    """Wait for something of which nothing tells."""
    deadline_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        pause.wait(0.005)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls on threads that start together; return their answers, or raise what one of them raised."""
    start = threading.Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def make(place: int) -> None:
        try:
            start.wait(PATIENCE_S)
            answers[place] = calls[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "calls that were made at once wait for each other"
    if errors:
        raise errors[0]
    return answers


class Steps:
    """A store's methods without their sessions."""

    def __init__(self, store: Store) -> None:
        """Make steps on `store`."""
        self.store = store
        self.tasks = store.tasks
        self.died: list[FinishedTask] = []

    def do(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Make one step in a transaction."""
        with self.store.transaction() as session:
            return step(session, *args, **options)

    def run(self, sql: str, *params: Any) -> int:
        """Run plain SQL; return how many rows it changed."""
        with self.store.transaction() as session:
            return session.run(sql, params)

    def enqueue(self, new: NewTask, recurring: Collection[str] = ()) -> Enqueued:
        """Enqueue one task; what died of it is in `died`."""
        with self.store.transaction() as session:
            return self.tasks.enqueue(session, new, recurring, self.died)

    def enqueue_many(self, new: Sequence[NewTask]) -> list[Enqueued]:
        """Enqueue many."""
        with self.store.transaction() as session:
            return self.tasks.enqueue_many(session, new, (), self.died)

    def node(self, lease_ns: int = MINUTE_NS) -> int:
        """Add a node."""
        with self.store.transaction() as session:
            return self.store.nodes.add(session, "0", KIND, lease_ns, NOW_NS)

    def lose(self, node_id: int) -> None:
        """Let a node be gone, as others do that have found out."""
        self.do(self.store.nodes.remove, node_id)
        self.store.nodes.unlock(node_id)

    def due(
        self,
        node_id: int = 0,
        kinds: Sequence[str] = (KIND,),
        *,
        now_ns: int = NOW_NS,
        limit: int = MANY,
        grouped_only: bool = False,
    ) -> list[Task]:
        """Return the due rows that `node_id` may start."""
        with self.store.transaction() as session:
            return self.tasks.due(session, kinds, node_id, now_ns, limit, grouped_only=grouped_only)

    def beside(self, *group_ids: bytes, node_id: int = 0, now_ns: int = NOW_NS, limit: int = MANY) -> list[Task]:
        """Return the due rows of `KIND` that `node_id` may start, without those of these groups."""
        with self.store.transaction() as session:
            return self.tasks.due_beside(session, KIND, group_ids, node_id, now_ns, limit)

    def claim(self, node_id: int, kinds: Sequence[str] = (KIND,), **options: Any) -> list[Task]:
        """Start what is due."""
        with self.store.transaction() as session:
            return claim(self.store, session, node_id, kinds, **options)

    def settle(self, *changes: tuple[Task, Transition], now_ns: int = NOW_NS) -> None:
        """Write what becomes of rows."""
        with self.store.transaction() as session:
            self.tasks.settle(session, [(task.id, change) for task, change in changes], now_ns)

    def held(self, *tasks: Task) -> dict[int, Held]:
        """Return how these rows are held now."""
        with self.store.reading() as session:
            return self.tasks.still_running(session, [task.id for task in tasks])

    def all_heads(self, node_id: int = 0, kinds: Collection[str] = ()) -> Heads:
        """Return the earliest deadlines for a node that can run `kinds`."""
        with self.store.reading() as session:
            return self.tasks.heads(session, kinds, node_id)

    def heads(self) -> dict[str, int]:
        """Return the earliest deadlines of pending rows."""
        return self.all_heads().pending

    def rescue(self, now_ns: int = NOW_NS, *, max_crashes: int = 5) -> tuple[int, list[FinishedTask]]:
        """Take over what nodes that are gone have left."""
        with self.store.transaction() as session:
            return self.tasks.rescue(session, now_ns, max_crashes, ())

    def rows(self, **conditions: Any) -> list[Task]:
        """Return the live rows."""
        given: dict[str, Any] = {"kind": None, "group_id": None, "state": None, "limit": 3 * MANY, "after_id": 0}
        return self.store.list_tasks(**{**given, **conditions})

    def row(self) -> Task:
        """Return the only live row."""
        [row] = self.rows()
        return row

    def dead(self, **conditions: Any) -> list[DeadTask]:
        """Return the dead rows."""
        given: dict[str, Any] = {"kind": None, "group_id": None, "limit": 3 * MANY, "after_id": 0}
        return self.store.list_dead(**{**given, **conditions})


def claim(
    store: Store,
    session: Session,
    node_id: int,
    kinds: Sequence[str] = (KIND,),
    *,
    now_ns: int = NOW_NS,
    limit: int = MANY,
    grouped_only: bool = False,
) -> list[Task]:
    """Start what is due, inside a transaction that is open."""
    rows = store.tasks.due(session, kinds, node_id, now_ns, limit, grouped_only=grouped_only)
    store.tasks.start(session, [row.id for row in rows], now_ns, node_id)
    return rows


class ContractTests:
    """The fixtures of the contract's tests.

    Attributes:
        mark: how the database's driver writes a parameter into a statement.
        tells_ended_processes: whether `NodeTable.has_ended` can tell that a process on this machine has ended.
        gives_hints: whether `Store.watching` tells of commits, which it may begin to do a little later.
    """

    mark: str = "?"
    tells_ended_processes: bool = True
    gives_hints: bool = False

    @pytest.fixture
    def make_store(self) -> MakeStore | Iterator[MakeStore]:
        """Return a function that makes a store; within one test, all of them on the same new database."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture make_store")

    @pytest.fixture
    def steps(self, make_store: MakeStore) -> Steps:
        """Return steps on a database that has its tables."""
        store = make_store()
        store.prepare(NOW_NS)
        return Steps(store)

    @pytest.fixture
    def other(self, make_store: MakeStore, steps: Steps) -> Steps:
        """Return steps on the same database from another store, as another process has them."""
        return Steps(make_store())

    def marks(self, count: int) -> str:
        """Return the places of parameters in a statement."""
        return ", ".join([self.mark] * count)
