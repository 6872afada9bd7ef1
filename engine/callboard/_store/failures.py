"""Turn what a database driver raises into a `StoreError` that names the database and what to do."""

from __future__ import annotations

import sqlite3

from callboard.errors import (
    DatabaseGoneError,
    DatabaseUnavailableError,
    NotADatabaseError,
    SchemaError,
    StoreError,
)

READ_ONLY = "is read-only; make the file and its folder writable for this user"

_ABOUT_WORDS = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)

_DAMAGED = "is damaged; restore it from a backup or recover it with the sqlite3 shell"

# What SQLite says (its result-code texts), what that means, and the remedy.
_SQLITE: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        "file is not a database",
        NotADatabaseError,
        "is not an SQLite database; give the path of one, or of no file yet",
    ),
    ("disk image is malformed", NotADatabaseError, _DAMAGED),
    ("malformed database schema", NotADatabaseError, _DAMAGED),
    (
        "no such table: callboard_",
        SchemaError,
        "has no Callboard tables; run `callboard migrate` or Engine.migrate()",
    ),
    (
        "no such column",
        SchemaError,
        "has tables of another version; run `callboard migrate` or Engine.migrate()",
    ),
    (
        "locked",
        DatabaseUnavailableError,
        "is locked by another connection; end its transaction and try again",
    ),
    ("busy", DatabaseUnavailableError, "is locked by another connection; end its transaction and try again"),
    ("readonly", DatabaseUnavailableError, READ_ONLY),
    (
        "unable to open",
        DatabaseUnavailableError,
        "cannot be opened; check that its folder exists and is writable, and that it is no folder itself",
    ),
    ("full", DatabaseUnavailableError, "has no room to grow; free some disk space"),
    ("disk i/o", DatabaseUnavailableError, "cannot be read or written; check the disk"),
)


def translate(error: Exception, where: str) -> StoreError:
    """Return the `StoreError` for a driver's exception; `where` names the database."""
    text = str(error)
    code = _code_of(error)
    for sign, kind, remedy in _SQLITE:
        # The statement's own words, such as a column called `locked_by`, tell nothing of the database.
        if code in _ABOUT_WORDS and issubclass(kind, DatabaseUnavailableError):
            continue
        if sign in text.lower():
            return kind(f"{where} {remedy} ({text})")
    return StoreError(f"{where}: {text}")


def is_about(error: StoreError, where: str) -> bool:
    """Return whether an error of `translate` is about the database that `where` names."""
    return str(error).startswith(f"{where} ")


def needs_help(error: BaseException) -> bool:
    """Return whether waiting is no remedy: somebody has to put the file right, and mostly to start anew."""
    return isinstance(error, (DatabaseGoneError, NotADatabaseError, SchemaError))


def is_locked(error: BaseException | None) -> bool:
    """Return whether SQLite refused because another connection holds a lock, which a later try may find free."""
    return _code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code_of(error: BaseException | None) -> int:
    while error is not None and not isinstance(error, sqlite3.Error):
        error = error.__cause__ or error.__context__
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF  # the primary code of an extended one
    return code
