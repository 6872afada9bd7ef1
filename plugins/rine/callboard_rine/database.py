"""One small way to keep tables in an SQLite file, for the network and for an installation's own state."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from callboard import CallboardError, ServiceUnavailable

_BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process's write; SQLite's own customary default in Python."""
SYNCHRONOUS = "FULL"
"""What was published or journalled must survive a power cut, or a commit is made twice."""


class Database:
    """An SQLite file shared by the threads of this process and with other processes.

    One connection behind a lock: every transaction here takes microseconds, and it keeps the number of open
    files the same however many threads come by.
    """

    def __init__(self, path: Path, *schemas: str) -> None:
        """Open the file, creating it and the tables where missing.

        Args:
            path: The database file.
            schemas: SQL scripts that may run again on an existing database.

        Raises:
            ServiceUnavailable: The file cannot be opened.
            CallboardError: It is not a database.
        """
        self.path = path
        self._lock = threading.RLock()
        with self._translated():
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
                self._connection.executescript(f"BEGIN; {''.join(schemas)} COMMIT;")
            except sqlite3.DatabaseError as error:
                self._connection.close()
                if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                    raise CallboardError(f"{path} is not an SQLite database: give another path") from error
                raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one write transaction; roll back if it raises.

        Raises:
            ServiceUnavailable: The file is locked for too long, unreadable or gone.
        """
        with self._lock, self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection; closing twice does no harm."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise ServiceUnavailable(f"{self.path}: {error}") from error
