"""One client for one MLS store: two on the same directory fork the group silently.

The lock is the kernel's, so it goes when its process dies, however it dies.
"""

import os
from pathlib import Path

from callboard import CallboardError


class StoreLockedError(CallboardError):
    """Another client has the MLS store open."""


class StoreLock:
    """An exclusive hold on a store directory, against other processes and against this one."""

    def __init__(self, store: Path) -> None:
        """Take the lock, or fail at once.

        Args:
            store: The existing directory to lock.

        Raises:
            StoreLockedError: It is held; the message names the holder's process id.
        """
        import fcntl  # absent on Windows, where rine-mls is too and says so more clearly

        path = store / "lock"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreLockedError(
                f"MLS store {store} is in use by process {holder}: close that client first, two on one"
                " store would fork its groups"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode("ascii"), 0)

    def release(self) -> None:
        """Give the store back; releasing twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
