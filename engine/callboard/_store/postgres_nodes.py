"""The node table on PostgreSQL, where a node that stands still in a transaction keeps what it has locked."""

from __future__ import annotations

from callboard._store.interface import Session
from callboard._store.nodes import SqlNodes

_FROZEN_S = 60
"""How long a transaction may stand still in the middle; then the server ends it and frees what it has locked."""

LIMIT = f"SET LOCAL idle_in_transaction_session_timeout = '{_FROZEN_S}s'"
"""For the transactions of a node's own threads. LOCAL, because PgBouncer hands a session on to somebody else."""

_BURY = (
    "DELETE FROM callboard_node WHERE id = (SELECT id FROM callboard_node WHERE id = ? AND heartbeat_at_ns = ?"
    " FOR UPDATE SKIP LOCKED)"
)


class PostgresNodes(SqlNodes):
    """Nodes that wait for none which is frozen."""

    bury_sql = _BURY

    def renew(self, session: Session, node_id: int, now_ns: int) -> bool:
        """Write a heartbeat; `False` when others have found this node gone and taken its tasks over."""
        session.run(LIMIT)
        return super().renew(session, node_id, now_ns)
