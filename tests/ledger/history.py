"""Put entries together to requests and runs, and say how sure each thing is.

A process that is killed cannot say how its runs ended, and a request whose answer never came may be committed or
not. Everything here errs on the side of the engine: what cannot be known excuses it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.ledger.entries import Came, DeadRow, Effect, Entry, LiveRow, What

NEVER = 2**63 - 1

COMMITTING = frozenset({Came.DONE, Came.RESCHEDULED, Came.DEFERRED, Came.DISCARDED})
"""Outcomes with which what a run buffered and completed is committed, unless the outcome is lost or stale."""


@dataclass(slots=True)
class Request:
    """One wish that a task run, or run sooner; it was committed, if it was, between the wish and the answer.

    Attributes:
        asked: The entry of the wish.
        parent: The run that wished it together with its own outcome.
        accepted: The entry of its answer.
    """

    asked: Entry
    parent: Run | None = None
    accepted: Entry | None = None

    def may_be_within(self, since_ns: int, until_ns: int) -> bool:
        """Return whether it may have been committed in this time."""
        last_ns = NEVER if self.accepted is None else self.accepted.at_ns
        return self.asked.at_ns <= until_ns and last_ns >= since_ns


@dataclass(slots=True)
class Run:
    """One call of a handler.

    Attributes:
        begun: The entry of its begin.
        completing: The entry of its `ctx.complete`, if it came that far.
        ended: The entry of its end; None when its process was killed, or it still runs.
        buffered: What it asked for together with its outcome.
        effects: How many rows it wrote inside `ctx.complete`.
        held_until_ns: Until when nobody else may have run the task, or one of its group.
        sure: Whether its node knew all the time which tasks were its own.
    """

    begun: Entry
    completing: Entry | None = None
    ended: Entry | None = None
    buffered: list[Entry] = field(default_factory=list)
    effects: int = 0
    held_until_ns: int = 0
    sure: bool = True

    @property
    def came(self) -> Came | None:
        """What came of it, as far as anybody knows."""
        return None if self.ended is None else self.ended.came

    @property
    def may_have_committed(self) -> bool:
        """Whether an outcome of it may be in the tables."""
        return self.came in COMMITTING or self.effects > 0

    @property
    def may_be_done(self) -> bool:
        """Whether it may have finished its task."""
        return self.came == Came.DONE or (self.ended is None and self.effects > 0)

    def __str__(self) -> str:
        """Quote its entries."""
        return f"{self.begun}{self.ended or '[no end]'}"


class TaskHistory:
    """Everything about one task, each list in the order of time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[Request] = []
        self.runs: list[Run] = []
        self.pulled: list[Request] = []
        self.cancelled: list[Entry] = []
        self.live: LiveRow | None = None
        self.dead: list[DeadRow] = []
        self.effects: list[Effect] = []

    @property
    def repeats(self) -> bool:
        """Whether one request may rightly lead to several committed runs."""
        return any(run.came in (Came.RESCHEDULED, Came.DEFERRED) for run in self.runs)

    def requests_within(self, since_ns: int, until_ns: int) -> int:
        """Return how many requests may have been committed in this time."""
        return sum(each.may_be_within(since_ns, until_ns) for each in self.requests)

    def died_within(self, since_ns: int, until_ns: int) -> bool:
        """Return whether the task died in this time."""
        return any(since_ns <= row.died_at_ns <= until_ns for row in self.dead)


class History:
    """All tasks, runs and nodes of one account.

    Attributes:
        tasks: By name.
        runs: All runs, in the order in which they began.
        killed: The node's entry, by its name.
        lapses: The spans in which a node was not sure of its tasks, by its name.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        live: Sequence[LiveRow],
        dead: Sequence[DeadRow],
        effects: Sequence[Effect],
    ) -> None:
        """Put everything together."""
        self.tasks: dict[str, TaskHistory] = {}
        self.killed: dict[str, Entry] = {}
        self.lapses: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.strays: list[str] = []
        self._requests: dict[str, Request] = {}
        self._runs: dict[str, Run] = {}
        for entry in sorted(entries, key=lambda entry: entry.at_ns):
            self._take(entry)
        self.runs = list(self._runs.values())
        for effect in effects:
            self._of(effect.task).effects.append(effect)
            run = self._runs.get(effect.ref)
            if run is None:
                self.strays.append(f"{effect.task}: an effect of the run {effect.ref}, which never began")
            else:
                run.effects += 1
        for row in live:
            self._of(row.task).live = row
        for died in dead:
            self._of(died.task).dead.append(died)
        for run in self.runs:
            self._hold(run)
            for buffered in run.buffered if run.may_have_committed else ():
                self._of(buffered.task).requests.append(Request(buffered, run))

    def may_be_lost(self, run: Run, until_ns: int) -> bool:
        """Return whether a run's outcome may never have been committed, as seen from a later time."""
        begun_ns = run.begun.at_ns
        killed = self.killed.get(run.begun.node)
        lapses = self.lapses.get(run.begun.node, ())
        return (killed is not None and begun_ns <= killed.at_ns <= until_ns) or any(
            since_ns <= until_ns and begun_ns <= ended_ns for since_ns, ended_ns in lapses
        )

    def _take(self, entry: Entry) -> None:
        match entry.what:
            case What.ASKED:
                self._requests[entry.ref] = request = Request(entry)
                self._of(entry.task).requests.append(request)
            case What.ACCEPTED:
                self._requests[entry.ref].accepted = entry
            case What.BEGUN:
                self._runs[entry.ref] = run = Run(entry)
                self._of(entry.task).runs.append(run)
            case What.BUFFERED:
                self._runs[entry.ref].buffered.append(entry)
            case What.COMPLETING:
                self._runs[entry.ref].completing = entry
            case What.ENDED:
                self._runs[entry.ref].ended = entry
            case What.PULLED:
                self._requests[entry.ref] = request = Request(entry)
                self._of(entry.task).pulled.append(request)
            case What.CANCELLED:
                self._of(entry.task).cancelled.append(entry)
            case What.KILLED:
                self.killed[entry.node] = entry
            case What.LAPSED:
                self.lapses[entry.node].append((entry.at_ns, NEVER))
            case What.RESUMED:
                spans = self.lapses[entry.node]
                spans[-1] = (spans[-1][0], entry.at_ns)

    def _of(self, name: str) -> TaskHistory:
        return self.tasks.setdefault(name, TaskHistory(name))

    def _hold(self, run: Run) -> None:
        """Find out until when the run kept others out: a killed one until its last sign of life."""
        begun_ns = run.begun.at_ns
        killed = self.killed.get(run.begun.node)
        if run.completing is not None:
            run.held_until_ns = run.completing.at_ns
        elif run.ended is not None:
            run.held_until_ns = run.ended.at_ns
        else:
            run.held_until_ns = NEVER if killed is None else max(begun_ns, killed.at_ns)
        for since_ns, until_ns in self.lapses.get(run.begun.node, ()):
            if since_ns <= run.held_until_ns and begun_ns <= until_ns:
                run.sure = False
                run.held_until_ns = max(begun_ns, since_ns)
