"""The node table on PostgreSQL, where a node that stands still in a transaction keeps what it has locked."""

from __future__ import annotations

import hashlib
import os
import tempfile

from callboard._store.interface import NodeRow, Session
from callboard._store.nodes import SqlNodes

_FROZEN_S = 60
"""How long a transaction may stand still in the middle; then the server ends it and frees what it has locked."""

LIMIT = f"SET LOCAL idle_in_transaction_session_timeout = '{_FROZEN_S}s'"
"""For the transactions of a node's own threads. LOCAL, because PgBouncer hands a session on to somebody else."""

_BURY = (
    "DELETE FROM callboard_node WHERE id = (SELECT id FROM callboard_node WHERE id = ? AND heartbeat_at_ns = ?"
    " FOR UPDATE SKIP LOCKED)"
)


_TABLE = "SELECT 'callboard_node'::regclass::oid"


def place_of(session: Session) -> str:
    """Return the server and the database, however they were given."""
    info = session.connection.info
    return f"{info.host}:{info.port}/{info.dbname}"


class PostgresNodes(SqlNodes):
    """Nodes that wait for none which is frozen. Their locks are among this machine's temporary files."""

    bury_sql = _BURY

    def __init__(self) -> None:
        """Find out with the first session which table it is: a database may have one in each of its schemas."""
        super().__init__("")

    def add(self, session: Session, version: str, kinds: str, lease_ns: int, now_ns: int) -> int:
        """Write this engine's row and take its lock; return the node's id."""
        self._find(session)
        return super().add(session, version, kinds, lease_ns, now_ns)

    def others(self, session: Session, node_id: int) -> list[NodeRow]:
        """Return the other nodes' rows, in the order of their ids; all of them for the `node_id` 0."""
        self._find(session)
        return super().others(session, node_id)

    def _find(self, session: Session) -> None:
        if not self._path:
            [(table,)] = session.rows(_TABLE)
            name = hashlib.sha256(f"{place_of(session)}/{table}".encode()).hexdigest()[:16]
            self._path = os.path.join(tempfile.gettempdir(), f"callboard-{name}")

    def renew(self, session: Session, node_id: int, now_ns: int) -> bool:
        """Write a heartbeat; `False` when others have found this node gone and taken its tasks over."""
        session.run(LIMIT)
        return super().renew(session, node_id, now_ns)
