"""Notice what no message tells: a moved clock, handlers that take too long, rows that others took away."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from callboard._actors.stacks import stack_of
from callboard._actors.workload import Workload
from callboard._log import logger
from callboard._retry import DEFAULT_POLICY
from callboard._run import Run

if TYPE_CHECKING:
    from callboard._core import Core

_JUMP_NS = 10**9
"""A wall clock that went back by more than this against the monotonic one was set, not slewed."""


class OverdueRun(NamedTuple):
    """A handler that has run beyond its kind's timeout; durations are nanoseconds.

    Attributes:
        stack: where a blocking handler is; empty for a coroutine.
    """

    task_id: int
    kind: str
    running_ns: int
    stack: str


class Watch:
    """What one node looks at about once a second."""

    def __init__(self, core: Core, workload: Workload) -> None:
        """Watch the clock and the file of `core`, and what it has claimed."""
        self._core = core
        self._workload = workload
        self._offset_ns, _ = self._read_clocks()
        self._data_version: int | None = None

    def clock(self) -> bool:
        """Keep due what was due before the clock was set back, and no backoff further away than its cap (rule 8).

        Returns:
            Whether the clock was set, either way, so that deadlines are to be looked at anew.
        """
        offset_ns, now_ns = self._read_clocks()
        jumped_ns = self._offset_ns - offset_ns
        if jumped_ns > _JUMP_NS:
            logger.warning(
                "the clock was set back by {:.0f} s; tasks in backoff are brought back", jumped_ns / 1e9
            )
            store = self._core.store
            with store.transaction() as session:
                store.tasks.keep_due(session, now_ns, jumped_ns)
                self.shorten_backoffs()  # in the same transaction
        self._offset_ns = offset_ns  # last: where the database refuses, the jump is still to be seen
        return abs(jumped_ns) > _JUMP_NS

    def shorten_backoffs(self) -> None:
        """Bring tasks in backoff no further away than their cap."""
        store = self._core.store
        with store.transaction() as session:
            store.tasks.shorten_backoff(session, self._core.clock.now_ns(), DEFAULT_POLICY.cap_ns)

    def handlers(self) -> None:
        """Cancel runs that are over their kind's timeout (rule 12)."""
        now_ns = self._core.clock.monotonic_ns()
        for run in list(self._workload.runs.values()):
            if not _is_overdue(run, now_ns) or run.cancelled:
                continue
            logger.warning("task {} ({}) is over its timeout of {}", run.task.id, run.task.kind, run.kind.timeout)
            run.timed_out = True
            run.cancel()

    def others_wrote(self) -> bool:
        """Return whether another connection has committed since the last call."""
        version = self._core.store.data_version()
        changed, self._data_version = version != self._data_version, version
        if changed:
            self._core.plugin_tables.check()
        if changed and self._workload.runs:
            self._check_tokens()
        return changed

    def overdue(self) -> list[OverdueRun]:
        """Return the handlers that are over their timeout and still running."""
        now_ns = self._core.clock.monotonic_ns()
        return [
            OverdueRun(run.task.id, run.task.kind, now_ns - run.started_ns, stack_of(run.thread_id))
            for run in list(self._workload.runs.values())
            if _is_overdue(run, now_ns)
        ]

    def _check_tokens(self) -> None:
        """Tell runs whose rows were cancelled by another process that they are on their own (rule 7)."""
        store = self._core.store
        with store.reading() as session:
            held = store.tasks.still_running(session, list(self._workload.runs))
        for task_id, run in list(self._workload.runs.items()):
            row = held.get(task_id)
            if run.committed is None and (row is None or row.token != run.task.token):
                run.cancel()

    def _read_clocks(self) -> tuple[int, int]:
        """Return by how much the wall clock is ahead of the monotonic one, and the wall clock.

        Read again if the thread was held up in between: that would look like a clock that was set.
        """
        clock = self._core.clock
        while True:
            before_ns = clock.monotonic_ns()
            now_ns = clock.now_ns()
            if clock.monotonic_ns() - before_ns <= _JUMP_NS // 2:
                return now_ns - before_ns, now_ns


def _is_overdue(run: Run, now_ns: int) -> bool:
    return run.started_ns > 0 and run.result is None and now_ns - run.started_ns > run.kind.timeout_ns
