"""Rows in the order of their ids, some of them: those of a kind or a state without reading all others.

Listings are wanted by id, and no index tells which ids are of a kind: one that did would cost every enqueue.
So the rows that come next by id are looked at first, which fills a page if what is asked for is common. If it is
rare, the indexes that claims use tell all ids of it, and they are sorted. Each row is in exactly one of `_PARTS`.
Rows of a group are found by reading what is there, but for running ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from callboard._store.interface import Row, Session
from callboard._store.sql_tasks import ALONE, DUE, TASK
from callboard._task import DeadTask, Task, TaskState

NEARBY = 10_000
"""How many rows are looked at before indexes are: it takes some milliseconds."""

_DEAD = ", ".join(DeadTask._fields)


class _Part(NamedTuple):
    """Rows that one index holds; `state` is theirs, `None` where they may have any."""

    name: str
    rows: str
    state: str | None


_PARTS = (
    _Part("due", DUE, TaskState.PENDING),
    _Part("alone", ALONE, TaskState.PENDING),
    _Part("parked", "parked = 1 AND state = 'pending' AND alone <> 1", TaskState.PENDING),
    _Part("running", "state = 'running'", TaskState.RUNNING),
    _Part("deferred", "state = 'deferred'", TaskState.DEFERRED),
    # What no engine of this version writes: the words of the migration that makes the index.
    _Part(
        "odd",
        "(state NOT IN ('pending', 'running', 'deferred')"
        " OR state = 'pending' AND parked <> 1 AND alone <> 1 AND (parked <> 0 OR alone <> 0))",
        None,
    ),
)


def tasks(
    session: Session, kind: str | None, group_id: bytes | None, state: str | None, limit: int, after_id: int
) -> list[Task]:
    """Return live rows that meet every condition given."""
    asked = {"kind": kind, "group_id": group_id, "state": state}
    given = {name: value for name, value in asked.items() if value is not None}
    if not given or (group_id is not None and state != TaskState.RUNNING):
        return [Task._make(row) for row in _read(session, "callboard_task", TASK, given, limit, after_id)]
    [(count, last_id)] = session.rows(
        "SELECT count(*), max(id) FROM"
        " (SELECT id FROM callboard_task NOT INDEXED WHERE id > ? ORDER BY id LIMIT ?) AS nearby",
        (after_id, NEARBY),
    )
    rows = _read(session, "callboard_task", TASK, given, limit, after_id, last_id) if count else []
    if count == NEARBY and len(rows) < limit:
        rows += _found(session, given, limit - len(rows), last_id)
    return [Task._make(row) for row in rows]


def dead(session: Session, kind: str | None, group_id: bytes | None, limit: int, after_id: int) -> list[DeadTask]:
    """Return dead rows that meet every condition given."""
    given = {name: value for name, value in {"kind": kind, "group_id": group_id}.items() if value is not None}
    return [DeadTask._make(row) for row in _read(session, "callboard_dead_task", _DEAD, given, limit, after_id)]


def _read(
    session: Session,
    table: str,
    columns: str,
    given: Mapping[str, Any],
    limit: int,
    after_id: int,
    last_id: int | None = None,
) -> list[Row]:
    """Return rows by looking at one after the other, up to `last_id` if there is one."""
    until = "" if last_id is None else " AND id <= ?"
    where = "".join(f" AND {name} = ?" for name in given)
    sql = f"SELECT {columns} FROM {table} NOT INDEXED WHERE id > ?{until}{where} ORDER BY id LIMIT ?"
    return session.rows(sql, (after_id, *(() if last_id is None else (last_id,)), *given.values(), limit))


def _found(session: Session, given: Mapping[str, Any], limit: int, after_id: int) -> list[Row]:
    """Return rows by asking the indexes for their ids."""
    arms: list[str] = []
    params: list[Any] = []
    for part in _PARTS:
        if part.state not in (None, given.get("state", part.state)):
            continue
        # The state is not asked for where the index says it, since it would be read from each row.
        conditions = {name: value for name, value in given.items() if name != "state" or part.state is None}
        arms.append(
            f"SELECT id FROM callboard_task INDEXED BY callboard_task_{part.name} WHERE {part.rows} AND id > ?"
            + "".join(f" AND {name} = ?" for name in conditions)
        )
        params += (after_id, *conditions.values())
    sql = (
        f"SELECT {', '.join(f'callboard_task.{name}' for name in Task._fields)} FROM"
        f" (SELECT id FROM ({' UNION ALL '.join(arms)}) AS every ORDER BY id LIMIT ?) AS found"
        " JOIN callboard_task ON callboard_task.id = found.id ORDER BY callboard_task.id"
    )
    return session.rows(sql, (*params, limit))
