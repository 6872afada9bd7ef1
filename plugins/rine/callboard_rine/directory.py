"""The directory: whose installations are whose, how to reach them, and who may evict whom.

A credential in rine-mls is a bare Ed25519 public key, so inboxes and super-admins exist only here. Real
directories answer from replicas that lag behind; a look-up therefore says how much of the inbox's history
it has seen, to be compared with the length of that history.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .delivery import Call
from .faults import Faults

SCHEMA = """
CREATE TABLE IF NOT EXISTS installation (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, inbox_id TEXT NOT NULL, installation_id BLOB NOT NULL UNIQUE
);
CREATE INDEX IF NOT EXISTS installation_inbox ON installation (inbox_id);
CREATE TABLE IF NOT EXISTS super_admin (
    group_id BLOB NOT NULL, inbox_id TEXT NOT NULL, PRIMARY KEY (group_id, inbox_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS key_package (
    installation_id BLOB PRIMARY KEY, payload BLOB NOT NULL
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class InboxLookup:
    """What the directory shows of an inbox.

    Attributes:
        installation_ids: The inbox's installations, as far as this replica knows.
        caught_up: False if the inbox is known to have changed since.
    """

    installation_ids: frozenset[bytes]
    caught_up: bool


class Directory:
    """Inboxes, installations, key packages and super-admins.

    Every method raises `callboard.ServiceUnavailable` when the network is away.
    """

    def __init__(self, call: Call, faults: Faults) -> None:
        """Keep the directory behind `call`, and meet the armed `faults`."""
        self._call = call
        self._faults = faults

    def register(self, inbox_id: str, installation_id: bytes) -> None:
        """Record that an installation belongs to an inbox; idempotent."""
        with self._call() as db:
            db.execute(
                "INSERT OR IGNORE INTO installation (inbox_id, installation_id) VALUES (?, ?)",
                (inbox_id, installation_id),
            )

    def look_up(self, inbox_id: str) -> InboxLookup:
        """Return the inbox's installations; none for an inbox that nobody registered."""
        with self._call() as db:
            rows = db.execute("SELECT installation_id FROM installation WHERE inbox_id = ?", (inbox_id,))
            known = [installation_id for (installation_id,) in rows.fetchall()]
            shown = frozenset(i for i in known if not self._faults.hidden_strikes(db, i))
            return InboxLookup(shown, caught_up=len(shown) == len(known))

    def inboxes_of(self, installation_ids: Iterable[bytes]) -> dict[bytes, str]:
        """Return each installation's inbox, without those that nobody registered."""
        with self._call() as db:
            found: dict[bytes, str] = {}
            for installation_id in installation_ids:
                row = db.execute(
                    "SELECT inbox_id FROM installation WHERE installation_id = ?", (installation_id,)
                ).fetchone()
                if row is not None:
                    found[installation_id] = row[0]
            return found

    def publish_key_package(self, installation_id: bytes, key_package: bytes) -> None:
        """Replace the key package that others are handed for this installation."""
        with self._call() as db:
            db.execute("INSERT OR REPLACE INTO key_package VALUES (?, ?)", (installation_id, key_package))

    def key_package(self, installation_id: bytes) -> bytes | None:
        """Return the key package that others are handed, or None if there is none."""
        with self._call() as db:
            row = db.execute(
                "SELECT payload FROM key_package WHERE installation_id = ?", (installation_id,)
            ).fetchone()
            return None if row is None else bytes(row[0])

    def promote(self, group_id: bytes, inbox_id: str) -> None:
        """Make an inbox super-admin of a group; idempotent."""
        with self._call() as db:
            db.execute("INSERT OR IGNORE INTO super_admin VALUES (?, ?)", (group_id, inbox_id))

    def demote(self, group_id: bytes, inbox_id: str) -> None:
        """Make an inbox an ordinary member of a group; idempotent."""
        with self._call() as db:
            db.execute("DELETE FROM super_admin WHERE group_id = ? AND inbox_id = ?", (group_id, inbox_id))

    def super_admins(self, group_id: bytes) -> frozenset[str]:
        """Return the inboxes that may remove others from the group."""
        with self._call() as db:
            rows = db.execute("SELECT inbox_id FROM super_admin WHERE group_id = ?", (group_id,))
            return frozenset(inbox_id for (inbox_id,) in rows.fetchall())
