"""The three jobs as a host has them: real MLS, the real engine, the plugins as they are installed."""

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import time_ns

import pytest
from tests.plugins.rine.conftest import GROUP, Stage, assert_converged
from tests.plugins.rine.crashing_host import PLUGINS, receive

from callboard import Engine, InstallationAdded, Task
from callboard.testing import CRASH_ENVIRONMENT, FakeClock
from callboard.testing import CRASH_POINTS as ENGINE_CRASH_POINTS
from callboard_mls.backend import Backend
from callboard_rine import CRASH_POINTS, Device, RineBackend, create_group
from callboard_rine.aging import expired_copy

SELF_REMOVE, ADD_MISSING = PLUGINS[:2]
RECURRING = {"kp_liveness", "kp_rotation", "kp_deletion"}
_CHILD = Path(__file__).with_name("crashing_host.py")


@dataclass
class Host:
    """The service of one installation: a device, and an engine on it whose clock the test moves."""

    stage: Stage
    device: Device
    engine: Engine
    clock: FakeClock

    def know(self, group_id: bytes = GROUP) -> None:
        """Tell the engine of a group that the device founded."""
        members = RineBackend(self.device).members(group_id).keys()
        own = self.device.credentials.inbox_id
        self.engine.group(group_id).created(own, members=members, super_admins=[own], consent="allowed")

    def receive(self, group_id: bytes = GROUP) -> None:
        """Process the messages of a group, and wait until all that is due has been done."""
        receive(self.engine, self.device, group_id)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is due."""
        assert self.engine.wait_idle(timeout=20)

    def pass_time(self, duration: timedelta) -> None:
        """Let time pass for engine and devices, and wait until all that has become due has been done."""
        self.stage.clock.now_ns += duration // timedelta(microseconds=1) * 1_000
        self.clock.advance(duration)
        self.settle()

    def work(self) -> list[Task]:
        """Return the live tasks that are to come to an end."""
        return [task for task in self.engine.tasks() if task.kind not in RECURRING]


HostMaker = Callable[[Device], Host]


@pytest.fixture
def host(stage: Stage, make_engine: Callable[..., Engine]) -> HostMaker:
    """Return a maker of hosts."""

    def make(device: Device) -> Host:
        clock = FakeClock(stage.clock.now_ns)
        engine = make_engine(*PLUGINS, services={Backend: RineBackend(device)}, clock=clock)
        engine.start()
        return Host(stage, device, engine, clock)

    return make


def test_a_leave_request_that_is_received_ends_in_one_eviction(stage: Stage, host: HostMaker) -> None:
    ann, bob, bob2, cem = (
        stage.device("ann"),
        stage.device("bob"),
        stage.device("bob", "2"),
        stage.device("cem"),
    )
    stage.group(ann, bob, bob2, cem)
    service = host(ann)
    service.know()
    service.settle()
    commits = stage.commits()

    bob.request_leave(GROUP)
    service.receive()

    assert stage.commits() == commits + 2  # one for each of bob's installations
    state = service.engine.group(GROUP).state()
    assert state is not None
    assert state.members == {"ann", "cem"}
    assert state.pending_removes == ()
    assert not state.has_pending_leave_request
    assert (service.work(), service.engine.dead_tasks()) == ([], [])
    ann.send(GROUP, b"without bob")
    payload = stage.network.delivery.read(GROUP)[-1].payload
    assert not bob.can_read(GROUP, payload)
    assert not bob2.can_read(GROUP, payload)
    assert_converged(ann, cem)


def test_a_leave_request_that_is_delivered_twice_evicts_once(stage: Stage, host: HostMaker) -> None:
    ann, bob, cem = stage.device("ann"), stage.device("bob"), stage.device("cem")
    stage.group(ann, bob, cem)
    service = host(ann)
    service.know()
    commits = stage.commits()
    request = bob.request_leave(GROUP)
    service.receive()
    assert stage.commits() == commits + 1

    service.engine.group(GROUP).leave_requested("bob", request)
    service.settle()

    assert stage.commits() == commits + 1
    state = service.engine.group(GROUP).state()
    assert state is not None
    assert state.pending_removes == ()
    assert_converged(ann, cem)


def test_who_is_no_super_admin_leaves_the_eviction_to_one_who_is(
    stage: Stage, host: HostMaker, callboard_database: str
) -> None:
    ann, bob, cem = stage.device("ann"), stage.device("bob"), stage.device("cem")
    admin = stage.group(ann, bob, cem)
    service = host(cem)
    service.engine.group(GROUP).created("cem", members=["ann", "bob", "cem"], super_admins=["ann"])
    commits = stage.commits()
    bob.request_leave(GROUP)
    service.receive()
    assert stage.commits() == commits
    state = service.engine.group(GROUP).state()
    assert state is not None
    assert [request.inbox_id for request in state.pending_removes] == ["bob"]

    assert admin.remove_members(GROUP, ["bob"]) == {"bob"}
    service.engine.group(GROUP).membership_changed(removed=["bob"])
    service.settle()

    state = service.engine.group(GROUP).state()
    assert state is not None
    assert state.pending_removes == ()
    assert_converged(ann, cem)


def test_a_new_installation_is_added_everywhere_through_a_slow_directory_and_a_lost_race(
    stage: Stage, host: HostMaker
) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.group(ann, bob)
    create_group(ann, b"another", ["bob"])
    bob.join_groups()
    service = host(ann)
    for group_id in (GROUP, b"another"):
        service.know(group_id)
    service.settle()
    bob2 = stage.device("bob", "2")
    stage.network.faults.hide_installation(bob2.installation_id, lookups=2)  # each group's first
    stage.network.faults.reject_commit(GROUP)
    commits = stage.commits()

    service.engine.publish(InstallationAdded("bob", bob2.installation_id))
    service.settle()
    assert sorted((task.kind, task.group_id, task.attempts) for task in service.work()) == [
        (ADD_MISSING, b"another", 1),
        (ADD_MISSING, GROUP, 1),
    ]
    assert all("DirectoryBehindError" in (task.last_error or "") for task in service.work())

    service.pass_time(timedelta(seconds=2))
    (waiting,) = service.work()
    assert (waiting.group_id, waiting.attempts) == (GROUP, 2)
    assert "EpochRejectedError" in (waiting.last_error or "")
    assert stage.commits() == commits

    service.pass_time(timedelta(seconds=3))
    assert (service.work(), service.engine.dead_tasks()) == ([], [])
    assert stage.commits() == commits + 1
    assert sorted(bob2.join_groups()) == [b"another", GROUP]
    assert_converged(ann, bob, bob2)


def test_an_absent_network_costs_no_attempt(stage: Stage, host: HostMaker) -> None:
    ann, bob, cem = stage.device("ann"), stage.device("bob"), stage.device("cem")
    stage.group(ann, bob, cem)
    service = host(ann)
    service.know()
    service.settle()
    request = bob.request_leave(GROUP)

    stage.network.faults.outage(calls=1_000)
    service.engine.group(GROUP).leave_requested("bob", request)
    service.settle()
    for _ in range(30):
        service.pass_time(timedelta(minutes=1))
    (waiting,) = service.work()
    assert (waiting.kind, waiting.attempts) == (SELF_REMOVE, 0)

    stage.network.faults.outage(calls=0)
    service.pass_time(timedelta(minutes=1))
    assert service.work() == []
    assert_converged(ann, cem)


def test_an_expired_key_package_is_found_and_replaced(stage: Stage, host: HostMaker) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.group(bob)
    service = host(ann)
    service.settle()
    directory = stage.network.directory
    fresh = directory.key_package(ann.installation_id)
    assert fresh is not None
    yesterday_s = stage.clock.now_ns // 10**9 - 86_400
    expired = expired_copy(fresh, ann.credentials.signing_seed, yesterday_s)
    directory.publish_key_package(ann.installation_id, expired)
    assert not RineBackend(ann).key_package_status().usable

    service.pass_time(timedelta(hours=6))  # when the next look at the directory is due

    assert directory.key_package(ann.installation_id) not in (expired, fresh)
    assert RineBackend(ann).key_package_status().usable
    assert {task.kind for task in service.engine.tasks()} == RECURRING
    create_group(bob, b"another", ["ann"])
    assert ann.join_groups() == [b"another"]


def test_a_rotation_that_falls_into_a_two_hour_outage_comes_soon_after_it(stage: Stage, host: HostMaker) -> None:
    """In a month of simulated days."""
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.group(bob)
    service = host(ann)
    service.settle()
    directory = stage.network.directory
    first = directory.key_package(ann.installation_id)
    due_ns = RineBackend(ann).next_rotation_ns()
    while stage.clock.now_ns + 6 * 3_600 * 10**9 < due_ns:
        service.pass_time(timedelta(hours=6))
    assert directory.key_package(ann.installation_id) == first

    stage.network.faults.outage(calls=1_000_000)
    while stage.clock.now_ns < due_ns + 2 * 3_600 * 10**9:
        service.pass_time(timedelta(minutes=2))
    stage.network.faults.outage(calls=0)
    assert directory.key_package(ann.installation_id) == first
    [rotation] = service.engine.tasks(kind="kp_rotation")
    assert (rotation.attempts, rotation.outages > 20) == (0, True)

    service.pass_time(timedelta(minutes=1))  # the longest backoff
    assert directory.key_package(ann.installation_id) not in (None, first)
    service.pass_time(timedelta(days=1))
    assert {task.kind for task in service.engine.tasks()} == RECURRING
    assert service.engine.dead_tasks() == []
    create_group(bob, b"another", ["ann"])
    assert ann.join_groups() == [b"another"]


def crash(stage: Stage, device: Device, database: str, point: str, new: Device | None = None) -> Device:
    """Let another process be the host of `device` until it is killed at `point`; return the device reopened."""
    device.close()
    inbox_id, installation = (new.credentials.inbox_id, new.installation_id.hex()) if new else ("", "")
    child = subprocess.run(
        [sys.executable, _CHILD, device.store, device.network.path, database, GROUP, inbox_id, installation],
        env={CRASH_ENVIRONMENT: point},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    stage.clock.now_ns = time_ns()  # the other process went by the real clock
    return stage.device(device.credentials.inbox_id)


def prepared(database: str, device: Device, members: list[str]) -> None:
    """Tell the engine of `GROUP`, whose host is not running yet."""
    own = device.credentials.inbox_id
    with Engine(database, plugins=[], execute=False) as engine:
        engine.group(GROUP).created(own, members=members, super_admins=[own])


@pytest.mark.parametrize("point", [*CRASH_POINTS, *ENGINE_CRASH_POINTS])
def test_an_eviction_survives_the_death_of_the_engine_at(
    point: str, stage: Stage, host: HostMaker, callboard_database: str
) -> None:
    ann, bob, bob2, cem = (
        stage.device("ann"),
        stage.device("bob"),
        stage.device("bob", "2"),
        stage.device("cem"),
    )
    stage.group(ann, bob, bob2, cem)
    prepared(callboard_database, ann, ["ann", "bob", "cem"])
    bob2.request_leave(GROUP)
    commits = stage.commits()

    ann = crash(stage, ann, callboard_database, point)
    service = host(ann)
    service.receive()

    assert stage.commits() == commits + 2
    assert (service.work(), service.engine.dead_tasks()) == ([], [])
    state = service.engine.group(GROUP).state()
    assert state is not None
    assert state.members == {"ann", "cem"}
    assert state.pending_removes == ()
    ann.send(GROUP, b"without bob")
    payload = stage.network.delivery.read(GROUP)[-1].payload
    assert not any(gone.can_read(GROUP, payload) for gone in (bob, bob2))
    assert_converged(ann, cem)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_an_addition_survives_the_death_of_the_engine_at(
    point: str, stage: Stage, host: HostMaker, callboard_database: str
) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.group(ann, bob)
    prepared(callboard_database, ann, ["ann", "bob"])
    bob2 = stage.device("bob", "2")
    commits = stage.commits()

    ann = crash(stage, ann, callboard_database, point, bob2)
    service = host(ann)
    service.settle()

    assert stage.commits() == commits + 1
    assert (service.work(), service.engine.dead_tasks()) == ([], [])
    assert bob2.join_groups() == [GROUP]
    assert_converged(ann, bob, bob2)
