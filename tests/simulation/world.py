"""One run of the simulation: nodes, a host and faults, and the choices of who goes on and when time passes.

Whatever is left to chance is drawn from numbers that follow from the seed, so a run can be had again.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tests.ledger import What
from tests.simulation.book import Book
from tests.simulation.clock import VirtualClock
from tests.simulation.faults import Faults
from tests.simulation.handlers import ASYNC, BLOCKING, RECURRING
from tests.simulation.host import HORIZON_S, Host
from tests.simulation.node import MAX_CRASHES, SimulatedNode
from tests.simulation.rows import Rows
from tests.simulation.stage import Act, Stage

from callboard import Engine
from callboard._clock import NEVER_NS

DEEDS = 24
"""How much the host does in a run, unless it is told otherwise."""

_S = 10**9

_CONVERGED_S = 900.0
"""How long undisturbed nodes have to do everything: far more than all retries together."""

_MAX_STEPS = 100_000


class Verdict(NamedTuple):
    """What came of one run.

    Attributes:
        violations: what must not have happened; empty when all is well.
        trace: what happened, one line each.
        steps: how many choices were made.
    """

    violations: list[str]
    trace: list[str]
    steps: int


class World:
    """One machine.

    Attributes:
        calm: whether nothing goes wrong and there is one node, which then must do without looking for what others
            have written: every wake has to come, and at the right time.
        throttled: whether kinds have limits, and are paused after few failures.
        writer: who holds the database's one write lock.
    """

    def __init__(self, seed: int, folder: Path, *, deeds: int = DEEDS, left_out: Collection[str] = ()) -> None:
        """Prepare a run with so many deeds of the host, and without the faults that are left out."""
        draw = random.Random(f"{seed} world")
        random.seed(f"{seed} engine")  # the engine draws its jitter
        self.path = str(folder / f"{seed}.db")
        self._reader = _make_file(self.path)
        self.rows = Rows(self._reader)
        self.calm = draw.random() < 0.2
        self.throttled = seed % 4 == 1 and not self.calm
        self.faults = Faults(seed, left_out, calm=self.calm)
        self.clock = VirtualClock()
        self.stage = Stage(self.clock.monotonic_ns)
        self.book = Book(self.clock, self.faults, self.rows)
        self.host = Host(self, seed, deeds)
        self.writer: Act | None = None
        self.nodes: list[SimulatedNode] = []
        self._draw_order = random.Random(f"{seed} order")
        self._draw_work = random.Random(f"{seed} work")
        self._steps = 0
        self._started = 0
        self._restart_at_ns: int | None = None
        self._calm_since_ns = 0
        self._workers = draw.randrange(1, 4)
        self._count = 1 if self.calm else draw.randrange(1, 4)
        self._old_builds = not self.calm and draw.random() < 0.3
        self._slow_s = draw.choice((0.0, 0.3, 2.0))

    def run(self) -> Verdict:
        """Play it to the end and look at what is left."""
        for _ in range(self._count):
            self._start_node()
        found = self.book.found
        try:
            self._play()
        except Exception as error:
            found.append(f"{type(error).__name__} got out: {error}")
        if not found:
            found += self.book.look_back(MAX_CRASHES)
        verdict = Verdict(list(found), list(self.book.trace), self._steps)
        self.stage.clear()
        for node in self.nodes:
            node.end()
        self._reader.close()
        return verdict

    def remove(self) -> None:
        """Remove the run's files."""
        for file in Path(self.path).parent.glob(f"{Path(self.path).name}*"):
            file.unlink()

    # What nodes and handlers ask

    def kill(self, node: SimulatedNode) -> None:
        """End a node's process as SIGKILL does; does not return to a thread of that process."""
        if not node.alive:
            return
        node.alive = False
        self.book.tell(node, What.KILLED)
        if self.writer is not None and self.writer.owner is node:
            self.writer = None
        node.store.kill()
        self.stage.leave_standing(node)

    def dither(self) -> None:
        """Let others go on between two steps of a thread, as any machine may."""
        if self.stage.current is not None and self._draw_order.random() < 0.3:
            self.stage.pause()

    def pauses_ns(self) -> list[int]:
        """Return how often a handler pauses, and how long."""
        return [int(self._draw_work.uniform(0, self._slow_s) * _S) for _ in range(self._draw_work.randrange(4))]

    def followers(self, name: str) -> list[str]:
        """Return the names of tasks that a run of `name` asks for together with its outcome."""
        return [f"{name}+"] if name.count("+") < 2 and self._draw_work.random() < 0.2 else []

    def ending(self) -> str:
        """Return how a run that does not fail ends."""
        endings = ("done", "complete", "complete")
        return self._draw_work.choice(endings if self.faults.over else (*endings, "again", "later", "discard"))

    # The course of a run

    def _play(self) -> None:
        stuck = 0
        while not self.book.found and self._steps < _MAX_STEPS:
            self._steps += 1
            mood = self._draw_order.random()
            if mood < 0.1:
                self._disturb()
            elif mood < 0.2:
                self._attend()
            elif mood < 0.22:
                self._let_time_pass()
            if self._go_on() or self._attend():
                continue
            if self.faults.over and self._is_settled():
                return
            if not self.faults.over and not self.host.due_ns and self._is_late():
                self._calm_down()
            self._look_at_idle_machine()
            stuck = 0 if self._let_time_pass() else stuck + 1
            if stuck > 2:  # once may be because something has just been made ready
                self.book.found.append(f"nothing is ready and nothing will be: {self.rows.left()}")
        if not self.book.found:
            self.book.found.append(f"did not come to an end in {self._steps} steps")

    def _go_on(self) -> bool:
        """Let one of those that can go on do so; `False` when there is none."""
        now_ns = self.clock.tick()
        ready = [act for act in self.stage.acts if act.is_ready(now_ns) and not self._is_frozen(act)]
        calls = [node for node in self.nodes if node.running and node.alive and node.pool.has_room()]
        calls = [node for node in calls if not node.is_frozen()]
        if not ready and not calls:
            return False
        chosen = self._draw_order.randrange(len(ready) + len(calls))
        if chosen < len(ready):
            self.stage.resume(ready[chosen])
        else:
            pool = calls[chosen - len(ready)].pool
            pool.begin(self._draw_order.randrange(len(pool.calls)))
        return True

    def _is_frozen(self, act: Act) -> bool:
        return isinstance(act.owner, SimulatedNode) and act.owner.is_frozen()

    def _attend(self) -> bool:
        """Have come what is due; return whether anything was."""
        came = [node.ring_if_due() for node in self.nodes]
        while self.host.due_ns and self.host.due_ns[0] <= self.clock.monotonic_ns():
            self.host.act()
            came.append(True)
        up = [node for node in self.nodes if node.alive and not node.stopping]
        if len(up) < self._count and self._restart_at_ns is None:
            self._restart_at_ns = self.clock.monotonic_ns() + self._draw_order.randrange(4 * _S)
        if self._restart_at_ns is not None and self._restart_at_ns <= self.clock.monotonic_ns():
            self._restart_at_ns = None
            self._start_node()
        for node in self.nodes:
            self._watch_lease(node)
        return any(came)

    def _let_time_pass(self) -> bool:
        """Go on to when something is due next; `False` when nothing will ever be."""
        dues = [due for node in self.nodes if node.alive for due in (node.due_ns(), node.frozen_until_ns)]
        dues += [act.wake_ns for act in self.stage.acts if act.wake_ns is not None]
        dues += self.host.due_ns[:1]
        if self._restart_at_ns is not None:
            dues.append(self._restart_at_ns)
        until_ns = min((due for due in dues if due > self.clock.monotonic_ns()), default=NEVER_NS)
        if until_ns == NEVER_NS:
            return False
        self.clock.advance_to(until_ns)
        for node in self.nodes:
            self._watch_lease(node)
        return True

    def _disturb(self) -> None:
        """Let something go wrong."""
        now_ns = self.clock.monotonic_ns()
        for node in [node for node in self.nodes if node.alive and not node.stopping]:
            if self.faults.happens("crash", 0.005):
                self.kill(node)
            elif self.faults.happens("freeze", 0.005) and not node.is_frozen():
                node.frozen_until_ns = now_ns + int(self.faults.amount("freeze", 0.5, 8) * _S)
                self.book.say(f"{node.name} is frozen until {node.frozen_until_ns / _S:.3f}")
            elif self.faults.happens("stop", 0.005) and node.running:
                self.book.say(f"{node.name} stops")
                node.stop()
        jump_ns = self.faults.clock_jump_ns()
        if jump_ns:
            self.clock.set_by(jump_ns)
            self.book.say(f"the wall clock is set by {jump_ns / _S:.1f} s")

    def _is_late(self) -> bool:
        return self.clock.monotonic_ns() > int((HORIZON_S + 2) * _S)

    def _calm_down(self) -> None:
        """Have nothing go wrong any more, and a node that knows every kind."""
        self.book.say("from here on nothing goes wrong")
        self.faults.over = True
        self._old_builds = False
        self._calm_since_ns = self.clock.monotonic_ns()
        for node in self.nodes:
            node.frozen_until_ns = 0
        if not self.calm:
            self._start_node()

    def _is_settled(self) -> bool:
        """Return whether all one-shots are done, or have had time enough."""
        since_ns = self.clock.monotonic_ns() - self._calm_since_ns
        if since_ns > int(_CONVERGED_S * _S):
            return True
        busy = any(node.is_busy() for node in self.nodes)
        return not busy and since_ns > 4 * _S and not self.rows.one_shots(self.clock.now_ns() + 60 * _S)

    def _look_at_idle_machine(self) -> None:
        """Find a task that is due while the machine sleeps: its wake did not come, or came too early."""
        now_ns = self.clock.monotonic_ns()
        if not self.calm or self.writer is not None or not all(node.sleeps(now_ns) for node in self.nodes):
            return
        for name in self.rows.claimable(self.clock.now_ns()):
            self.book.found.append(f"{name}: is due, and the node sleeps: it was not woken after the commit")

    def _start_node(self) -> None:
        self._started += 1
        old = self._old_builds and self._started % 2 == 1
        kinds = (BLOCKING, RECURRING) if old else (BLOCKING, ASYNC, RECURRING)
        node = SimulatedNode(self, f"n{self._started}", kinds, self._workers)
        self.book.say(f"{node.name} starts{' as an old build' if old else ''}")
        self.nodes.append(node)

    def _watch_lease(self, node: SimulatedNode) -> None:
        """Write down when others may take a node's tasks over, and when it knows again which are its own."""
        if not node.running or not node.alive:
            return
        if node.is_lapsed() and not node.lapsed:
            node.lapse()
        elif node.lapsed and not node.is_lapsed() and not node.stopping:
            node.lapsed = False
            self.book.tell(node, What.RESUMED)


def _make_file(path: str) -> sqlite3.Connection:
    """Copy a database with tables, which is made once for a folder; return a connection to the copy."""
    template = Path(path).parent / "template.db"
    if not template.exists():
        engine = Engine(f"sqlite:///{template}", plugins=[])
        engine.migrate()
        engine.stop()
        with closing(sqlite3.connect(template)) as connection:
            connection.execute("CREATE TABLE effect (task TEXT, ref TEXT)")
            connection.commit()
    shutil.copyfile(template, path)
    return sqlite3.connect(path, check_same_thread=False)
