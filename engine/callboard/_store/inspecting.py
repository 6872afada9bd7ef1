"""What an operator asks of the tables as a whole: what is due, held, dead and by whom. It only reads.

The engine needs none of it, so it is no part of `Store`; both databases of ours understand the SQL. Unless its
docstring says so, a query reads indexes and no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from callboard._store.interface import NodeRow, Session, Store
from callboard._store.nodes import PAUSED
from callboard._store.sql_tasks import ALONE, DUE
from callboard._store.sqlite import SqliteStore

# Each part is counted in the order of an index, which is quicker than to sort half a million due rows.
_DUE_PARTS = (
    ("callboard_task_due", DUE),
    ("callboard_task_alone", f"{ALONE} AND parked = 0"),
    ("callboard_task_parked", "parked = 1"),
)
_DUE = (
    "SELECT kind, CAST(sum(tasks) AS BIGINT), min(oldest_ns) FROM ("
    + " UNION ALL ".join(
        "SELECT kind, count(*) AS tasks, min(next_attempt_at_ns) AS oldest_ns FROM callboard_task"
        f" INDEXED BY {index} WHERE {rows} AND next_attempt_at_ns <= ?1 GROUP BY kind"
        for index, rows in _DUE_PARTS
    )
    + ") AS due GROUP BY kind ORDER BY kind"
)
_DEFERRED = (
    "SELECT kind, count(*) FROM callboard_task INDEXED BY callboard_task_deferred WHERE state = 'deferred'"
    " GROUP BY kind ORDER BY kind"
)
# A row without a group is held for itself.
_HELD = (
    "SELECT group_id, owner, count(*), min(id), min(last_attempted_at_ns) AS since_ns FROM callboard_task"
    " INDEXED BY callboard_task_running WHERE state = 'running'"
    " GROUP BY group_id, owner, CASE WHEN group_id IS NULL THEN id ELSE 0 END ORDER BY since_ns LIMIT ?"
)
_RUNNING = "SELECT count(*) FROM callboard_task INDEXED BY callboard_task_running WHERE state = 'running'"
_WAITING = (
    "SELECT group_id, count(*) FROM callboard_task WHERE state = 'pending' AND next_attempt_at_ns <= ?"
    " AND group_id IN ({}) GROUP BY group_id"
)
# A pull-in has no deadline of its own and no date.
_ACCEPTED = (
    "SELECT count(*), CAST(coalesce(sum(CASE WHEN next_attempt_at_ns <= ? THEN 1 ELSE 0 END), 0) AS BIGINT),"
    " min(created_at_ns) FROM callboard_inbox"
)
_DEAD_COUNT = "SELECT count(*) FROM callboard_dead_task"
_DEAD = "SELECT kind, reason, count(*) FROM callboard_dead_task GROUP BY kind, reason ORDER BY kind, reason"
# Every row is in one of the two indexes of identities, and an id is never used twice.
_TURNOVER_SQLITE = (
    "SELECT seq, seq - (SELECT count(*) FROM callboard_task INDEXED BY callboard_task_identity WHERE dormant = 0)"
    " - (SELECT count(*) FROM callboard_task INDEXED BY callboard_task_identity_dormant WHERE dormant = 1)"
    " FROM sqlite_sequence WHERE name = 'callboard_task'"
)
# Its backends count with a second's delay; to count a table of theirs would take long.
_TURNOVER_POSTGRES = (
    "SELECT n_tup_ins, n_tup_del FROM pg_stat_user_tables WHERE relid = CAST('callboard_task' AS regclass)"
)
_NODE_KINDS = "SELECT id, kinds FROM callboard_node"


class DueKind(NamedTuple):
    """The due tasks of one kind; `oldest_ns` is the deadline of the first."""

    kind: str
    tasks: int
    oldest_ns: int


class Accepted(NamedTuple):
    """What transactions have left for the next claim to merge into the task table: enqueues and pull-ins.

    Attributes:
        requests: how many.
        due: the tasks among them whose deadline has come.
        oldest_ns: when the first task among them was enqueued; `None` without one.
    """

    requests: int
    due: int
    oldest_ns: int | None


class Holding(NamedTuple):
    """What one node has claimed of one group, or one task without a group.

    Attributes:
        tasks: the tasks claimed, of which at most one runs.
        task_id: the first of them.
        since_ns: when the first was claimed; `None` in rows that no engine wrote.
    """

    group_id: bytes | None
    owner: int | None
    tasks: int
    task_id: int
    since_ns: int | None


class DeadKind(NamedTuple):
    """The dead tasks of one kind and reason."""

    kind: str
    reason: str
    tasks: int


class NodeView(NamedTuple):
    """A node, the kinds that it runs and those of them that it has paused, and whether its process has ended."""

    row: NodeRow
    kinds: frozenset[str]
    paused: frozenset[str]
    has_ended: bool


def due(session: Session, now_ns: int) -> list[DueKind]:
    """Return the due tasks by kind, those that wait for their group among them."""
    return [DueKind._make(row) for row in session.rows(_DUE, (now_ns,))]


def deferred(session: Session) -> dict[str, int]:
    """Return the number of deferred tasks by kind."""
    return {kind: count for kind, count in session.rows(_DEFERRED)}


def held(session: Session, limit: int) -> list[Holding]:
    """Return what nodes have claimed, the longest held first; it reads the claimed rows."""
    return [Holding._make(row) for row in session.rows(_HELD, (limit,))]


def running(session: Session) -> int:
    """Return how many tasks are claimed."""
    count: int = session.rows(_RUNNING)[0][0]
    return count


def waiting(session: Session, group_ids: Sequence[bytes], now_ns: int) -> dict[bytes, int]:
    """Return how many due tasks of these groups are not claimed; it may read every row."""
    if not group_ids:
        return {}
    marks = ", ".join("?" * len(group_ids))
    rows = session.rows(_WAITING.format(marks), (now_ns, *group_ids))
    return {bytes(group_id): count for group_id, count in rows}


def turnover(store: Store, session: Session) -> tuple[int, int]:
    """Return how many tasks have been enqueued, and how many have ended, done or dead, since some time."""
    rows = session.rows(_TURNOVER_SQLITE if isinstance(store, SqliteStore) else _TURNOVER_POSTGRES)
    return next(((enqueued, ended) for enqueued, ended in rows), (0, 0))


def accepted(store: Store, session: Session, now_ns: int) -> Accepted:
    """Return what waits to be merged; on SQLite nothing ever does. It reads every row that waits."""
    if isinstance(store, SqliteStore):
        return Accepted(0, 0, None)
    return Accepted._make(session.rows(_ACCEPTED, (now_ns,))[0])


def dead_count(session: Session) -> int:
    """Return how many dead tasks there are."""
    count: int = session.rows(_DEAD_COUNT)[0][0]
    return count


def dead(session: Session) -> list[DeadKind]:
    """Return the dead tasks by kind and reason; it reads every dead row."""
    return [DeadKind._make(row) for row in session.rows(_DEAD)]


def nodes(store: Store, session: Session) -> list[NodeView]:
    """Return the nodes in the order of their ids."""
    told = {node_id: frozenset(filter(None, names.split(","))) for node_id, names in session.rows(_NODE_KINDS)}
    views = []
    for row in store.nodes.others(session, 0):
        names = told.get(row.id, frozenset())
        paused = frozenset(name.removeprefix(PAUSED) for name in names if name.startswith(PAUSED))
        kinds = frozenset(name for name in names if not name.startswith(PAUSED))
        views.append(NodeView(row, kinds, paused, store.nodes.has_ended(row)))
    return views
