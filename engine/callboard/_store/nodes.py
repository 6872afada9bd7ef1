"""The SQL of the node table: who executes this database's tasks, and what a node that is gone leaves behind."""

from __future__ import annotations

import os
import socket

from callboard._store import forking, node_lock
from callboard._store.interface import NodeRow, Session
from callboard._store.node_lock import NodeLock

_ADD = (
    "INSERT INTO callboard_node (host, pid, version, kinds, lease_ns, started_at_ns, heartbeat_at_ns)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6) RETURNING id"
)
# The heartbeat is a number that changes, not a time that is compared: clocks may be set.
_RENEW = (
    "UPDATE callboard_node SET heartbeat_at_ns ="
    " CASE WHEN heartbeat_at_ns < ?1 THEN ?1 ELSE heartbeat_at_ns + 1 END WHERE id = ?2"
)
_TELL_KINDS = "UPDATE callboard_node SET kinds = ? WHERE id = ?"
_REMOVE = "DELETE FROM callboard_node WHERE id = ?"
_OTHERS = (
    "SELECT id, host, pid, lease_ns, heartbeat_at_ns, EXISTS (SELECT 1 FROM callboard_task"
    " INDEXED BY callboard_task_running WHERE state = 'running' AND owner = callboard_node.id)"
    " FROM callboard_node WHERE id <> ?"
)
_SILENT = f"{_OTHERS} AND heartbeat_at_ns < ?"
_OTHERS_IN_ORDER = f"{_OTHERS} ORDER BY id"
_BURY = "DELETE FROM callboard_node WHERE id = ? AND heartbeat_at_ns = ?"

PAUSED = "!"
"""Before the name of a kind among those of a node: the node runs it, but has paused it."""


class SqlNodes:
    """The node table of one database, and the locks of the nodes on this machine."""

    bury_sql = _BURY

    def __init__(self, path: str) -> None:
        """Keep the locks in files whose names begin with `path`, the same for every process here."""
        self._path = path
        self._host = socket.gethostname()
        self._locks: dict[int, NodeLock] = {}

    def add(self, session: Session, version: str, kinds: str, lease_ns: int, now_ns: int) -> int:
        """Write this engine's row and take its lock; return the node's id.

        The lock is taken before the row is committed, so nobody sees the one without the other.
        """
        row = session.rows(_ADD, (self._host, os.getpid(), version, kinds, lease_ns, now_ns))
        node_id: int = row[0][0]
        self._locks[node_id] = NodeLock(self._lock_path(node_id))
        return node_id

    def renew(self, session: Session, node_id: int, now_ns: int) -> bool:
        """Write a heartbeat; `False` when others have found this node gone and taken its tasks over."""
        return session.run(_RENEW, (now_ns, node_id)) > 0

    def tell_kinds(self, session: Session, node_id: int, kinds: str) -> None:
        """Write which kinds the node runs."""
        session.run(_TELL_KINDS, (kinds, node_id))

    def remove(self, session: Session, node_id: int) -> None:
        """Delete this engine's row; `unlock` follows the commit."""
        session.run(_REMOVE, (node_id,))

    def unlock(self, node_id: int) -> None:
        """Give a node's lock back."""
        with forking.session():
            lock = self._locks.pop(node_id, None)
            if lock is not None:
                lock.release()

    def others(self, session: Session, node_id: int) -> list[NodeRow]:
        """Return the other nodes' rows, in the order of their ids; all of them for the `node_id` 0."""
        return [NodeRow._make(row) for row in session.rows(_OTHERS_IN_ORDER, (node_id,))]

    def has_ended(self, node: NodeRow) -> bool:
        """Return whether a node's process on this machine has ended; `False` where that cannot be told."""
        with forking.session():  # or a child that inherits the look's descriptor would hold the lock
            return node.host == self._host and node_lock.is_free(self._lock_path(node.id))

    def bury(self, session: Session, node: NodeRow) -> bool:
        """Delete the row of a node that is gone; `False` when it has given a sign of life."""
        if not session.run(self.bury_sql, (node.id, node.heartbeat)):
            return False
        node_lock.remove(self._lock_path(node.id))
        return True

    def prune(self, session: Session, node_id: int, before_ns: int) -> list[NodeRow]:
        """Delete the rows of other nodes that hold nothing and whose last heartbeat is older; return them."""
        rows = [NodeRow._make(row) for row in session.rows(_SILENT, (node_id, before_ns))]
        return [node for node in rows if not node.holds and self.bury(session, node)]

    def forget(self) -> None:
        """Drop the locks of the parent process, as a forked child must."""
        for lock in self._locks.values():
            lock.drop()
        self._locks.clear()

    def _lock_path(self, node_id: int) -> str:
        return f"{self._path}-callboard-node-{node_id}"
