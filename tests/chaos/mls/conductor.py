"""One round of chaos with groups: members come and go while their hosts are killed, then all is counted."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.chaos import fate
from tests.chaos.database import SQLITE
from tests.chaos.fate import Fate
from tests.chaos.figures import Figures
from tests.chaos.mls import witness
from tests.chaos.mls.world import GROUPS, HOSTS, WITNESS, World
from tests.chaos.victim import Victim

from callboard_rine import Device, RineBackend, database
from callboard_rine.demo.convergence import is_converged, keeps_out

_LIVE_S = (0.0, 1.0)
_ARMED_S = 3.0
_EVENT_S = 0.3
_TICK_S = 0.01
_SETTLE_S = 60.0
_ROTATION_S = 1
_ENDING = ("process_pending_self_remove", "add_missing_installations")


class MlsRound:
    """Some groups, and two hosts that look after them.

    Attributes:
        figures: What it came to.
        violations: What must not have happened.
    """

    def __init__(self, folder: Path, seed: str, manners: Sequence[str], *, on: str = SQLITE) -> None:
        """Prepare a round in `folder`, which is empty; the rest is as for `Round`, but nobody is `halted`."""
        self.figures = Figures(rounds=1)
        self.violations: list[str] = []
        self._folder = folder
        self._rng = random.Random(seed)
        self._waiting = list(manners)
        self._on = on
        self._numbers = itertools.count(1)
        self._serving: dict[str, Fate] = {}

    def play(self) -> None:
        """Play it to its end."""
        began_s = time.monotonic()
        synchronous = database.SYNCHRONOUS
        database.SYNCHRONOUS = "OFF"  # processes get killed here, the power stays on
        try:
            with ExitStack() as stack:
                world = World(self._folder, self._rng, stack, self._on)
                stack.callback(self._close)
                self._disturb(world)
                world.calm_down()
                self._settle(world)
                self._audit(world)
        finally:
            database.SYNCHRONOUS = synchronous
        self.figures.seconds = time.monotonic() - began_s

    def _disturb(self, world: World) -> None:
        for host in HOSTS:
            self._start(host, world)
        next_s = 0.0
        while any(each.manner != fate.SPARED for each in self._serving.values()):
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + self._rng.uniform(0, 2 * _EVENT_S)
                added = world.happen()
                if added is not None:
                    for each in self._serving.values():
                        each.victim.tell(json.dumps([added[0], added[1].hex()]))
            self._tend(world)

    def _settle(self, world: World) -> None:
        """Start every host anew, so that it hears of what it missed, and wait until nothing is left to do."""
        for host, each in list(self._serving.items()):
            self._release(each)
            self._start(host, world)
        deadline_s = time.monotonic() + _SETTLE_S
        engines = [world.engine(host) for host in HOSTS]
        while time.monotonic() < deadline_s:
            self._tend(world)
            busy = any(engine.tasks(kind=kind) for engine in engines for kind in _ENDING)
            pending = any(True for engine in engines for _ in engine.groups(pending=True))
            if not busy and not pending and world.is_settled():
                break
        else:
            self.violations.append(f"the hosts have not come to an end in {_SETTLE_S:.0f} s")
        for each in self._serving.values():
            self._release(each)
        for engine in engines:
            self.violations += [f"{dead.kind} died as {dead.reason}" for dead in engine.dead_tasks()]
            engine.stop()

    def _tend(self, world: World) -> None:
        """Let a moment pass, and start anew what has gone."""
        time.sleep(_TICK_S)
        for host, each in list(self._serving.items()):
            each.go_on()
            if not each.victim.is_gone:
                continue
            if each.victim.was_killed:
                self.figures.kills[each.came or each.manner] += 1
                each.victim.close()
            else:
                self._release(each)
            self._start(host, world)

    def _start(self, host: str, world: World) -> None:
        name = f"{host}.{next(self._numbers)}"
        manner = self._waiting.pop(0) if self._waiting else fate.SPARED
        options = {
            "name": name,
            "store": str(world.store(f"{host}-phone")),
            "network": str(world.network.path),
            "database": world.database(host),
            "rotation_s": _ROTATION_S,
        }
        armed = f"{manner}:{self._rng.randint(1, 2)}" if "." in manner else None
        victim = Victim(name, "tests.chaos.mls.process", options, self._folder, armed)
        self._serving[host] = Fate(victim, manner, self._rng, live_s=_LIVE_S, armed_s=_ARMED_S)

    def _release(self, each: Fate) -> None:
        status = each.victim.release()
        if status != 0:
            self.violations.append(f"{each.victim.name} ended with status {status}; its log may say why")

    def _audit(self, world: World) -> None:
        zoe = f"{WITNESS}-phone"
        world.devices.pop(zoe).close()
        history = witness.memberships(world.store(zoe), world.network.path, GROUPS)
        world.open(zoe)
        for host in HOSTS:
            status = RineBackend(world.open(f"{host}-phone")).key_package_status()
            if not status.usable:
                self.violations.append(f"nobody can add {host}: {status.problem}")
        owners = {device.installation_id: name for name, device in world.devices.items()}
        for group_id in GROUPS:
            group, left = group_id.decode(), world.left[group_id]
            expected = world.expected(group_id)
            self.violations += witness.violations(group, history[group_id], owners, left, expected)
            self._check_reading(world, group_id)
            self.figures.commits += len(history[group_id]) - 1
            self.figures.evicted += len(history[group_id][0] - history[group_id][-1])
            self.figures.added += len(history[group_id][-1] - history[group_id][0])

    def _check_reading(self, world: World, group_id: bytes) -> None:
        remaining: list[Device] = []
        evicted: list[Device] = []
        for name, device in world.devices.items():
            device.join_groups()
            is_out = name.partition("-")[0] in world.left[group_id]
            (evicted if is_out else remaining).append(device)
        if not keeps_out(group_id, remaining[0], evicted):
            self.violations.append(f"{group_id.decode()}: somebody who left still reads")
        if not is_converged(group_id, remaining):
            self.violations.append(f"{group_id.decode()}: forked, or not everybody reads everybody")
        epochs = [entry.epoch for entry in world.network.delivery.read(group_id) if entry.epoch is not None]
        if epochs != list(range(epochs[0], epochs[0] + len(epochs))):
            self.violations.append(f"{group_id.decode()}: its epochs are {epochs}, not one commit for each")

    def _close(self) -> None:
        for each in self._serving.values():
            each.victim.close()
