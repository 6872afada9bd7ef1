"""A whole messaging network in one SQLite file: what MLS leaves to others, for demo and tests.

MLS (RFC 9420) needs a delivery service that orders commits and an authentication service that says whose
key is whose (RFC 9750). Several processes may open the same file and are then on one network.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from callboard import ServiceUnavailable

from . import delivery, directory, faults
from .database import Database


class LocalNetwork:
    """Delivery service, identity directory and key-package directory on one file.

    Attributes:
        delivery: Orders commits, and keeps messages and Welcomes for whoever fetches them.
        directory: Inboxes, their installations and key packages, and the groups' super-admins.
        faults: Troubles to arm for a demo or a test.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the network kept in `path`, or found an empty one there.

        Raises:
            ServiceUnavailable: The file cannot be opened.
            CallboardError: It is not a database.
        """
        self.path = Path(path)
        self._database = Database(self.path, delivery.SCHEMA, directory.SCHEMA, faults.SCHEMA)
        self.faults = faults.Faults(self._database)
        self.delivery = delivery.DeliveryService(self._call, self.faults)
        self.directory = directory.Directory(self._call, self.faults)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> "LocalNetwork":
        """Return the network, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    @contextmanager
    def _call(self) -> Iterator[sqlite3.Connection]:
        if self.faults.outage_strikes():
            raise ServiceUnavailable(f"the network in {self.path} is away")
        with self._database.transaction() as db:
            yield db
