"""What this node has claimed and not yet written back, and how much more it may claim."""

from __future__ import annotations

from callboard._actors.throttle import Throttle
from callboard._run import Run

CLAIM_AHEAD = 32
"""Rows claimed ahead for one group: enough to fill a transaction, few enough to hand back at once."""

PREFETCH = 256
"""Rows without a group claimed beyond the free workers, so that short tasks need few transactions."""

MAX_BUSY_GROUPS = 1_024
"""Groups with claimed rows: bounds the memory of what is claimed, far above any sensible `workers`."""

SHARED_CLAIM_AHEAD = 8
"""Rows claimed ahead for one group where other nodes could take up other groups meanwhile."""


class Workload:
    """The runs between claim and commit. Only the scheduler changes it.

    Attributes:
        runs: by their tasks' ids.
        backlogged: groups with parked rows, in the order in which they fell behind.
        alone: the task that runs with nothing beside it, because a process has ended over it.
        awaited: groups of which nothing is claimed until they are idle, since a task waits for that.
        throttle: what holds single kinds back.
        shared: whether other nodes execute the same tasks, so that no more is claimed than soon begins.
    """

    def __init__(self, workers: int, throttle: Throttle) -> None:
        """Start with nothing claimed; `throttle` is told of each run."""
        self.runs: dict[int, Run] = {}
        self.backlogged: dict[bytes, None] = {}
        self.alone: int | None = None
        self.awaited: set[bytes] = set()
        self.throttle = throttle
        self.shared = False
        self._workers = workers
        self._groups: dict[bytes, int] = {}
        self._loose = 0

    def add(self, run: Run) -> None:
        """Count a claimed run."""
        self.runs[run.task.id] = run
        self.throttle.add(run)
        group_id = run.task.group_id
        if group_id is None:
            self._loose += 1
        else:
            self._groups[group_id] = self._groups.get(group_id, 0) + 1

    def remove(self, run: Run) -> None:
        """Count a run as written back."""
        del self.runs[run.task.id]
        self.throttle.remove(run)
        if self.alone == run.task.id:
            self.alone = None
        group_id = run.task.group_id
        if group_id is None:
            self._loose -= 1
        elif self._groups[group_id] == 1:
            del self._groups[group_id]
            self.awaited.discard(group_id)
        else:
            self._groups[group_id] -= 1

    def is_idle(self, group_id: bytes) -> bool:
        """Return whether the group has no run outstanding."""
        return group_id not in self._groups

    def room_in(self, group_id: bytes) -> int:
        """Return how many more rows of the group may be claimed."""
        if group_id in self.awaited:
            return 0
        if group_id not in self._groups and len(self._groups) >= self._max_groups():
            return 0
        return self._ahead() - self._groups.get(group_id, 0)

    def loose_room(self) -> int:
        """Return how many more rows without a group may be claimed."""
        return self._workers + (self._workers if self.shared else PREFETCH) - self._loose

    def room(self) -> int:
        """Return how many more rows may be claimed, if they are of the right groups."""
        grouped = len(self.runs) - self._loose
        return max(self._max_groups() * self._ahead() - grouped, 0) + max(self.loose_room(), 0)

    def is_full(self) -> bool:
        """Return whether nothing more may be claimed, whatever it is."""
        return self.loose_room() <= 0 and len(self._groups) >= self._max_groups()

    def thirsty(self) -> list[bytes]:
        """Return groups that have parked rows and have run half of what was claimed ahead."""
        return [group for group in self.backlogged if self.room_in(group) >= self._ahead() // 2]

    def _ahead(self) -> int:
        return SHARED_CLAIM_AHEAD if self.shared else CLAIM_AHEAD

    def _max_groups(self) -> int:
        return 2 * self._workers if self.shared else MAX_BUSY_GROUPS
