"""Many rounds of chaos, of both parts, until so many processes have been killed."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos import fate
from tests.chaos.conductor import Round
from tests.chaos.database import SQLITE
from tests.chaos.figures import Figures
from tests.chaos.mls.conductor import MlsRound

from callboard.testing import CRASH_POINTS
from callboard_rine import CRASH_POINTS as RINE_CRASH_POINTS

ENGINE, MLS = "engine", "mls"

_KILLS = {ENGINE: 25, MLS: 10}
"""Kills in one round: few, so that its files stay small; enough to be worth the wait at its end."""
_MLS_SHARE = 0.2
_ENOUGH = 200
"""In that many kills each point must have come up."""


class Campaign:
    """One run of `python -m tests.chaos`.

    Attributes:
        totals: What each part came to.
        violations: What must not have happened.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        kills: int,
        say: Callable[[str], None],
        sabotage: str = "",
        on: str = SQLITE,
    ) -> None:
        """Prepare to kill so many processes, with files in `folder`, telling `say` how it goes."""
        self.totals = {ENGINE: Figures(), MLS: Figures()}
        self.violations: list[str] = []
        self._folder = folder
        self._seed = seed
        self._kills = kills
        self._say = say
        self._sabotage = sabotage
        self._on = on
        rng = random.Random(seed)
        at_instants = [fate.RANDOM] * (len(CRASH_POINTS) - 2)
        self._deals = {
            ENGINE: _dealer(rng, [*CRASH_POINTS, *at_instants, fate.HALTED, fate.HALTED]),
            MLS: _dealer(rng, [*RINE_CRASH_POINTS, *at_instants, *CRASH_POINTS]),
        }

    def play(self, limit_s: float | None = None) -> None:
        """Play rounds until there were enough kills, beginning none after so long."""
        began_s = time.monotonic()
        number = 0
        while self._killed() < self._kills and (limit_s is None or time.monotonic() - began_s < limit_s):
            number += 1
            wants_mls = self.totals[MLS].kills.total() < _MLS_SHARE * self._killed()
            self._play_round(MLS if wants_mls else ENGINE, number)
            self._say(f"round {number}: {self._killed()} kills in {time.monotonic() - began_s:.0f} s")
        if self._killed() >= _ENOUGH:
            self.violations += [f"the crash point {point} was never hit" for point in self._missed()]
        if not self.violations:
            shutil.rmtree(self._folder)

    def summary(self) -> list[str]:
        """Return the figures in words."""
        engine, mls = self.totals[ENGINE], self.totals[MLS]
        dead = ", ".join(f"{count} {reason}" for reason, count in sorted(engine.dead.items()))
        points = [*CRASH_POINTS, *RINE_CRASH_POINTS]
        hit = len(set(points) - set(self._missed()))
        return [
            f"engine: {_told(engine)}; {engine.tasks} tasks, {engine.requests} requests, {engine.runs} runs"
            f" ({engine.unfinished} of them cut off), {engine.effects} effects, {engine.lapses} leases lost;"
            f" dead: {dead or 'none'}",
            f"mls: {_told(mls)}; {mls.commits} commits, {mls.evicted} installations evicted, {mls.added} added",
            f"{self._killed()} kills, {hit} of {len(points)} crash points hit,"
            f" {engine.seconds + mls.seconds:.0f} s, {len(self.violations)} violations",
        ]

    def _play_round(self, part: str, number: int) -> None:
        place = self._folder / f"{part}-{number}"
        place.mkdir(parents=True)
        seed = f"{self._seed} {number}"
        manners = [self._deals[part]() for _ in range(min(_KILLS[part], self._kills - self._killed()))]
        one = (
            MlsRound(place, seed, manners, on=self._on)
            if part == MLS
            else Round(place, seed, manners, sabotage=self._sabotage, on=self._on)
        )
        one.play()
        self.totals[part] += one.figures
        self.violations += [f"{place.name}: {violation}" for violation in one.violations]
        if not one.violations:
            shutil.rmtree(place)

    def _killed(self) -> int:
        return sum(total.kills.total() for total in self.totals.values())

    def _missed(self) -> list[str]:
        engine, mls = self.totals[ENGINE].kills, self.totals[MLS].kills
        missed = [point for point in CRASH_POINTS if not engine[point]]
        return missed + [point for point in RINE_CRASH_POINTS if not mls[point]]


def _dealer(rng: random.Random, cards: Sequence[str]) -> Callable[[], str]:
    """Return a function that deals the cards in random order, again and again."""
    deck: list[str] = []

    def deal() -> str:
        if not deck:
            deck.extend(cards)
            rng.shuffle(deck)
        return deck.pop()

    return deal


def _told(total: Figures) -> str:
    kills = ", ".join(f"{count} {how}" for how, count in sorted(total.kills.items()))
    return f"{total.kills.total()} kills ({kills or 'none'}) in {total.rounds} rounds and {total.seconds:.0f} s"
