"""A small model of the task table: what each step makes of the rows, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from callboard.stores import DeadReason, NewTask, Task


@dataclass
class Row:
    """A live row: what the engine sees of it, and what only the store does."""

    task: Task
    cancelled: int = 0
    parked: bool = False
    alone: bool = False
    crashes: int = 0

    def set(self, **columns: Any) -> None:
        """Change columns."""
        self.task = self.task._replace(**columns)

    def is_due(self, now_ns: int) -> bool:
        """Return whether the row waits to run and its time has come."""
        return self.task.state == "pending" and self.task.next_attempt_at_ns <= now_ns

    def is_claimable(self, now_ns: int) -> bool:
        """Return whether the row is due, and for whoever asks."""
        return self.is_due(now_ns) and not self.parked and not self.alone


class Model:
    """All rows, and how each step changes them."""

    def __init__(self) -> None:
        """Have none."""
        self.rows: dict[int, Row] = {}
        self.dead: list[tuple[int, bytes, str, int]] = []

    def of_identity(self, identity: bytes) -> Row | None:
        """Return the live row."""
        return next((row for row in self.rows.values() if row.task.identity == identity), None)

    def running(self, owner: int | None = None) -> list[Row]:
        """Return the rows that run, on one node or any."""
        return [
            row for row in self.rows.values() if row.task.state == "running" and owner in (None, row.task.owner)
        ]

    def elsewhere(self, node_id: int) -> set[bytes | None]:
        """Return the groups that other nodes run."""
        return {row.task.group_id for row in self.running() if row.task.owner != node_id} - {None}

    def insert(self, new: NewTask, task_id: int) -> None:
        """Add a row, whose id the store has chosen."""
        assert task_id not in self.rows
        columns: dict[str, Any] = dict.fromkeys(Task._fields)
        columns.update(new._asdict(), id=task_id, state="pending", attempts=0, requests=1, outages=0, token=0)
        self.rows[task_id] = Row(Task(**columns))

    def bury(self, row: Row, reason: DeadReason, attempts: int) -> None:
        """Move a row to the dead."""
        self.dead.append((row.task.id, row.task.data, reason, attempts))
        del self.rows[row.task.id]

    def start(self, row: Row, node_id: int, now_ns: int) -> None:
        """Let a row run."""
        row.set(state="running", token=row.task.token + 1, last_attempted_at_ns=now_ns, owner=node_id)
        row.parked = False

    def release(self, row: Row, next_ns: int) -> None:
        """Let a row be pending again, at its time or what was pulled in."""
        pulled_ns = row.task.pulled_in_ns
        row.set(
            state="pending",
            next_attempt_at_ns=next_ns if pulled_ns is None else min(next_ns, pulled_ns),
            pulled_in_ns=None,
            owner=None,
        )
