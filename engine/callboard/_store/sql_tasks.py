"""The steps of tasks' lives whose SQL every database of ours understands; stores add the others.

A session writes the marks of parameters as its driver wants them, and leaves out `INDEXED BY` and `NOT INDEXED`
where they mean nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any

from callboard._store.interface import Row, Session
from callboard._store.policy import TaskPolicy
from callboard._store.task_table import Heads
from callboard._task import DeadTask, Task

TASK = ", ".join(Task._fields)
# A row written by hand may have any number, and one that overflows would stop each pass that counts it up.
NEXT = "({name} & 4611686018427387903) + 1"
DUE = "state = 'pending' AND parked = 0 AND alone = 0"
ALONE = "state = 'pending' AND alone = 1"
_ALONE_ROWS = "callboard_task INDEXED BY callboard_task_alone"
_BY_ID = f"SELECT {TASK} FROM callboard_task WHERE id = ?"
_REQUEST = f"UPDATE callboard_task SET requests = {NEXT.format(name='requests')} WHERE id = ?"
# Skips from kind to kind along the index, so it costs one seek for each kind that has such rows.
_KINDS = (
    "{name}(kind) AS (SELECT min(kind) FROM callboard_task WHERE {rows} UNION ALL"
    " SELECT (SELECT min(kind) FROM callboard_task WHERE {rows} AND kind > {name}.kind) FROM {name}"
    " WHERE {name}.kind IS NOT NULL)"
)
_OF_KINDS = (
    "SELECT '{name}', kind, (SELECT min(next_attempt_at_ns) FROM callboard_task"
    " WHERE {rows} AND kind = {name}.kind) FROM {name} WHERE kind IS NOT NULL"
)
_DEFERRED = "state = 'deferred'"
_RESOLVE = (
    "UPDATE callboard_task SET group_id = ?, max_attempts = ?, expires_at_ns = ?, initial_backoff_ns = ?,"
    " backoff_factor = ?, max_backoff_ns = ? WHERE id = ?"
)
_SHORTEN_BACKOFF = (
    "UPDATE callboard_task SET next_attempt_at_ns = ?1 + coalesce(max_backoff_ns, ?2), last_attempted_at_ns = ?1"
    " WHERE last_error IS NOT NULL AND last_attempted_at_ns > ?1 AND state = 'pending'"
    " AND next_attempt_at_ns > ?1 + coalesce(max_backoff_ns, ?2)"
)
_SHORTEN_AFTER_CRASH = (
    "UPDATE callboard_task INDEXED BY callboard_task_alone"
    " SET next_attempt_at_ns = ?1 + coalesce(max_backoff_ns, ?2), last_attempted_at_ns = ?1"
    f" WHERE {ALONE} AND crashes > 0 AND last_attempted_at_ns > ?1"
    " AND next_attempt_at_ns > ?1 + coalesce(max_backoff_ns, ?2)"
)
_DEAD_BY_ID = f"SELECT {', '.join(DeadTask._fields)} FROM callboard_dead_task WHERE id = ?"
_FORGET_DEAD = "DELETE FROM callboard_dead_task WHERE id = ?"


def heads_statement(alone: str, strays: str, accepted: str = "NULL") -> str:
    """Return the statement of `SqlTasks.heads`: one, since on a server each costs the way there and back.

    Args:
        alone: what is true of the rows of the kinds `?2` that must run alone and that node `?1` may run.
        strays: what is true of those of other kinds.
        accepted: an expression that is not NULL if something waits to be merged.
    """
    of_kinds = {"pending": DUE, "deferred": _DEFERRED}
    return " ".join(
        (
            "WITH RECURSIVE",
            ", ".join(_KINDS.format(name=name, rows=rows) for name, rows in of_kinds.items()),
            " UNION ALL ".join(_OF_KINDS.format(name=name, rows=rows) for name, rows in of_kinds.items()),
            f"UNION ALL SELECT 'expiry_ns', NULL, min(expires_at_ns) FROM callboard_task WHERE {_DEFERRED}",
            f"UNION ALL SELECT 'alone_ns', NULL, min(next_attempt_at_ns) FROM {_ALONE_ROWS} WHERE {alone}",
            f"UNION ALL SELECT 'stray_ns', NULL, min(next_attempt_at_ns) FROM {_ALONE_ROWS} WHERE {strays}",
            f"UNION ALL SELECT 'accepted', NULL, {accepted}",
        )
    )


class SqlTasks(TaskPolicy):
    """What is the same statement on every database."""

    @abstractmethod
    def head_rows(self, session: Session, kinds: Collection[str], node_id: int) -> list[Row]:
        """Return the rows of a `heads_statement`."""

    def request(self, session: Session, task_id: int) -> None:
        """Count one more request of a live row."""
        session.run(_REQUEST, (task_id,))

    def by_id(self, session: Session, task_id: int) -> Task | None:
        """Return a live row."""
        return next((Task._make(row) for row in session.rows(_BY_ID, (task_id,))), None)

    def heads(self, session: Session, kinds: Collection[str], node_id: int) -> Heads:
        """Return the earliest deadlines for a node that can run `kinds`."""
        heads = Heads({}, {})
        single: dict[str, Any] = {}
        for name, kind, at_ns in self.head_rows(session, kinds, node_id):
            if name == "pending":
                heads.pending[kind] = at_ns
            elif name == "deferred":
                heads.deferred[kind] = at_ns
            elif at_ns is not None:
                single[name] = at_ns
        return heads._replace(accepted=bool(single.pop("accepted", 0)), **single)

    def resolve(self, session: Session, task: Task) -> None:
        """Write the group and policy that the claiming node's kind gave to a row without them."""
        session.run(
            _RESOLVE,
            (
                task.group_id,
                task.max_attempts,
                task.expires_at_ns,
                task.initial_backoff_ns,
                task.backoff_factor,
                task.max_backoff_ns,
                task.id,
            ),
        )

    def shorten_backoff(self, session: Session, now_ns: int, cap_ns: int) -> int:
        """Bring back rows whose backoff a clock that jumped back left further away than its cap (rule 8)."""
        failed = session.run(_SHORTEN_BACKOFF, (now_ns, cap_ns))
        return failed + session.run(_SHORTEN_AFTER_CRASH, (now_ns, cap_ns))

    def dead_by_id(self, session: Session, dead_id: int) -> DeadTask | None:
        """Return a dead row."""
        return next((DeadTask._make(row) for row in session.rows(_DEAD_BY_ID, (dead_id,))), None)

    def forget_dead(self, session: Session, dead_id: int) -> None:
        """Delete a dead row."""
        session.run(_FORGET_DEAD, (dead_id,))
