"""How a process goes: what is done to it, and when, from the moment on at which it serves."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.chaos.victim import Victim

RANDOM, HALTED, POISON = "random", "halted", "poison"
"""Manners of dying beside the crash points: at some instant, while halted, by a task that kills its process."""

SPARED = ""

_EARLY = 0.1
"""The share of those killed at some instant that are killed while they start."""
_NAPPING = 0.2
"""The share of those to be killed that are halted before, and go on."""


class Fate:
    """A process and what is to come.

    Attributes:
        victim: The process.
        manner: How it is to be killed: `random`, `halted` or a crash point; `SPARED`: not at all.
        came: How this side killed it, if it did.
    """

    def __init__(
        self,
        victim: Victim,
        manner: str,
        rng: random.Random,
        *,
        live_s: tuple[float, float],
        armed_s: float,
        nap_s: tuple[float, float] | None = None,
    ) -> None:
        """Decide what comes of a process that has just been started.

        Args:
            victim: The process.
            manner: How it is to be killed.
            rng: What decides.
            live_s: The shortest and the longest time after which it is killed at some instant.
            armed_s: How much longer an armed one may live that does not come by its point.
            nap_s: For how long some of them are halted; None: never.
        """
        self.victim = victim
        self.manner = manner
        self.came = ""
        self._plan: list[tuple[float, Callable[[], None]]] = []
        early = manner == RANDOM and rng.random() < _EARLY
        self._serves_since_s = time.monotonic() if early else None
        at_s = rng.uniform(*live_s)
        if nap_s is not None and (manner == HALTED or (manner != SPARED and rng.random() < _NAPPING)):
            self._plan.append((at_s, victim.halt))
            at_s += rng.uniform(*nap_s)
            if manner != HALTED:
                self._plan.append((at_s, victim.resume))
                at_s += rng.uniform(*live_s)
        if manner in (RANDOM, HALTED):
            self._plan.append((at_s, self._kill))
        elif manner != SPARED:
            self._plan.append((at_s + armed_s, self._kill))
        elif rng.random() < 0.3:
            self._plan.append((at_s, victim.retire))

    def go_on(self) -> None:
        """Do what is due."""
        if self._serves_since_s is None:
            if not self.victim.serves:
                return
            self._serves_since_s = time.monotonic()
        lived_s = time.monotonic() - self._serves_since_s
        while self._plan and self._plan[0][0] <= lived_s and not self.victim.is_gone:
            self._plan.pop(0)[1]()

    def _kill(self) -> None:
        self.came = HALTED if self.manner == HALTED else RANDOM
        self.victim.kill()
