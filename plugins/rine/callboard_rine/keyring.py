"""This installation's key packages: which one others are handed, and which private parts to keep.

rine-mls deletes a private part with the first Welcome that uses it, but the directory hands one key package
to everybody, who may all invite at once. So each private part has a second name (a hard link) here until its
key package has been superseded for a grace period.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from callboard_mls.backend import KeyPackageStatus

from .database import Database
from .directory import Directory
from .keypackages import KeyPackageError, read_key_package

if TYPE_CHECKING:
    from rine_mls import MlsClient

ROTATION_INTERVAL = timedelta(days=30)
"""How long a key package is handed out; libxmtp's KEY_PACKAGE_ROTATION_INTERVAL_NS."""
GRACE_PERIOD = timedelta(days=1)
"""How long a superseded one may still be in a Welcome on its way; libxmtp's keys_expiration_interval_ns."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS own_key_package (
    reference BLOB PRIMARY KEY, published_at_ns INTEGER, superseded_at_ns INTEGER
) WITHOUT ROWID;
"""


class KeyRing:
    """Rotates key packages and retires superseded ones.

    Attributes:
        clock: The time, ns since the epoch, by which key packages are judged.
    """

    def __init__(
        self,
        client: "MlsClient",
        database: Database,
        directory: Directory,
        private_parts: Path,
        kept: Path,
        clock: Callable[[], int],
        rotation_interval: timedelta,
        grace_period: timedelta,
    ) -> None:
        """Manage the key packages of `client`.

        Args:
            client: The MLS client that generates them.
            database: The installation's own state, whose schema includes this module's.
            directory: Where they are published.
            private_parts: Where `client` keeps `<reference in hex>.bin`.
            kept: A directory on the same file system, for the second names.
            clock: The time, ns since the epoch.
            rotation_interval: How long a key package is handed out.
            grace_period: How long a superseded one's private part is kept.
        """
        self._client = client
        self._installation_id = client.public_key()
        self._database = database
        self._directory = directory
        self._private_parts = private_parts
        self._kept = kept
        self.clock = clock
        self._rotation_ns = _ns(rotation_interval)
        self._grace_ns = _ns(grace_period)
        self._files_lock = threading.Lock()
        self._rotation_lock = threading.Lock()

    def status(self) -> KeyPackageStatus:
        """Judge what the directory hands out; see `Backend.key_package_status`."""
        message = self._directory.key_package(self._installation_id)
        if message is None:
            return KeyPackageStatus(published=False, problem="none is published", not_after_ns=None)
        try:
            key_package = read_key_package(message)
        except KeyPackageError as error:
            return KeyPackageStatus(published=True, problem=str(error), not_after_ns=None)
        problem = key_package.problem(self._installation_id, self.clock())
        if problem is None and not self._kept_name(key_package.reference).exists():
            problem = "its private part is gone"
        return KeyPackageStatus(published=True, problem=problem, not_after_ns=key_package.not_after_ns)

    def next_rotation_ns(self) -> int:
        """Return when the newest published key package gets too old; see `Backend.next_rotation_ns`."""
        with self._database.transaction() as db:
            (latest_ns,) = db.execute("SELECT max(published_at_ns) FROM own_key_package").fetchone()
        return 0 if latest_ns is None else int(latest_ns) + self._rotation_ns

    def rotate(self) -> int:
        """Publish a new key package; see `Backend.rotate_key_package`."""
        # Two at once could each supersede the one that the other left on the directory.
        with self._rotation_lock:
            with self._files_lock:
                message = self._client.generate_key_package()
                reference = read_key_package(message).reference
                os.link(self._private_parts / f"{reference.hex()}.bin", self._kept_name(reference))
                with self._database.transaction() as db:
                    db.execute("INSERT INTO own_key_package (reference) VALUES (?)", (reference,))
            self._directory.publish_key_package(self._installation_id, message)
            now_ns = self.clock()
            with self._database.transaction() as db:
                db.execute(
                    "UPDATE own_key_package SET superseded_at_ns = ?"
                    " WHERE reference <> ? AND superseded_at_ns IS NULL",
                    (now_ns, reference),
                )
                db.execute(
                    "UPDATE own_key_package SET published_at_ns = ? WHERE reference = ?", (now_ns, reference)
                )
            return now_ns + self._rotation_ns

    def delete_superseded(self) -> int | None:
        """Delete what nobody can need any more; see `Backend.delete_superseded_key_packages`.

        Files first, rows after: a crash in between leaves rows whose deletion is tried again. A private
        part without a row was never published: a crash interrupted its rotation.
        """
        horizon_ns = self.clock() - self._grace_ns
        with self._files_lock:
            with self._database.transaction() as db:
                rows = db.execute("SELECT reference, superseded_at_ns FROM own_key_package").fetchall()
            needed = {f"{ref.hex()}.bin" for ref, at_ns in rows if at_ns is None or at_ns > horizon_ns}
            for directory in (self._private_parts, self._kept):
                for private_part in directory.glob("*.bin"):
                    if private_part.name not in needed:
                        private_part.unlink()
            with self._database.transaction() as db:
                db.execute("DELETE FROM own_key_package WHERE superseded_at_ns <= ?", (horizon_ns,))
        waiting = [at_ns for _, at_ns in rows if at_ns is not None and at_ns > horizon_ns]
        return min(waiting) + self._grace_ns if waiting else None

    @contextmanager
    def private_parts(self) -> Iterator[None]:
        """Have rine-mls hold all private parts in the block, those too that earlier Welcomes used up."""
        with self._files_lock:
            for kept in self._kept.glob("*.bin"):
                private_part = self._private_parts / kept.name
                if not private_part.exists():
                    os.link(kept, private_part)
            yield

    def _kept_name(self, reference: bytes) -> Path:
        return self._kept / f"{reference.hex()}.bin"


def _ns(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1_000
