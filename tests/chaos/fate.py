"""How a process goes: what is done to it, and when, from its start on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.victim import Victim

RANDOM, HALTED, POISON = "random", "halted", "poison"
"""Manners of dying beside the crash points: at some instant, while halted, by a task that kills its process."""

SPARED = ""


@dataclass
class Fate:
    """A process and what is to come.

    Attributes:
        victim: The process.
        manner: How it is to be killed: `random`, `halted` or a crash point; `SPARED`: not at all.
        came: How it was killed, as far as this side knows.
    """

    victim: Victim
    manner: str
    came: str
    _plan: list[tuple[float, Callable[[], None]]]

    def go_on(self) -> None:
        """Do what is due."""
        while self._plan and self._plan[0][0] <= time.monotonic() and not self.victim.is_gone:
            self._plan.pop(0)[1]()


def decide(
    victim: Victim,
    manner: str,
    rng: random.Random,
    *,
    live_s: tuple[float, float],
    armed_s: float,
    nap_s: tuple[float, float] | None = None,
) -> Fate:
    """Return what comes of a process that has just been started.

    Args:
        victim: The process.
        manner: How it is to be killed.
        rng: What decides.
        live_s: The shortest and the longest time after which it is killed at some instant.
        armed_s: How much longer an armed one may live that does not come by its point.
        nap_s: For how long some of them are halted; None: never.
    """
    fate = Fate(victim, manner, "", [])
    at_s = time.monotonic() + rng.uniform(*live_s)
    naps = manner != SPARED and rng.random() < 0.15

    def kill() -> None:
        fate.came = HALTED if manner == HALTED else RANDOM
        victim.kill()

    if nap_s is not None and (manner == HALTED or naps):
        fate._plan.append((at_s, victim.halt))
        at_s += rng.uniform(*nap_s)
        if manner != HALTED:
            fate._plan.append((at_s, victim.resume))
            at_s += rng.uniform(*live_s)
    if manner in (RANDOM, HALTED):
        fate._plan.append((at_s, kill))
    elif manner != SPARED:
        fate._plan.append((at_s + armed_s, kill))
    elif rng.random() < 0.3:
        fate._plan.append((at_s, victim.retire))
    return fate
