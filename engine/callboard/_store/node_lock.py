"""Tell on one machine, at once, whether an engine's process is still there: a lock that ends with it.

The lock is the operating system's, on a file of its own beside the database. It is never taken on the database
itself: closing any descriptor of that would drop SQLite's own locks.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from callboard.errors import DatabaseUnavailableError

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class NodeLock:
    """One node's lock, held from here to `release` or the end of the process."""

    def __init__(self, path: str) -> None:
        """Make the file and take the lock.

        Raises:
            DatabaseUnavailableError: the file cannot be made.
        """
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise DatabaseUnavailableError(
                f"cannot make {path} ({error.strerror}); make the database's folder writable"
            ) from error
        try:
            _lock(self._descriptor)
        except OSError as error:
            self.drop()
            if not isinstance(error, BlockingIOError):  # which says that it is another's
                remove(path)
            raise DatabaseUnavailableError(
                f"cannot lock {path} ({error.strerror}); the database's folder must be on a file system with locks"
            ) from error

    def release(self) -> None:
        """Give the lock back and remove the file."""
        with suppress(OSError):
            os.unlink(self._path)
        self.drop()

    def drop(self) -> None:
        """Close this process's copy of a lock that its parent holds."""
        with suppress(OSError):
            os.close(self._descriptor)


def is_free(path: str) -> bool:
    """Return whether the process that held the lock has ended; `False` where no file is left to tell."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return False
    try:
        _lock(descriptor)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Remove the file of a node that is gone."""
    with suppress(OSError):
        os.unlink(path)
