"""Read a group's log: apply what others committed, and keep what they wrote until the host has taken it.

Decrypting uses a key up, so a message is stored before the group that has used it is saved, and the log is
passed only after both. A crash in between reads the same entries again, which changes nothing.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .database import Database
from .delivery import DeliveryService, LogEntry
from .rine import unreadable_errors

if TYPE_CHECKING:
    from rine_mls import MlsGroup

SCHEMA = """
CREATE TABLE IF NOT EXISTS log_cursor (group_id BLOB PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS welcome_cursor (only INTEGER PRIMARY KEY CHECK (only = 0), seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS message (
    seq INTEGER PRIMARY KEY, group_id BLOB NOT NULL, message_id BLOB NOT NULL, sender BLOB NOT NULL,
    body BLOB NOT NULL
);
"""

LEAVE_REQUEST = b"callboard-rine/leave-request"
"""The body of a message by which its sender asks to be evicted; chosen here."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that somebody else sent to a group.

    Attributes:
        group_id: The group.
        message_id: The same for every reader; SHA-256 of the encrypted message.
        sender: The installation that sent it, as MLS authenticated it.
        body: What was sent.
    """

    group_id: bytes
    message_id: bytes
    sender: bytes
    body: bytes

    @property
    def is_leave_request(self) -> bool:
        """True if the sender asks to be evicted."""
        return self.body == LEAVE_REQUEST


def message_id(payload: bytes) -> bytes:
    """Return the id of an encrypted message."""
    return hashlib.sha256(payload).digest()


class Mailbox:
    """What one installation has read so far, and what the host has yet to take."""

    def __init__(self, database: Database, delivery: DeliveryService, installation_id: bytes) -> None:
        """Read as `installation_id`, keeping track in `database`, whose schema includes this module's."""
        self._database = database
        self._delivery = delivery
        self._installation_id = installation_id

    def catch_up(self, group: "MlsGroup") -> None:
        """Read the group's log to its end and save the group, unless it turns out to have evicted us.

        Raises:
            ServiceUnavailable: The network is away.
            rine_mls.RineMlsError: A commit does not apply.
        """
        group_id = group.group_id()
        entries = self._delivery.read(group_id, after_seq=self._cursor(group_id))
        if not entries:
            return
        for entry in entries:
            if entry.epoch is None:
                self._store_message(group, entry)
            elif entry.epoch == group.epoch():
                group.apply_commit(entry.payload)
                if not group.is_active():
                    return
        group.save()
        self.set_cursor(group_id, entries[-1].seq)

    def set_cursor(self, group_id: bytes, seq: int) -> None:
        """Go on reading the group's log after `seq`."""
        with self._database.transaction() as db:
            db.execute("INSERT OR REPLACE INTO log_cursor VALUES (?, ?)", (group_id, seq))

    def welcome_cursor(self) -> int:
        """Return the last Welcome that was dealt with, 0 for none."""
        with self._database.transaction() as db:
            row = db.execute("SELECT seq FROM welcome_cursor").fetchone()
        return 0 if row is None else int(row[0])

    def set_welcome_cursor(self, seq: int) -> None:
        """Go on accepting Welcomes after `seq`."""
        with self._database.transaction() as db:
            db.execute("INSERT OR REPLACE INTO welcome_cursor VALUES (0, ?)", (seq,))

    def hand_over(self, group_id: bytes, handle: Callable[[Message], None]) -> int:
        """Call `handle` with each stored message in order; one is forgotten when its call returns.

        Returns:
            How many messages were handed over.
        """
        with self._database.transaction() as db:
            rows = db.execute(
                "SELECT seq, group_id, message_id, sender, body FROM message WHERE group_id = ? ORDER BY seq",
                (group_id,),
            ).fetchall()
        for seq, *fields in rows:
            handle(Message(*fields))
            with self._database.transaction() as db:
                db.execute("DELETE FROM message WHERE seq = ?", (seq,))
        return len(rows)

    def _cursor(self, group_id: bytes) -> int:
        with self._database.transaction() as db:
            row = db.execute("SELECT seq FROM log_cursor WHERE group_id = ?", (group_id,)).fetchone()
        return 0 if row is None else int(row[0])

    def _store_message(self, group: "MlsGroup", entry: LogEntry) -> None:
        if entry.sender == self._installation_id:
            return
        try:
            decrypted = group.decrypt_application_message(entry.payload)
        except unreadable_errors():
            # Read before a crash, from before our time, or garbage: it must not hold up what follows.
            return
        leaves = {member.index: member.identity for member in group.member_identities()}
        # A leaf may have changed hands since the message's epoch; then MLS no longer says who wrote it.
        if leaves.get(decrypted.sender_index) != entry.sender:
            return
        with self._database.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO message VALUES (?, ?, ?, ?, ?)",
                (entry.seq, group.group_id(), message_id(entry.payload), entry.sender, decrypted.envelope),
            )
