"""The delivery service: one order of commits for everybody, and mail boxes for the rest.

RFC 9420 section 14 leaves it to the delivery service that of two commits for one epoch only one counts.
Here the unique index on (group, epoch) decides. It cannot read what it carries.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from .faults import Faults

SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id BLOB NOT NULL,
    epoch INTEGER,
    sender BLOB NOT NULL,
    payload BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS log_epoch ON log (group_id, epoch) WHERE epoch IS NOT NULL;
CREATE INDEX IF NOT EXISTS log_group ON log (group_id, seq);
CREATE TABLE IF NOT EXISTS welcome (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    installation_id BLOB NOT NULL,
    payload BLOB NOT NULL,
    UNIQUE (group_id, epoch, installation_id)
);
CREATE INDEX IF NOT EXISTS welcome_installation ON welcome (installation_id, seq);
"""

Call = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""One call to the network: a transaction on its file, or `ServiceUnavailable`."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit or application message of a group.

    Attributes:
        seq: Its place in the log; grows, with gaps.
        epoch: The epoch that a commit applies to; None for an application message.
        sender: The installation that sent it, as the sender claims.
        payload: The MLS message.
    """

    seq: int
    epoch: int | None
    sender: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """An invitation for one installation.

    Attributes:
        seq: Its place among all Welcomes; grows, with gaps.
        group_id: The group to join.
        epoch: The epoch that the new member joins at.
        log_seq: The log entry of the commit that added it; what follows is for the new member.
        payload: The MLS message.
    """

    seq: int
    group_id: bytes
    epoch: int
    log_seq: int
    payload: bytes


class DeliveryService:
    """An append-only log for each group, and Welcomes for each installation.

    Every method raises `callboard.ServiceUnavailable` when the network is away.
    """

    def __init__(self, call: Call, faults: Faults) -> None:
        """Keep the log behind `call`, and meet the armed `faults`."""
        self._call = call
        self._faults = faults

    def publish_commits(self, group_id: bytes, epoch: int, commits: Sequence[bytes], sender: bytes) -> bool:
        """Append commits for `epoch` and the epochs that follow it, all or none.

        Publishing what is in the log already changes nothing and succeeds, so that a sender that does not
        know whether it got through can ask again.

        Returns:
            False if the log does not stand at `epoch`: somebody else was first.
        """
        with self._call() as db:
            (head,) = db.execute("SELECT max(epoch) FROM log WHERE group_id = ?", (group_id,)).fetchone()
            if head is not None and epoch != head + 1:
                return self._is_in_log(db, group_id, epoch, commits)
            if self._faults.rejection_strikes(db, group_id):
                return False
            db.executemany(
                "INSERT INTO log (group_id, epoch, sender, payload) VALUES (?, ?, ?, ?)",
                [(group_id, epoch + offset, sender, commit) for offset, commit in enumerate(commits)],
            )
            return True

    def send_message(self, group_id: bytes, message: bytes, sender: bytes) -> None:
        """Append an application message."""
        with self._call() as db:
            db.execute("INSERT INTO log (group_id, sender, payload) VALUES (?, ?, ?)", (group_id, sender, message))

    def read(self, group_id: bytes, after_seq: int = 0) -> list[LogEntry]:
        """Return the group's entries after `after_seq`, in order."""
        with self._call() as db:
            rows = db.execute(
                "SELECT seq, epoch, sender, payload FROM log WHERE group_id = ? AND seq > ? ORDER BY seq",
                (group_id, after_seq),
            )
            return [LogEntry(*row) for row in rows]

    def send_welcomes(self, group_id: bytes, epoch: int, welcomes: Sequence[tuple[bytes, bytes]]) -> None:
        """Put Welcomes, as (installation id, MLS message), up for those who join at `epoch`; idempotent."""
        with self._call() as db:
            db.executemany(
                "INSERT OR IGNORE INTO welcome (group_id, epoch, installation_id, payload) VALUES (?, ?, ?, ?)",
                [(group_id, epoch, installation_id, payload) for installation_id, payload in welcomes],
            )

    def welcomes(self, installation_id: bytes, after_seq: int = 0) -> list[Welcome]:
        """Return the Welcomes for an installation after `after_seq`, in order."""
        with self._call() as db:
            rows = db.execute(
                "SELECT w.seq, w.group_id, w.epoch, log.seq, w.payload FROM welcome AS w"
                " JOIN log ON log.group_id = w.group_id AND log.epoch = w.epoch - 1"
                " WHERE w.installation_id = ? AND w.seq > ? ORDER BY w.seq",
                (installation_id, after_seq),
            )
            return [Welcome(*row) for row in rows]

    @staticmethod
    def _is_in_log(db: sqlite3.Connection, group_id: bytes, epoch: int, commits: Sequence[bytes]) -> bool:
        rows = db.execute(
            "SELECT payload FROM log WHERE group_id = ? AND epoch >= ? AND epoch < ? ORDER BY epoch",
            (group_id, epoch, epoch + len(commits)),
        )
        return [payload for (payload,) in rows] == list(commits)
