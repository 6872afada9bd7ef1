"""The run's books: entries for the ledger, and a trace for whoever has to find out what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.ledger import Came, DeadRow, Effect, Entry, LiveRow, What, violations
from tests.simulation.handlers import POLICY, RECURRING, group_of

from callboard import TaskContext
from callboard._clock import nanoseconds
from callboard._retry import backoff_ns

if TYPE_CHECKING:
    from tests.simulation.clock import VirtualClock
    from tests.simulation.faults import Faults
    from tests.simulation.node import SimulatedNode
    from tests.simulation.rows import Rows

_S = 10**9

_MARGIN_NS = 60 * _S
"""A row that was due this long before the end should be gone: more than any backoff and any poll."""


class Book:
    """What happened.

    Attributes:
        trace: one line for each thing.
        found: what must not have happened.
        never: tasks whose transactions were rolled back.
    """

    def __init__(self, clock: VirtualClock, faults: Faults, rows: Rows) -> None:
        self._clock = clock
        self._faults = faults
        self._rows = rows
        self._entries: list[Entry] = []
        self._deaths: dict[int, int] = {}
        self._refs = 0
        self.trace: list[str] = []
        self.found: list[str] = []
        self.never: set[str] = set()

    def say(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self._clock.monotonic_ns() / _S:.9f} {what}")

    # Nodes

    def tell(self, node: SimulatedNode, what: What) -> None:
        """Write down what happened to a node."""
        self._note(Entry(self._clock.tick(), node.name, what))

    def look(self, node: SimulatedNode) -> None:
        """Look at what a transaction of a node has changed; called before anybody else can write."""
        self.found += self._rows.changes(node)
        for row_id in self._rows.dead_ids():
            self._deaths.setdefault(row_id, self._clock.monotonic_ns())

    # Runs

    def begin(self, node: SimulatedNode, ctx: TaskContext, name: str) -> str:
        """Write down that a handler was called; return what names the run."""
        run, task = self._ref("run"), ctx.task
        entry = Entry(self._clock.tick(), node.name, What.BEGUN, name, run, group_of(name), task.attempts)
        self._note(entry)
        if not self._rows.is_run_by(task) and not node.is_lapsed():
            self.found.append(f"{name}: {run} begins on {node.name} with a token that is not the row's")
        if self._sure(task.next_attempt_at_ns) and task.next_attempt_at_ns > self._clock.now_ns():
            self.found.append(f"{name}: {run} begins before its row is due")
        return run

    def end(
        self, run: str, came: Came, ctx: TaskContext, due_s: float | None = None, *, completed: bool = False
    ) -> None:
        """Write down how a handler is about to end, and in how long its task is due again."""
        if came == Came.FAILED:
            number = ctx.task.attempts + 1
            due_s = backoff_ns(number, POLICY.initial_ns, POLICY.factor, POLICY.cap_ns) / _S
        name, due_ns = ctx.task.origin or "", self._in(due_s)
        self._note(
            Entry(self._clock.tick(), "", What.ENDED, name, run, came=came, completed=completed, due_ns=due_ns)
        )

    def buffered(self, run: str, name: str, kind: str) -> None:
        """Write down that a run asks for another task together with its outcome."""
        self._wish(What.BUFFERED, name, run, kind, None)

    # Requests

    def ask(self, name: str, kind: str, not_before_s: float | None = None) -> str:
        """Write down that a task is about to be enqueued; return what names the request."""
        ref = self._ref("ask")
        self._wish(What.ASKED, name, ref, kind, not_before_s)
        return ref

    def accepted(self, name: str, ref: str) -> None:
        """Write down that an enqueue has returned."""
        self._note(Entry(self._clock.tick(), "", What.ACCEPTED, name, ref))

    def pulled(self, name: str, in_ns: int) -> None:
        """Write down that a task is about to be pulled in."""
        self._note(Entry(self._clock.tick(), "", What.PULLED, name, due_ns=self._clock.monotonic_ns() + in_ns))

    def cancelled(self, name: str) -> None:
        """Write down that a task is about to be cancelled."""
        self._note(Entry(self._clock.tick(), "", What.CANCELLED, name))

    # The end

    def look_back(self, max_crashes: int) -> Iterator[str]:
        """Say what must not have happened, now that everything has come to its end."""
        # What a clock set forward has passed over is due since then only, however long ago its deadline seems now.
        live = [
            LiveRow(name, state, max(due_ns - self._clock.offset_ns, self._clock.set_at_ns))
            for name, state, due_ns in self._rows.live()
        ]
        dead = [
            DeadRow(name, reason, attempts, self._deaths[row_id])
            for row_id, name, reason, attempts in self._rows.dead()
        ]
        effects = [Effect(*row) for row in self._rows.effects()]
        yield from violations(
            self._entries,
            live,
            dead,
            effects,
            converged_at_ns=self._clock.monotonic_ns() - _MARGIN_NS,
            max_crashes=max_crashes,
        )
        seen = {entry.task for entry in self._entries if entry.what == What.BEGUN} | {row.task for row in live}
        for name in sorted(self.never & seen):
            yield f"{name}: was enqueued in a transaction that was rolled back, and came all the same"

    def _wish(self, what: What, name: str, ref: str, kind: str, not_before_s: float | None) -> None:
        ends = kind != RECURRING
        expires_ns = self._sure(self._clock.monotonic_ns() + nanoseconds(POLICY.expires_after)) or 0
        self._note(
            Entry(
                self._clock.tick(),
                "",
                what,
                name,
                ref,
                due_ns=self._in(not_before_s),
                expires_ns=expires_ns if ends else None,
                max_attempts=POLICY.max_attempts if ends else None,
            )
        )

    def _in(self, seconds: float | None) -> int | None:
        return None if seconds is None else self._sure(self._clock.monotonic_ns() + int(seconds * _S))

    def _sure(self, at_ns: int) -> int | None:
        """Return a time by which something is due on the wall clock; `None` where that is set in this run."""
        return None if "clock" in self._faults.present else at_ns

    def _ref(self, what: str) -> str:
        self._refs += 1
        return f"{what}{self._refs}"

    def _note(self, entry: Entry) -> None:
        self._entries.append(entry)
        due = "" if entry.due_ns is None else f"due {entry.due_ns / _S:.3f}"
        words = (entry.node, entry.what, entry.task, entry.ref, entry.came or "", due)
        self.say(" ".join(word for word in words if word))
