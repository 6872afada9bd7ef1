"""A network of real MLS clients in a temporary directory."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns

import pytest

from callboard_rine import Device, LocalNetwork, Message, RineBackend, create_group, database

GROUP = b"the group"


@dataclass
class Clock:
    """A clock that a test moves."""

    now_ns: int = field(default_factory=time_ns)

    def __call__(self) -> int:
        """Return the time, ns since the epoch."""
        return self.now_ns


@dataclass
class Stage:
    """A network and the devices on it.

    Attributes:
        path: The directory that all of it lives in.
        network: The network.
        clock: The clock of all devices.
    """

    path: Path
    network: LocalNetwork
    clock: Clock
    _stack: ExitStack

    def device(
        self, inbox_id: str, name: str = "1", crash_point: Callable[[str], None] = lambda name: None
    ) -> Device:
        """Make an installation of an inbox, known to everybody, or open it again."""
        device = Device(
            self.store(inbox_id, name),
            self.network,
            inbox_id=inbox_id,
            clock=self.clock,
            crash_point=crash_point,
        )
        self._stack.callback(device.close)
        device.enroll()
        return device

    def store(self, inbox_id: str, name: str = "1") -> Path:
        """Return the directory of an installation."""
        return self.path / f"{inbox_id}-{name}"

    def group(self, founder: Device, *others: Device) -> RineBackend:
        """Found `GROUP` with these devices in it, and return the founder's backend."""
        create_group(founder, GROUP, {device.credentials.inbox_id for device in others})
        for device in others:
            assert device.join_groups() == [GROUP]
        return RineBackend(founder)

    def commits(self) -> int:
        """Return how many commits `GROUP` has seen."""
        return sum(entry.epoch is not None for entry in self.network.delivery.read(GROUP))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """An empty network."""
    # Processes get killed here, the power stays on; waiting for the disk is most of the time otherwise.
    monkeypatch.setattr(database, "SYNCHRONOUS", "OFF")
    with ExitStack() as stack:
        network = stack.enter_context(LocalNetwork(tmp_path / "network.db"))
        yield Stage(tmp_path, network, Clock(), stack)


def sql(database: Path, statement: str, *arguments: object) -> None:
    """Change a database behind its owner's back."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement, arguments)


def read(device: Device) -> list[bytes]:
    """Return what others wrote to `GROUP` since the last call."""
    bodies: list[bytes] = []
    device.receive(GROUP, lambda message: bodies.append(message.body))
    return bodies


def epoch(device: Device) -> int:
    """Return the epoch of `GROUP` as a device sees it after catching up."""
    with device.group(GROUP) as group:
        return group.mls.epoch()


def assert_converged(*devices: Device) -> None:
    """Check that the devices are at one epoch and read each other's messages."""
    assert len({epoch(device) for device in devices}) == 1
    for device in devices:
        read(device)
    sent = {device: device.send(GROUP, device.installation_id) for device in devices}
    for device in devices:
        ids: list[Message] = []
        device.receive(GROUP, ids.append)
        assert {message.message_id for message in ids} == {sent[other] for other in devices if other != device}
        assert all(message.body == message.sender for message in ids)
