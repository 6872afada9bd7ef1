"""Let one engine at a time execute the tasks of an SQLite file.

The lock is the operating system's, on a file of its own beside the database, so it ends with the process
however that ends. It is never taken on the database itself: closing any descriptor of that would drop
SQLite's own locks.
"""

from __future__ import annotations

import os
import sys

from callboard.errors import DatabaseUnavailableError

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class ExecutorLock:
    """The right to execute, held from `acquire` to `release` or the end of the process."""

    def __init__(self, database_path: str) -> None:
        """Lock the tasks of this database; touches nothing yet."""
        self._database_path = database_path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            DatabaseUnavailableError: another engine holds it, or the file cannot be made.
        """
        # As SQLite resolves links: whatever name the file is opened by, there is one lock.
        path = f"{os.path.realpath(self._database_path)}-callboard-lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise DatabaseUnavailableError(
                f"cannot make {path} ({error.strerror}); make the database's folder writable"
            ) from error
        try:
            _lock(descriptor)
        except OSError as error:
            holder = os.pread(descriptor, 32, 1).decode(errors="replace").strip() if hasattr(os, "pread") else "?"
            os.close(descriptor)
            raise DatabaseUnavailableError(
                f"another engine (process {holder or 'unknown'}) executes the tasks of"
                f" {self._database_path}; stop it, or"
                " make this one with Engine(..., execute=False) to enqueue and list only"
            ) from error
        # The first byte is what Windows locks; the holder's pid follows it.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f" {os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; harmless when it is not held. The file stays: removing it would be a race."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
