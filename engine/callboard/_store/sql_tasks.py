"""The steps of tasks' lives whose SQL every database of ours understands; stores add the others.

A session writes the marks of parameters as its driver wants them, and leaves out `INDEXED BY` where it means
nothing.
"""

from __future__ import annotations

from callboard._store.interface import Session
from callboard._store.policy import TaskPolicy
from callboard._task import DeadTask, Task

TASK = ", ".join(Task._fields)
# A row written by hand may have any number, and one that overflows would stop each pass that counts it up.
NEXT = "({name} & 4611686018427387903) + 1"
DUE = "state = 'pending' AND parked = 0 AND alone = 0"
ALONE = "state = 'pending' AND alone = 1"
_BY_ID = f"SELECT {TASK} FROM callboard_task WHERE id = ?"
_REQUEST = f"UPDATE callboard_task SET requests = {NEXT.format(name='requests')} WHERE id = ?"
# Skips from kind to kind along the index, so it costs one seek for each kind that has pending rows.
_HEADS = (
    f"WITH RECURSIVE head(kind) AS (SELECT min(kind) FROM callboard_task WHERE {DUE} UNION ALL"
    f" SELECT (SELECT min(kind) FROM callboard_task WHERE {DUE} AND kind > head.kind) FROM head"
    " WHERE head.kind IS NOT NULL)"
    f" SELECT kind, (SELECT min(next_attempt_at_ns) FROM callboard_task WHERE {DUE} AND kind = head.kind)"
    " FROM head WHERE kind IS NOT NULL"
)
_RESOLVE = (
    "UPDATE callboard_task SET group_id = ?, max_attempts = ?, expires_at_ns = ?, initial_backoff_ns = ?,"
    " backoff_factor = ?, max_backoff_ns = ? WHERE id = ?"
)
_DEFERRED_HEADS = _HEADS.replace(DUE, "state = 'deferred'")
_DEFERRED_EXPIRY = "SELECT min(expires_at_ns) FROM callboard_task WHERE state = 'deferred'"
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


class SqlTasks(TaskPolicy):
    """What is the same statement on every database."""

    def request(self, session: Session, task_id: int) -> None:
        """Count one more request of a live row."""
        session.run(_REQUEST, (task_id,))

    def by_id(self, session: Session, task_id: int) -> Task | None:
        """Return a live row."""
        return next((Task._make(row) for row in session.rows(_BY_ID, (task_id,))), None)

    def heads(self, session: Session) -> dict[str, int]:
        """Return the earliest deadline of each kind that has pending rows, known or not."""
        return dict(session.rows(_HEADS))

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

    def deferred_heads(self, session: Session) -> dict[str, int]:
        """Return the earliest deadline of each kind that has deferred rows."""
        return dict(session.rows(_DEFERRED_HEADS))

    def deferred_expiry_ns(self, session: Session) -> int | None:
        """Return when the first deferred row expires."""
        expiry: int | None = session.rows(_DEFERRED_EXPIRY)[0][0]
        return expiry

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
