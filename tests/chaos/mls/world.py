"""The people of the chaos: two who look after the groups, some who leave, some who get new devices, a witness."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

from tests.chaos import database
from tests.chaos.mls.process import PLUGINS, impatient

from callboard import Engine, ServiceUnavailable
from callboard_rine import Device, LocalNetwork, create_group

HOSTS = ("ada", "bob")
"""Super-admins of every group, each with an engine that is killed."""
WITNESS = "zoe"
LEAVERS = ("lea", "leo", "liv", "lou", "lex", "lyn")
STAYERS = ("sam", "sue")
GROUPS = (b"climbing", b"book club", b"family")

_MOST_INSTALLATIONS = 12


class World:
    """Everybody's installations and what they are up to.

    Attributes:
        network: The network they are on.
        devices: All installations but the hosts', by name; the inbox is what comes before the dash.
        left: For each group the inboxes that asked to leave it.
    """

    def __init__(self, folder: Path, rng: random.Random, stack: ExitStack, on: str) -> None:
        """Found the groups in `folder`, which is empty, and tell the hosts' engines, on this sort of database."""
        self._folder = folder
        self._rng = rng
        self._stack = stack
        self.network = stack.enter_context(LocalNetwork(folder / "network.db"))
        self.devices: dict[str, Device] = {}
        self.left: dict[bytes, set[str]] = {group_id: set() for group_id in GROUPS}
        self._requests = [(inbox_id, group_id) for inbox_id in LEAVERS for group_id in GROUPS]
        rng.shuffle(self._requests)
        names = [f"{inbox_id}-phone" for inbox_id in (*HOSTS, WITNESS, *LEAVERS, *STAYERS)]
        for name in [*names, "lea-laptop", "leo-laptop"]:
            self.open(name).enroll()
        founder = self.devices["ada-phone"]
        inbox_ids = (*HOSTS, WITNESS, *LEAVERS, *STAYERS)
        for group_id in GROUPS:
            create_group(founder, group_id, inbox_ids)
            self.network.directory.promote(group_id, "bob")
        for device in self.devices.values():
            device.join_groups()
        self._databases: dict[str, str] = {}
        for inbox_id in HOSTS:
            own = folder / inbox_id
            own.mkdir()
            self._databases[inbox_id] = stack.enter_context(database.fresh(on, own))
        self._hosts = {self.devices[f"{inbox_id}-phone"].installation_id for inbox_id in HOSTS}
        for inbox_id in HOSTS:
            self.devices.pop(f"{inbox_id}-phone").close()
            with ExitStack() as engines:
                engine = self.engine(inbox_id)
                engines.callback(engine.stop)
                for group_id in GROUPS:
                    engine.group(group_id).created(
                        inbox_id, members=inbox_ids, super_admins=HOSTS, consent="allowed"
                    )

    def store(self, name: str) -> Path:
        """Return where an installation lives."""
        return self._folder / name

    def database(self, inbox_id: str) -> str:
        """Return where a host's engine keeps its tasks."""
        return self._databases[inbox_id]

    def engine(self, inbox_id: str) -> Engine:
        """Return an engine on a host's database that executes nothing."""
        plugins = [impatient(module) for module in PLUGINS]
        return Engine(self.database(inbox_id), plugins=plugins, execute=False, synchronous="NORMAL")

    def open(self, name: str) -> Device:
        """Open an installation, or make it."""
        device = Device(self.store(name), self.network, inbox_id=name.partition("-")[0])
        self._stack.callback(device.close)
        self.devices[name] = device
        return device

    def happen(self) -> tuple[str, bytes] | None:
        """Have somebody leave or get a device, or the network in trouble.

        Returns:
            The inbox and the installation if there is a new one to announce.
        """
        faults = self.network.faults
        if self._rng.random() < 0.2:
            faults.outage(self._rng.randint(1, 6))
        if self._rng.random() < 0.2:
            faults.reject_commit(self._rng.choice(GROUPS))
        made = [name for name in self.devices if name.partition("-")[0] in STAYERS]
        try:
            if self._requests and self._rng.random() < 0.6:
                self._leave()
            elif len(made) < _MOST_INSTALLATIONS:
                inbox_id = self._rng.choice(STAYERS)
                device = self.open(f"{inbox_id}-{len(made)}")
                device.enroll()
                if self._rng.random() < 0.3:
                    faults.hide_installation(device.installation_id, lookups=3)
                return inbox_id, device.installation_id
        except ServiceUnavailable:
            return None  # tried again, and what was made is in the directory then
        return None

    def _leave(self) -> None:
        inbox_id, group_id = self._requests[-1]
        self.left[group_id].add(inbox_id)
        self.devices[f"{inbox_id}-phone"].request_leave(group_id)
        self._requests.pop()

    def calm_down(self) -> None:
        """End all trouble, and do what it kept from being done."""
        self.network.faults.outage(0)
        for group_id in GROUPS:
            self.network.faults.reject_commit(group_id, 0)
        for device in self.devices.values():
            device.enroll()
        if self._requests and self._requests[-1][0] in self.left[self._requests[-1][1]]:
            self._leave()

    def is_settled(self) -> bool:
        """Tell whether everybody is where they should be, as a member sees it who stays."""
        for group_id in GROUPS:
            with self.devices[f"{STAYERS[0]}-phone"].group(group_id) as group:
                present = group.installation_ids()
            if present - self._hosts != self.expected(group_id):
                return False
        return True

    def expected(self, group_id: bytes) -> frozenset[bytes]:
        """Return the installations that should be in a group in the end, but for the hosts'."""
        return frozenset(
            device.installation_id
            for name, device in self.devices.items()
            if name.partition("-")[0] not in self.left[group_id]
        )
