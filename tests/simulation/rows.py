"""What the tables say after each commit, and which changes no rule allows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from callboard import Task

if TYPE_CHECKING:
    from tests.simulation.node import SimulatedNode


class _Row(NamedTuple):
    id: int
    name: str
    state: str
    owner: int | None
    token: int
    attempts: int
    requests: int
    cancelled: int


_FINISHED = "finished a row that another node is running"

_READ = "SELECT id, origin, state, owner, token, attempts, requests, cancelled FROM callboard_task"


class Rows:
    """The task table as it was after the last commit."""

    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader
        self._known: dict[int, _Row] = {}
        self._dead = 0

    def changes(self, node: SimulatedNode) -> list[str]:
        """Read the table after a commit of `node`; return what nobody may have done, and who did it."""
        before, self._known = self._known, {row[0]: _Row._make(row) for row in self._reader.execute(_READ)}
        running = node.engine._core.running
        own = None if running is None else running.node.id
        return [
            f"{row.name}: {complaint}, by {node.name} (node {own}): {row} became {self._known.get(row.id)}"
            for row in before.values()
            for complaint in _complaints(row, self._known.get(row.id), own)
            if complaint != _FINISHED or not self._has_crashed(row)
        ]

    def _has_crashed(self, row: _Row) -> bool:
        """Return whether a row was buried that took its processes down, as others do when its node is gone."""
        crashed = "SELECT 1 FROM callboard_dead_task WHERE task_id = ? AND reason = 'crashed'"
        running = "SELECT 1 FROM callboard_node WHERE id = ?"
        is_crashed = self._reader.execute(crashed, (row.id,)).fetchone() is not None
        return is_crashed and self._reader.execute(running, (row.owner,)).fetchone() is None

    def is_run_by(self, task: Task) -> bool:
        """Return whether the task's token is still the row's, unless somebody has cancelled it meanwhile."""
        row = self._known.get(task.id)
        if row is None:
            return False
        return bool(row.cancelled) or (row.token == task.token and row.state == "running")

    def dead_ids(self) -> list[int]:
        """Return the ids of dead rows."""
        return [row[0] for row in self._reader.execute("SELECT id FROM callboard_dead_task")]

    def dead(self) -> list[tuple[int, str, str, int]]:
        """Return id, name, reason and attempts of dead rows."""
        return list(self._reader.execute("SELECT id, origin, reason, attempts FROM callboard_dead_task"))

    def effects(self) -> list[tuple[str, str]]:
        """Return the tasks and runs of what was written with `ctx.complete`."""
        return list(self._reader.execute("SELECT task, ref FROM effect"))

    def live(self) -> list[tuple[str, str, int]]:
        """Return name, state and deadline of live rows."""
        return list(self._reader.execute("SELECT origin, state, next_attempt_at_ns FROM callboard_task"))

    def one_shots(self, until_ns: int) -> list[str]:
        """Return the names of live rows that have an end and are due by `until_ns`, on the wall clock."""
        query = (
            "SELECT origin FROM callboard_task WHERE kind <> 'google.protobuf.StringValue'"
            " AND (state = 'running' OR next_attempt_at_ns <= ?)"
        )
        return [row[0] for row in self._reader.execute(query, (until_ns,))]

    def claimable(self, now_ns: int) -> list[str]:
        """Return the names of rows that are due and wait for nothing."""
        query = (
            "SELECT origin FROM callboard_task WHERE state = 'pending' AND parked = 0 AND next_attempt_at_ns <= ?"
        )
        return [row[0] for row in self._reader.execute(query, (now_ns,))]

    def left(self) -> list[_Row]:
        """Return all rows."""
        return [_Row._make(row) for row in self._reader.execute(_READ)]

    def id_of(self, name: str) -> int | None:
        """Return the id of a live row."""
        row = self._reader.execute("SELECT id FROM callboard_task WHERE origin = ?", (name,)).fetchone()
        return None if row is None else row[0]


def _complaints(row: _Row, now: _Row | None, own: int | None) -> Iterator[str]:
    """Say what is wrong with a change of one row."""
    if row.state == "running" and now is None and row.owner != own and not row.cancelled:
        yield _FINISHED
    if now is None:
        return
    if now.token < row.token:
        yield "lowered a token"
    if now.token != row.token and now.state == row.state == "running" and not now.cancelled and row.owner != own:
        yield "claimed a row that is running"
    if row.state == "running" and row.owner != own and now.attempts != row.attempts:
        yield "settled a row that another node is running"
    if now.requests < row.requests and now.state != "pending":
        yield "dropped a request"
