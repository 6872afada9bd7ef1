"""Which rows `callboard copy` moves, column by column, and the form in which two databases' rows are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from callboard._store.interface import Row

_INT, _TEXT, _BYTES, _FLOAT, _BOOL = "bigint", "text", "bytea", "double precision", "boolean"

_OF_A_TASK = {
    "kind": _TEXT,
    "group_id": _BYTES,
    "identity": _BYTES,
    "data": _BYTES,
    "data_hash": _BYTES,
    "max_attempts": _INT,
    "created_at_ns": _INT,
    "expires_at_ns": _INT,
    "initial_backoff_ns": _INT,
    "backoff_factor": _FLOAT,
    "max_backoff_ns": _INT,
    "origin": _TEXT,
}


@dataclass(frozen=True, eq=False)
class Table:
    """One table.

    Attributes:
        key: the columns of the primary key, which are a row's first.
        types: each column's type, as PostgreSQL names it, in the order of a row's values.
        numbered: whether the database gives the rows their ids.
    """

    name: str
    key: tuple[str, ...]
    types: dict[str, str]
    numbered: bool = False

    def key_of(self, row: Row) -> Row:
        """Return a row's key."""
        return row[: len(self.key)]

    def changing(self, kind: str, change: Callable[[Any], Any]) -> Callable[[Row], Row]:
        """Return what makes a change to a row's values of one type."""
        places = [place for place, its_kind in enumerate(self.types.values()) if its_kind == kind]

        def changed(row: Row) -> Row:
            values = list(row)
            for place in places:
                values[place] = change(values[place])
            return tuple(values)

        return changed if places else lambda row: row


TASK = Table(
    "callboard_task",
    ("id",),
    {
        "id": _INT,
        **_OF_A_TASK,
        "state": _TEXT,
        "attempts": _INT,
        "next_attempt_at_ns": _INT,
        "last_attempted_at_ns": _INT,
        "requests": _INT,
        "outages": _INT,
        "pulled_in_ns": _INT,
        "token": _INT,
        "last_error": _TEXT,
        "parked": _INT,
        "owner": _INT,
        "cancelled": _INT,
        "alone": _INT,
        "crashes": _INT,
    },
    numbered=True,
)
DEAD_TASK = Table(
    "callboard_dead_task",
    ("id",),
    {
        "id": _INT,
        "task_id": _INT,
        **_OF_A_TASK,
        "attempts": _INT,
        "last_error": _TEXT,
        "reason": _TEXT,
        "died_at_ns": _INT,
    },
    numbered=True,
)
GROUP = Table(
    "callboard_group",
    ("group_id",),
    {
        "group_id": _BYTES,
        "version": _INT,
        "own_inbox_id": _TEXT,
        "consent": _TEXT,
        "active_at_ns": _INT,
        "is_leaving": _BOOL,
        "has_pending_leave_request": _BOOL,
    },
)
MEMBER = Table(
    "callboard_group_member",
    ("group_id", "inbox_id"),
    {"group_id": _BYTES, "inbox_id": _TEXT, "is_super_admin": _BOOL},
)
PENDING_REMOVE = Table(
    "callboard_pending_remove",
    ("group_id", "inbox_id"),
    {"group_id": _BYTES, "inbox_id": _TEXT, "message_id": _BYTES, "requested_at_ns": _INT},
)
INBOX = Table(
    "callboard_inbox",
    ("id",),
    {"id": _INT, **_OF_A_TASK, "not_later_than_ns": _INT, "next_attempt_at_ns": _INT},
    numbered=True,
)
"""What a host's transaction enqueued on PostgreSQL, and no engine has merged yet."""

TABLES = (GROUP, MEMBER, PENDING_REMOVE, DEAD_TASK, TASK)
"""What every database has, in the order in which it is copied: what tasks are about before the tasks."""

NODES = "callboard_node"
"""Not copied: it tells who works on a database."""

_OWNER = list(TASK.types).index("owner")


def moved(table: Table, row: Row) -> Row:
    """Return a row as it is to be in another database.

    The nodes stay behind, so a row that was running must not seem to belong to one that gets the same number. No
    node has a negative one: the row is an orphan, as any that a node left, and what ran on one node is still told
    from what ran on others, as the rescue of orphans wants it.
    """
    if table is not TASK or row[_OWNER] is None or row[_OWNER] <= 0:
        return row
    return (*row[:_OWNER], -row[_OWNER], *row[_OWNER + 1 :])


def encoded(row: Row) -> bytes:
    """Return a row's values as bytes, the same for the same values whatever database they come from."""
    return repr(row).encode()  # of these types it is exact, and ten times as fast as what could be written here


class Checksum:
    """The number and the hash of a table's rows, whatever their order: the sum of each row's SHA-256.

    Two databases do not sort texts alike, and to have one of them sort a million rows another way costs memory.
    """

    def __init__(self) -> None:
        """Have seen no row."""
        self.rows = 0
        self._sum = 0

    def add(self, row: Row) -> None:
        """Count a row."""
        self.rows += 1
        self._sum += int.from_bytes(sha256(encoded(row)).digest(), "big")

    @property
    def hash(self) -> str:
        """The hash, in hex."""
        return f"{self._sum % 2**256:064x}"
