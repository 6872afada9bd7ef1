"""Read a PostgreSQL URL so that nothing of a password in it can come out again, in messages or in tracebacks.

libpq takes some URLs apart in another way than was meant: of `user:p@ss@host` the password is `p` and the host
`ss@host`, which would then stand in every message. Such a URL is refused. And an error that quotes the URL must
not be the context of ours, so ours are raised after it has been dealt with.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from callboard.errors import ConfigurationError

_ESCAPES = "in a user or password write @ as %40, / as %2F, : as %3A and % as %25"


def read_url(url: str) -> dict[str, Any]:
    """Return what a URL says, by libpq's names.

    Raises:
        ConfigurationError: it cannot be read, or not as it was meant. The message does not repeat it.
    """
    given = _parsed(url)
    if given is None:
        raise _refusal("cannot be read")
    if not given.get("dbname"):
        raise _refusal("names no database")
    if _is_ambiguous(url):
        raise _refusal("has an @ or a / too many")
    ports = str(given.get("port", "")).split(",")
    if not all(port.isdecimal() or not port for port in ports):
        raise _refusal("has a port that is no number")
    return given


def name_in(given: dict[str, Any]) -> str:
    """Return the name of the database that a URL leads to."""
    return str(given["dbname"])


def _parsed(url: str) -> dict[str, Any] | None:
    if "\0" in url:
        return None  # libpq would read up to it
    try:
        return conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        return None


def _is_ambiguous(url: str) -> bool:
    """Return whether an @ is where none can be: in the host, or in the path because of a / before it."""
    user, at, rest = url.partition("://")[2].partition("@")
    if not at or "?" in user:  # none, or one among the options
        return False
    return "/" in user or "@" in rest.partition("?")[0]


def _refusal(problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the database URL {problem}; give one such as postgresql://user@host:5432/name ({_ESCAPES})"
    )
