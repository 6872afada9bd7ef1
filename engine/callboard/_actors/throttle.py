"""Hold kinds back: one that has as many tasks in hand as it may, and one that fails for everybody.

It is told what is claimed and how runs end, and answers how many more of a kind may be claimed. It reads no clock
and no table, so that its rules can be tested as arithmetic. All of it is one node's: another node counts for
itself, and what is known here ends with the engine.

The circuit breaker takes the numbers of Netflix's Hystrix: 20 (`circuitBreaker.requestVolumeThreshold`, here
`TaskKind.pause_after`), of which all have failed, and another try after 5 s (`sleepWindowInMilliseconds`). From
there the pause doubles up to the longest wait of the default retry policy.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from callboard import _lifecycle
from callboard._clock import NEVER_NS
from callboard._kinds import TaskKind
from callboard._outcome import Failure
from callboard._retry import DEFAULT_POLICY, backoff_ns
from callboard._run import Run
from callboard._task import Task

FIRST_PAUSE_NS = 5 * 10**9
LONGEST_PAUSE_NS = DEFAULT_POLICY.cap_ns
"""How long a kind is paused before a task of it is tried, at first and at most."""

Line = bytes | int
"""Tasks that never overlap: those of a group, or one task without a group, by its id."""


class PausedKind(NamedTuple):
    """A kind that failed for everybody, and of which this node claims nothing for the time being.

    Attributes:
        kind: its name.
        failed: how many different groups, or tasks without one, had failed in a row when it was paused.
        resumes_in_ns: how long it takes until one task is tried, in nanoseconds; 0 once it is tried.
        trial: the id of the task that is being tried; `None` when none is.
        last_error: how the last of them failed.
    """

    kind: str
    failed: int
    resumes_in_ns: int
    trial: int | None
    last_error: str


class _Pause:
    __slots__ = ("error", "failed", "number", "trial", "until_ns")

    def __init__(self, failed: int) -> None:
        self.failed = failed
        self.number = 0
        self.until_ns = 0
        self.trial: int | None = None
        self.error = ""

    def prolong(self, error: str, now_ns: int) -> None:
        self.number += 1
        self.error = error
        self.until_ns = now_ns + backoff_ns(self.number, FIRST_PAUSE_NS, 2.0, LONGEST_PAUSE_NS)


class Throttle:
    """How much of each kind one node may claim. Times are the monotonic clock's.

    What is claimed is the scheduler's to say; how a run ended is said where it ends, on any thread.
    """

    def __init__(self, kinds: Mapping[str, TaskKind[Any]]) -> None:
        """Hold back those of `kinds` that say so, and any that fails."""
        self._limits = {name: kind.concurrency for name, kind in kinds.items() if kind.concurrency is not None}
        self._lines: dict[str, Counter[Line]] = {name: Counter() for name in self._limits}
        self._failed: dict[str, set[bytes]] = {}
        self._paused: dict[str, _Pause] = {}
        self._lock = threading.Lock()

    # What may be claimed

    def room(self, kind: str, now_ns: int) -> int | None:
        """Return how many more lines of a kind may be claimed now; `None` for any number."""
        limit = self._limits.get(kind)
        room = None if limit is None else max(limit - len(self._lines[kind]), 0)
        pause = self._paused.get(kind)
        if pause is None:
            return room
        tries = pause.trial is None and now_ns >= pause.until_ns
        return min(int(tries), 1 if room is None else room)

    def admits(self, kind: str, line: Line, now_ns: int) -> bool:
        """Return whether a task of this line may be claimed besides what is; one more of a line takes no room."""
        room = self.room(kind, now_ns)
        return room is None or room > 0 or (kind not in self._paused and line in self._lines[kind])

    def is_narrow(self, kind: str) -> bool:
        """Return whether not every due task of the kind may be claimed."""
        return kind in self._limits or kind in self._paused

    def busy_groups(self, kind: str) -> list[bytes]:
        """Return the groups that have tasks of a limited kind claimed."""
        return [line for line in self._lines.get(kind, ()) if isinstance(line, bytes)]

    def resumes_ns(self, now_ns: int) -> int:
        """Return when the next kind is to be tried whose time has not come yet."""
        waiting = (pause.until_ns for pause in list(self._paused.values()) if pause.until_ns > now_ns)
        return min(waiting, default=NEVER_NS)

    # What is claimed

    def add(self, run: Run) -> None:
        """Count a claimed run."""
        lines = self._lines.get(run.task.kind)
        if lines is not None:
            lines[line_of(run.task)] += 1

    def remove(self, run: Run) -> None:
        """Count a run as written back, or as not claimed after all."""
        lines = self._lines.get(run.task.kind)
        if lines is not None:
            line = line_of(run.task)
            lines[line] -= 1
            if lines[line] <= 0:
                del lines[line]
        pause = self._paused.get(run.task.kind)
        if pause is not None and pause.trial == run.task.id:
            pause.trial = None

    def begin(self, run: Run, now_ns: int) -> None:
        """Take a run that has just been claimed for the trial, if it is time for one.

        It is not where the kind was paused in the middle of the claim.
        """
        pause = self._paused.get(run.task.kind)
        if pause is not None and pause.trial is None and now_ns >= pause.until_ns:
            pause.trial = run.task.id

    def refuses(self, run: Run) -> bool:
        """Return whether a claimed run must not begin, because its kind was paused meanwhile; on any thread."""
        pause = self._paused.get(run.task.kind)
        return pause is not None and pause.trial != run.task.id

    # How it ended

    def ended(self, run: Run, now_ns: int) -> Literal["paused", "resumed"] | None:
        """Learn from how a run ended; return what this has changed for its kind.

        What tells nothing of the kind (no attempt, an outage, a cancelled run) changes nothing.
        """
        with self._lock:
            return self._ended(run, now_ns)

    def _ended(self, run: Run, now_ns: int) -> Literal["paused", "resumed"] | None:
        name = run.task.kind
        pause = self._paused.get(name)
        result = run.result if run.completed is None else run.completed
        tried = pause is not None and pause.trial == run.task.id
        if pause is not None and tried:
            pause.trial = None
        if result is None or isinstance(result, str):
            return None
        result = _lifecycle.judged(result, recurring=run.kind.recurring)
        if not isinstance(result, Failure):
            self._failed.pop(name, None)
            return None if self._paused.pop(name, None) is None else "resumed"
        if not result.counted or (run.cancelled and not run.timed_out):
            return None
        if pause is not None:
            if tried:
                pause.prolong(result.error, now_ns)
            return None
        return self._failed_once_more(run, result.error, now_ns)

    def _failed_once_more(self, run: Run, error: str, now_ns: int) -> Literal["paused"] | None:
        name, limit = run.task.kind, run.kind.pause_after
        if limit is None:
            return None
        failed = self._failed.setdefault(name, set())
        failed.add(run.task.identity if run.task.group_id is None else run.task.group_id)
        if len(failed) < limit:
            return None
        del self._failed[name]
        pause = _Pause(len(failed))
        pause.prolong(error, now_ns)
        self._paused[name] = pause
        return "paused"

    # What to tell

    def paused_kinds(self) -> Collection[str]:
        """Return the names of the paused kinds."""
        return frozenset(self._paused)

    def paused(self, now_ns: int) -> list[PausedKind]:
        """Return the paused kinds; on any thread."""
        return [
            PausedKind(kind, each.failed, max(each.until_ns - now_ns, 0), each.trial, each.error)
            for kind, each in sorted(dict(self._paused).items())
        ]


def line_of(task: Task) -> Line:
    """Return the line of tasks that a task is in."""
    return task.id if task.group_id is None else task.group_id
