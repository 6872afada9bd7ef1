"""Notice that an open database's file is not what it was: removed, replaced, read-only or damaged.

SQLite goes on with the file that it has open, whatever becomes of its name. What is written to a removed file
is lost, and a connection that is opened afterwards makes a new, empty one in its place, unless it is told not to.
So the file's identity is compared before a transaction or a connection begins, which costs 2 µs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from callboard._store.failures import READ_ONLY, is_about
from callboard.errors import DatabaseGoneError, DatabaseUnavailableError, NotADatabaseError

_LOGS = ("-wal", "-journal")


class OpenedFile:
    """The file of one store, once it is known."""

    def __init__(self, path: str, where: str) -> None:
        """Know nothing yet of the file at `path`; `where` names the database in errors."""
        self._path = path
        self._where = where
        self._identity: tuple[int, int] | None = None
        self._damage: NotADatabaseError | None = None

    def remember(self) -> None:
        """Hold on to the file that is there now; a name that is no plain path is not watched."""
        try:
            self._identity = self._now()
        except OSError:
            self._identity = None

    @property
    def is_known(self) -> bool:
        """Whether `remember` found a file."""
        return self._identity is not None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check the file before something is done with it, and after it if a connection or the file has failed."""
        self.check()
        try:
            yield
        except DatabaseUnavailableError as error:
            if is_about(error, self._where):
                self.check()  # it may have been removed in between
            raise
        except NotADatabaseError as error:
            if self._identity is not None and is_about(error, self._where):
                self._damage = error
            raise

    def check(self) -> None:
        """Refuse to go on with another file than the one that was opened.

        Raises:
            DatabaseGoneError: it was removed, or another one is in its place.
            NotADatabaseError: something that was done with it has found it damaged.
        """
        if self._identity is None:
            return
        if self._damage is not None:
            raise NotADatabaseError(str(self._damage))
        try:
            identity = self._now()
        except OSError as error:
            raise DatabaseGoneError(
                f"{self._where} was removed while it was in use ({error.strerror}); put the same file back, or"
                " stop the engine and restore it from a backup"
            ) from error
        if identity != self._identity:
            raise DatabaseGoneError(
                f"{self._where} was replaced by another file while it was in use; put the first one back, or start"
                " the engine anew to use this one"
            )

    def check_writable(self) -> None:
        """Refuse to go on with a file that this user may not write any more, which open connections do not tell.

        Raises:
            DatabaseUnavailableError: it is read-only, or `check` refuses.
        """
        self.check()
        if self._identity is not None and not _is_writable(self._path):
            self.check()  # one that was removed since then is not writable either
            raise DatabaseUnavailableError(f"{self._where} {READ_ONLY}")

    def check_absent(self) -> None:
        """Refuse to make a new file where SQLite's log of a removed one is left, which SQLite would delete.

        Raises:
            DatabaseUnavailableError: there is one.
        """
        for log in (self._path + suffix for suffix in _LOGS):
            # The log first: whoever makes a database makes its log after it.
            if os.path.isfile(log) and os.path.getsize(log) > 0 and not os.path.isfile(self._path):
                raise DatabaseUnavailableError(
                    f"{self._where} is missing, but its log {log} is there; put the database back beside it, or"
                    " remove the log to begin a new one"
                )

    def _now(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_dev, found.st_ino


def _is_writable(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
