"""What a run has left, so that two can be compared, and how they differ, in words."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from callboard._codec import decode, encode
from callboard._engine import Engine
from callboard._task import DeadTask, Task
from callboard.errors import PayloadError

_MANY = 1_000_000
_SHOWN = 5
_TABLES = (
    r"SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'callboard\_%' ESCAPE '\'"
    r" AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name"
)

Rows = Counter[tuple[Any, ...]]


class Snapshot(NamedTuple):
    """What there is after a run.

    Attributes:
        parts: rows by what they are rows of: a table that is not the engine's, groups, live tasks, dead tasks. Of
            tasks kind, group, payload and state or reason are there; attempts, deadlines and ids are not.
        effects: what the author's probe found.
    """

    parts: dict[str, Rows]
    effects: Any

    def differences(self, found: Snapshot) -> list[str]:
        """Return in words how `found` differs from this, which is as it should be."""
        lines = []
        for part in sorted({*self.parts, *found.parts}):
            expected, there = self.parts.get(part, Rows()), found.parts.get(part, Rows())
            lines += _lines(part, "missing", expected - there)
            lines += _lines(part, "too many", there - expected)
        if self.effects != found.effects:
            lines.append(f"effects(): expected {self.effects!r:.500}, found {found.effects!r:.500}")
        return lines


def _lines(part: str, what: str, rows: Rows) -> list[str]:
    shown = [f"{part}: {what}: {row!r:.300}" for row in list(rows.elements())[:_SHOWN]]
    more = rows.total() - len(shown)
    return [*shown, f"{part}: and {more} more {what}"] if more else shown


def snapshot(engine: Engine, database: Path, volatile: Collection[str], effects: Any) -> Snapshot:
    """Return what is in a database, and the `effects` that were found elsewhere."""
    parts = _tables(database, volatile)
    parts["groups"] = Rows(
        (
            state.group_id,
            state.own_inbox_id,
            state.consent,
            tuple(sorted(state.members)),
            tuple(sorted(state.super_admins)),
            tuple(sorted((request.inbox_id, request.message_id) for request in state.pending_removes)),
            state.is_leaving,
            state.has_pending_leave_request,
        )
        for state in engine.groups()
    )
    # A set, because a message from a newer version is another task than the same message without what is new.
    live = {_described(engine, task, task.state) for task in engine.tasks(limit=_MANY)}
    dead = {_described(engine, task, task.reason) for task in engine.dead_tasks(limit=_MANY)}
    parts["live tasks"], parts["dead tasks"] = Rows(live), Rows(dead)
    return Snapshot({part: rows for part, rows in parts.items() if rows}, effects)


def _tables(database: Path, volatile: Collection[str]) -> dict[str, Rows]:
    with closing(sqlite3.connect(database)) as connection:
        return {f"table {table}": _rows(connection, table, volatile) for (table,) in connection.execute(_TABLES)}


def _rows(connection: sqlite3.Connection, table: str, volatile: Collection[str]) -> Rows:
    cursor = connection.execute(f'SELECT * FROM "{table}"')
    kept = [place for place, column in enumerate(cursor.description) if f"{table}.{column[0]}" not in volatile]
    return Rows(tuple(row[place] for place in kept) for row in cursor)


def _described(engine: Engine, task: Task | DeadTask, state: str) -> tuple[Any, ...]:
    return task.kind, task.group_id, _known_part(engine, task), state


def _known_part(engine: Engine, task: Task | DeadTask) -> bytes:
    """Return a payload without the fields that are unknown here."""
    kind = engine._core.registry.get(task.kind)
    if kind is None:
        return task.data
    try:
        message: Any = decode(task.data, task.kind, kind.message_type)
    except PayloadError:
        return task.data
    message.DiscardUnknownFields()
    return encode(message)


class TaskRow(NamedTuple):
    """What must be the same of a task that is enqueued again."""

    kind: str
    group_id: bytes | None
    identity: bytes
    data: bytes
    next_attempt_at_ns: int


def task_rows(engine: Engine) -> set[TaskRow]:
    """Return all live tasks."""
    return {
        TaskRow(task.kind, task.group_id, task.identity, task.data, task.next_attempt_at_ns)
        for task in engine.tasks(limit=_MANY)
    }


def not_made_again(lost: Iterable[TaskRow], found: Iterable[TaskRow]) -> list[TaskRow]:
    """Return the tasks of `lost` that are not among `found`, or are but later than they were."""
    earliest: dict[Sequence[Any], int] = {}
    for row in found:
        key = row[:-1]
        earliest[key] = min(row.next_attempt_at_ns, earliest.get(key, row.next_attempt_at_ns))
    return [row for row in lost if row[:-1] not in earliest or earliest[row[:-1]] > row.next_attempt_at_ns]
