"""Troubles of a real network, armed on the local one, so that a demo or a test can show what they do.

Kept in the network's own file: a fault armed by one process is met by whichever process comes next, and a
restart does not disarm it.
"""

import sqlite3

from .database import Database

SCHEMA = """
CREATE TABLE IF NOT EXISTS fault (
    name TEXT NOT NULL, subject BLOB NOT NULL, remaining INTEGER NOT NULL, PRIMARY KEY (name, subject)
) WITHOUT ROWID;
"""

_OUTAGE = "outage"
_HIDDEN_INSTALLATION = "hidden_installation"
_REJECTED_COMMIT = "rejected_commit"


class Faults:
    """The armed faults; each counts down as it strikes and is gone at zero."""

    def __init__(self, database: Database) -> None:
        """Keep the faults in `database`, whose schema includes this module's."""
        self._database = database

    def outage(self, calls: int) -> None:
        """Let the next `calls` calls to the network fail as if it were away; 0 ends an outage."""
        self._arm(_OUTAGE, b"", calls)

    def hide_installation(self, installation_id: bytes, lookups: int) -> None:
        """Let the directory lag: the next `lookups` look-ups of its inbox do not show this installation."""
        self._arm(_HIDDEN_INSTALLATION, installation_id, lookups)

    def reject_commit(self, group_id: bytes, times: int = 1) -> None:
        """Refuse the group's next `times` commits, as if another commit had just taken the epoch."""
        self._arm(_REJECTED_COMMIT, group_id, times)

    def outage_strikes(self) -> bool:
        """Tell whether this call meets an outage."""
        with self._database.transaction() as db:
            return self._strike(db, _OUTAGE, b"")

    def hidden_strikes(self, db: sqlite3.Connection, installation_id: bytes) -> bool:
        """Tell, inside a look-up's transaction, whether it does not show this installation."""
        return self._strike(db, _HIDDEN_INSTALLATION, installation_id)

    def rejection_strikes(self, db: sqlite3.Connection, group_id: bytes) -> bool:
        """Tell, inside a commit's transaction, whether it is refused."""
        return self._strike(db, _REJECTED_COMMIT, group_id)

    def _arm(self, name: str, subject: bytes, times: int) -> None:
        with self._database.transaction() as db:
            db.execute("INSERT OR REPLACE INTO fault VALUES (?, ?, ?)", (name, subject, times))

    @staticmethod
    def _strike(db: sqlite3.Connection, name: str, subject: bytes) -> bool:
        struck = db.execute(
            "UPDATE fault SET remaining = remaining - 1 WHERE name = ? AND subject = ? AND remaining > 0",
            (name, subject),
        )
        return struck.rowcount > 0
