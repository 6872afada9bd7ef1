"""The MLS plugins keep the contract of plugins, on real MLS groups."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from google.protobuf.message import Message

from callboard import Engine
from callboard.testing import FakeClock, crash_point
from callboard.testing.contract import PluginContract
from callboard.wire import (
    AddMissingInstallations,
    KpDeletion,
    KpLiveness,
    KpRotation,
    ProcessPendingSelfRemove,
    PullInDeadline,
    Task,
)
from callboard_mls import Backend
from callboard_rine import Device, LocalNetwork, RineBackend, create_group, database

GROUP = b"the group"
HOUR_NS = 3_600 * 10**9
pytestmark = pytest.mark.exhaustive

PINS = Path(__file__).parents[3] / "plugins/mls/pins"


def device(folder: Path, name: str, clock: Any, **options: Any) -> Device:
    """Open an installation of the inbox that its name begins with, or make it."""
    database.SYNCHRONOUS = "OFF"  # processes get killed here, the power stays on
    inbox_id = name.partition("-")[0]
    network = LocalNetwork(folder / "network.db")
    return Device(folder / name, network, inbox_id=inbox_id, clock=clock.now_ns, **options)


class Mls(PluginContract):
    """One of ann's installations, in a group of which she is super-admin."""

    begins_at_ns = time_ns() + 2 * HOUR_NS  # rine-mls has the real time, which may be set back by an hour here

    def services(self, folder: Path, clock: FakeClock) -> Mapping[type[Any], Any]:
        return {Backend: RineBackend(device(folder, "ann-1", clock, crash_point=crash_point))}

    def prepare(self, engine: Engine, folder: Path) -> None:
        """Found the group, with bob who asks to leave it, and with an installation of cem's that it lacks."""
        ann = engine.service(Backend).device  # type: ignore[type-abstract, attr-defined]
        ann.enroll()
        with device(folder, "bob-1", engine.clock) as bob, device(folder, "cem-1", engine.clock) as cem:
            for other in (bob, cem):
                other.enroll()
            create_group(ann, GROUP, ["bob", "cem"])
            for other in (bob, cem):
                other.join_groups()
            request = bob.request_leave(GROUP)
        engine.group(GROUP).created("ann", ["ann", "bob", "cem"], ["ann"], "allowed")
        engine.group(GROUP).active()
        engine.group(GROUP).leave_requested("bob", request)
        with device(folder, "cem-2", engine.clock) as late:
            late.enroll()

    def effects(self, engine: Engine, folder: Path) -> Any:
        """Return who is in the group, how many commits there were, and whether others can reach ann."""
        backend: Any = engine.service(Backend)  # type: ignore[type-abstract]
        network = backend.device.network
        commits = sum(entry.epoch is not None for entry in network.delivery.read(GROUP))
        try:
            members = backend.members(GROUP)
        except Exception as error:  # where the group was lost
            members = type(error).__name__
        return members, commits, network.directory.super_admins(GROUP), backend.key_package_status().usable

    def lose_group(self, engine: Engine, folder: Path, group_id: bytes) -> None:
        shutil.rmtree(folder / "ann-1" / "mls" / "groups" / group_id.hex())


class TestProcessPendingSelfRemove(Mls):
    plugin = "process_pending_self_remove"
    pins = PINS / "process_pending_self_remove.json"

    def samples(self) -> Sequence[Message]:
        return [ProcessPendingSelfRemove(group_id=GROUP)]


class TestAddMissingInstallations(Mls):
    plugin = "add_missing_installations"
    pins = PINS / "add_missing_installations.json"

    def samples(self) -> Sequence[Message]:
        return [AddMissingInstallations(group_id=GROUP)]


class TestKpLiveness(Mls):
    plugin = "kp_liveness"
    pins = PINS / "kp_liveness.json"

    def samples(self) -> Sequence[Message]:
        return [KpLiveness(), KpRotation(), KpDeletion()]

    def prepare(self, engine: Engine, folder: Path) -> None:
        """Have the directory lose ann's key package."""
        super().prepare(engine, folder)
        with closing(sqlite3.connect(folder / "network.db")) as connection, connection:
            connection.execute("DELETE FROM key_package")


class TestPullInDeadline(PluginContract):
    """A task of another plugin, which is not here, is pulled in."""

    plugin = "pull_in_deadline"
    pins = PINS / "pull_in_deadline.json"
    target = KpRotation()

    def samples(self) -> Sequence[Message]:
        data = Task(kp_rotation=self.target).SerializeToString()
        not_later_than_ns = self.begins_at_ns + 2 * HOUR_NS
        return [
            PullInDeadline(target_data_hash=hashlib.sha256(data).digest(), not_later_than_ns=not_later_than_ns)
        ]

    def prepare(self, engine: Engine, folder: Path) -> None:
        engine.enqueue(self.target, not_before=self.begins_at_ns + 3 * HOUR_NS, allow_unknown=True)

    def effects(self, engine: Engine, folder: Path) -> Any:
        return [task.next_attempt_at_ns for task in engine.tasks(kind="kp_rotation")]
