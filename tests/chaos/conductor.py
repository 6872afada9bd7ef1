"""One round of chaos on a fresh database: work comes in, processes are killed, then peace, and all is counted."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.chaos import database, fate, journal
from tests.chaos.fate import Fate
from tests.chaos.figures import Figures
from tests.chaos.host import Host
from tests.chaos.journal import Journal
from tests.chaos.victim import Victim
from tests.engine.rows import sql
from tests.ledger import Effect, Entry, What, violations

_NODES = 4
_LEASE_S = 0.5
_NAP_S = (2.0, 3.5)
_LIVE_S = (0.0, 1.0)
_ARMED_S = 4.0
_MAX_CRASHES = 3
_TICK_S = 0.01
_SETTLE_S = 60.0
"""How long a file may take to settle that nobody disturbs any more; far above what it does."""
_POSTED = ".4"
"""How the names of tasks end that are to come with a letter."""
_HOPELESS = 10
"""So many processes may end by themselves before the round is given up."""
_AWAKENING_NS = 1_000_000_000
"""How long a process that was halted may take to notice that its lease is lost."""
_LATE_NS = 2_000_000_000
"""How long what recurs may be due before it runs, when everything is at peace."""


class Round:
    """One database and the processes that serve it.

    Attributes:
        figures: What it came to.
        violations: What must not have happened.
    """

    def __init__(
        self,
        folder: Path,
        seed: str,
        manners: Sequence[str],
        *,
        sabotage: str = "",
        sorts: Sequence[str] = (),
        on: str = database.SQLITE,
    ) -> None:
        """Prepare a round in `folder`, which is empty.

        Args:
            folder: Where everything is kept.
            seed: What decides everything that is not a matter of time.
            manners: How to kill, one for each kill: `random`, `halted`, or a crash point.
            sabotage: How the processes do wrong, if they do.
            sorts: The only sorts of tasks to ask for; all by default.
            on: The sort of database.
        """
        self.figures = Figures(rounds=1)
        self.violations: list[str] = []
        self._folder = folder
        self._seed = seed
        self._rng = random.Random(seed)
        self._waiting = list(manners)
        self._sabotage = sabotage
        self._sorts = sorts
        self._on = on
        self._url = ""
        self._numbers = itertools.count(1)
        self._serving: dict[int, Fate] = {}
        self._killed: list[Fate] = []

    def play(self) -> None:
        """Play it to its end."""
        began_s = time.monotonic()
        with ExitStack() as stack:
            pen = Journal(self._folder / "journal", "host")
            stack.callback(pen.close)
            self._url = stack.enter_context(database.fresh(self._on, self._folder))
            host = Host(self._url, pen, random.Random(f"{self._seed} host"), self._sorts)
            stack.callback(host.close)
            stack.callback(self._close)
            with host.acting():
                self._disturb()
            settled_ns = self._settle(host)
            self._audit(host, settled_ns)
        self.figures.seconds = time.monotonic() - began_s

    def _disturb(self) -> None:
        for slot in range(_NODES):
            self._start(slot)
        while any(each.manner != fate.SPARED for each in self._serving.values()):
            self._tend()

    def _settle(self, host: Host) -> int:
        """Wait until all is done; return when everything that was due then should have been."""
        host.wake_sleepers()
        deadline_s = time.monotonic() + _SETTLE_S
        while host.undone():
            if time.monotonic() > deadline_s:
                settled_ns = time.monotonic_ns()
                break
            self._tend()
        else:
            settled_ns = time.monotonic_ns() - _LATE_NS
        for each in self._serving.values():
            self._check_status(each.victim, each.victim.release())
        return settled_ns

    def _tend(self) -> None:
        """Let a moment pass, and start anew what has gone."""
        time.sleep(_TICK_S)
        for slot, each in list(self._serving.items()):
            each.go_on()
            if not each.victim.is_gone:
                continue
            if each.victim.was_killed:
                self._killed.append(each)
            else:
                self._check_status(each.victim, each.victim.release())
            if each.manner != fate.SPARED and not each.victim.was_killed:
                self._waiting.append(each.manner)
            each.victim.close()
            self._start(slot)

    def _start(self, slot: int) -> None:
        name = f"n{slot}.{next(self._numbers)}"
        manner = self._waiting.pop(0) if self._waiting else fate.SPARED
        options = {
            "database": self._url,
            "journal": str(self._folder / "journal"),
            "node": name,
            "lease_s": _LEASE_S,
            "max_crashes": _MAX_CRASHES,
            "sabotage": self._sabotage,
        }
        armed = f"{manner}:{self._rng.randint(1, 12)}" if "." in manner else None
        victim = Victim(name, "tests.chaos.process", options, self._folder, armed)
        self._serving[slot] = Fate(victim, manner, self._rng, live_s=_LIVE_S, armed_s=_ARMED_S, nap_s=_NAP_S)

    def _check_status(self, victim: Victim, status: int) -> None:
        if status != 0:
            self.violations.append(f"{victim.name} ended with status {status}; its log may say why")
            if len(self.violations) > _HOPELESS:
                raise RuntimeError(f"no process stays alive: see {self._folder / 'log'}")

    def _audit(self, host: Host, settled_ns: int) -> None:
        entries = journal.read(self._folder / "journal")
        last_ns: dict[str, int] = {}
        open_runs: dict[str, Entry] = {}
        for entry in entries:
            last_ns[entry.node] = max(entry.at_ns, last_ns.get(entry.node, 0))
            if entry.what == What.BEGUN:
                open_runs[entry.ref] = entry
            elif entry.what == What.ENDED:
                del open_runs[entry.ref]
        tell = {entry.node for entry in entries if entry.what == What.LAPSED}
        poisoned = {entry.node for entry in open_runs.values() if entry.task.startswith(fate.POISON)}
        for each in self._killed:
            name = each.victim.name
            self.figures.kills[each.came or (fate.POISON if name in poisoned else each.manner)] += 1
            entries.append(Entry(max(each.victim.alive_at_ns, last_ns.get(name, 0)), name, What.KILLED))
            if each.victim.nap_ns is not None and name not in tell:  # it may have been killed before it noticed
                halted_ns, resumed_ns = each.victim.nap_ns
                entries.append(Entry(halted_ns, name, What.LAPSED))
                entries.append(Entry(resumed_ns + _AWAKENING_NS, name, What.RESUMED))
        offset_ns = time.time_ns() - time.monotonic_ns()
        live, dead = host.live_rows(offset_ns), host.dead_rows(offset_ns)
        effects = [Effect(*row) for row in sql(self._url, "SELECT text, ref FROM effect")]
        letters = {text for (text,) in sql(self._url, "SELECT text FROM letter")}
        self.violations += violations(
            entries, live, dead, effects, converged_at_ns=settled_ns, max_crashes=_MAX_CRASHES
        )
        there = {entry.task for entry in entries if entry.what == What.BEGUN}
        there |= {row.task for row in live} | {row.task for row in dead}
        posted = {task for task in there if task.endswith(_POSTED)}
        for text in posted ^ letters:
            self.violations.append(f"{text}: {'it' if text in posted else 'its letter'} came without the other")
        whats = Counter(entry.what for entry in entries)
        asked = {entry.ref: entry for entry in entries if entry.what == What.ASKED}
        accepted = [asked[entry.ref] for entry in entries if entry.what == What.ACCEPTED and entry.ref in asked]
        self.figures.lapses = len(tell)
        self.figures.tasks = len(there | {entry.task for entry in accepted})
        self.figures.requests = len(accepted)
        self.figures.runs = whats[What.BEGUN]
        self.figures.unfinished = len(open_runs)
        self.figures.effects = len(effects)
        self.figures.dead = Counter(row.reason for row in dead)

    def _close(self) -> None:
        for each in self._serving.values():
            each.victim.close()
