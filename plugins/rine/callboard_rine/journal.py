"""Remember a commit from before it is saved until it is delivered, so that a crash in between heals.

After a reload rine-mls knows neither the commit that it made nor the state before it. Both are kept here:
the commit and its Welcomes in a table, the state as a copy of the group's directory.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .database import Database

SCHEMA = """
CREATE TABLE IF NOT EXISTS journal (
    group_id BLOB PRIMARY KEY, epoch INTEGER NOT NULL, entry TEXT NOT NULL, undone INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """Commits that are to be published together, and what they do.

    rine-mls removes one leaf for each commit, so evicting an inbox with two installations takes two; they
    are published all or none.

    Attributes:
        group_id: The group.
        epoch: The epoch that the first commit applies to.
        commits: The MLS commits, for `epoch` and the epochs that follow it.
        welcomes: For each added installation its id and Welcome.
        removed: The inboxes that the commits evict.
    """

    group_id: bytes
    epoch: int
    commits: tuple[bytes, ...]
    welcomes: tuple[tuple[bytes, bytes], ...] = ()
    removed: frozenset[str] = frozenset()

    @property
    def added(self) -> frozenset[bytes]:
        """The installations that the commits add."""
        return frozenset(installation_id for installation_id, _ in self.welcomes)

    @property
    def next_epoch(self) -> int:
        """The epoch after the last commit."""
        return self.epoch + len(self.commits)


class Journal:
    """At most one pending commit for each group, and the group's state before it."""

    def __init__(self, database: Database, groups: Path, snapshots: Path) -> None:
        """Keep entries in `database`, whose schema includes this module's.

        Args:
            database: The installation's own state.
            groups: Where rine-mls keeps one directory for each group, named by its id in hex.
            snapshots: Where to keep copies of such directories.
        """
        self._database = database
        self._groups = groups
        self._snapshots = snapshots

    def write(self, pending: PendingCommit) -> None:
        """Record what is about to be saved and published."""
        entry = {
            "commits": [commit.hex() for commit in pending.commits],
            "welcomes": [[installation.hex(), welcome.hex()] for installation, welcome in pending.welcomes],
            "removed": sorted(pending.removed),
        }
        with self._database.transaction() as db:
            db.execute(
                "INSERT INTO journal (group_id, epoch, entry) VALUES (?, ?, ?)",
                (pending.group_id, pending.epoch, json.dumps(entry)),
            )

    def read(self, group_id: bytes) -> PendingCommit | None:
        """Return what an earlier attempt left unfinished, if anything; an interrupted undo is completed."""
        with self._database.transaction() as db:
            row = db.execute("SELECT epoch, entry, undone FROM journal WHERE group_id = ?", (group_id,)).fetchone()
        if row is None:
            return None
        if row[2]:
            self.undo(group_id)
            return None
        entry = json.loads(row[1])
        return PendingCommit(
            group_id=group_id,
            epoch=row[0],
            commits=tuple(bytes.fromhex(commit) for commit in entry["commits"]),
            welcomes=tuple((bytes.fromhex(i), bytes.fromhex(welcome)) for i, welcome in entry["welcomes"]),
            removed=frozenset(entry["removed"]),
        )

    def take_snapshot(self, group_id: bytes) -> None:
        """Copy the group's state on disk; the copy is there entirely or not at all.

        Hard links do: rine-mls replaces a file by renaming a new one over it and never writes into one.
        """
        snapshot = self._snapshots / group_id.hex()
        unfinished = snapshot.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(self._groups / group_id.hex(), unfinished, copy_function=os.link)
        unfinished.rename(snapshot)

    def undo(self, group_id: bytes) -> None:
        """Put the group's state on disk back to what it was before the pending commit, and forget that.

        Without a snapshot the state was never touched. Marked first, because a crash half-way leaves a
        state that cannot be loaded.
        """
        with self._database.transaction() as db:
            db.execute("UPDATE journal SET undone = 1 WHERE group_id = ?", (group_id,))
        snapshot = self._snapshots / group_id.hex()
        if snapshot.exists():
            group = self._groups / group_id.hex()
            shutil.rmtree(group, ignore_errors=True)
            shutil.copytree(snapshot, group, copy_function=os.link)
        self.clear(group_id)

    def clear(self, group_id: bytes) -> None:
        """Forget the entry.

        The snapshot goes first: left alone, it would be taken for that of the group's next commit.
        """
        shutil.rmtree(self._snapshots / group_id.hex(), ignore_errors=True)
        with self._database.transaction() as db:
            db.execute("DELETE FROM journal WHERE group_id = ?", (group_id,))
