"""Key packages: judged as others see them, rotated, and kept for a grace period."""

from datetime import timedelta

import pytest
from tests.plugins.rine.conftest import GROUP, Stage, assert_converged, sql

from callboard_rine import Device, KeyPackageError, RineBackend, create_group
from callboard_rine.aging import expired_copy
from callboard_rine.keypackages import read_key_package
from callboard_rine.keyring import GRACE_PERIOD, ROTATION_INTERVAL

_DAY_NS = 86_400 * 1_000_000_000


def ns(duration: timedelta) -> int:
    """Return a duration in ns."""
    return duration // timedelta(microseconds=1) * 1_000


def private_parts(device: Device) -> int:
    """Return how many private parts lie on disk, by any name."""
    return len({path.name for path in device.store.rglob("*.bin") if path.parent.name == "key_packages"})


def published(stage: Stage, device: Device) -> bytes:
    """Return what the directory hands out for a device."""
    key_package = stage.network.directory.key_package(device.installation_id)
    assert key_package is not None
    return key_package


def test_reads_a_key_package(stage: Stage) -> None:
    device = stage.device("ann")
    key_package = read_key_package(published(stage, device))
    assert key_package.identity == device.installation_id
    assert 365 <= (key_package.not_after_ns - key_package.not_before_ns) / _DAY_NS <= 366
    # rine-mls names the private part by the reference of RFC 9420 section 5.2, computed on its own.
    assert (device.store / "mls" / "key_packages" / f"{key_package.reference.hex()}.bin").exists()


def test_every_damaged_key_package_is_refused(stage: Stage) -> None:
    good = published(stage, stage.device("ann"))
    for end in range(len(good)):
        with pytest.raises(KeyPackageError):
            read_key_package(good[:end])
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x01
        with pytest.raises(KeyPackageError):
            read_key_package(bytes(damaged))
    with pytest.raises(KeyPackageError, match="trailing"):
        read_key_package(good + b"\0")


def test_status_asks_the_network(stage: Stage) -> None:
    device = stage.device("ann")
    backend = RineBackend(device)
    good = published(stage, device)
    status = backend.key_package_status()
    assert status.usable
    assert status.not_after_ns == read_key_package(good).not_after_ns
    sql(stage.network.path, "DELETE FROM key_package")
    status = backend.key_package_status()
    assert (status.usable, status.published, status.not_after_ns) == (False, False, None)
    stage.network.directory.publish_key_package(device.installation_id, good[:-1])
    status = backend.key_package_status()
    assert (status.usable, status.published, status.not_after_ns) == (False, True, None)
    stage.network.directory.publish_key_package(device.installation_id, published(stage, stage.device("bob")))
    assert backend.key_package_status().problem == "it is another installation's"


def test_status_sees_a_lost_private_part(stage: Stage) -> None:
    device = stage.device("ann")
    for private_part in (device.store / "key_packages").glob("*.bin"):
        private_part.unlink()
    assert RineBackend(device).key_package_status().problem == "its private part is gone"


def test_status_goes_by_the_clock(stage: Stage) -> None:
    backend = RineBackend(stage.device("ann"))
    not_after_ns = backend.key_package_status().not_after_ns
    assert not_after_ns is not None
    stage.clock.now_ns = not_after_ns - 1
    assert backend.key_package_status().usable
    stage.clock.now_ns = not_after_ns
    assert backend.key_package_status().problem == "it has expired"
    stage.clock.now_ns = 0
    assert backend.key_package_status().problem == "it is not valid yet"


def test_an_expired_key_package_on_the_directory_is_found_and_replaced(stage: Stage) -> None:
    device = stage.device("bob")
    backend = RineBackend(device)
    yesterday_s = (stage.clock() - _DAY_NS) // 1_000_000_000
    expired = expired_copy(published(stage, device), device.credentials.signing_seed, yesterday_s)
    stage.network.directory.publish_key_package(device.installation_id, expired)
    status = backend.key_package_status()
    assert (status.problem, status.not_after_ns) == ("it has expired", yesterday_s * 1_000_000_000)
    backend.rotate_key_package()
    assert backend.key_package_status().usable


def test_rotation_is_due_by_age(stage: Stage) -> None:
    device = stage.device("ann")
    backend = RineBackend(device)
    published_ns = stage.clock()
    assert backend.next_rotation_ns() == published_ns + ns(ROTATION_INTERVAL)
    first = published(stage, device)
    stage.clock.now_ns += ns(ROTATION_INTERVAL)
    device.enroll()
    assert backend.next_rotation_ns() == stage.clock() + ns(ROTATION_INTERVAL)
    assert published(stage, device) != first
    assert backend.rotate_key_package() == backend.next_rotation_ns()


def test_never_published_means_now(stage: Stage) -> None:
    with Device(stage.store("ann"), stage.network, inbox_id="ann") as device:
        assert RineBackend(device).next_rotation_ns() == 0


def test_superseded_private_parts_are_deleted_after_the_grace_period(stage: Stage) -> None:
    device = stage.device("ann")
    backend = RineBackend(device)
    assert backend.delete_superseded_key_packages() is None
    backend.rotate_key_package()
    first_ends_ns = stage.clock() + ns(GRACE_PERIOD)
    stage.clock.now_ns += 1
    backend.rotate_key_package()
    assert private_parts(device) == 3
    assert backend.delete_superseded_key_packages() == first_ends_ns
    stage.clock.now_ns = first_ends_ns - 1
    assert backend.delete_superseded_key_packages() == first_ends_ns
    assert private_parts(device) == 3
    stage.clock.now_ns = first_ends_ns
    assert backend.delete_superseded_key_packages() == first_ends_ns + 1
    assert private_parts(device) == 2
    stage.clock.now_ns += 1
    assert backend.delete_superseded_key_packages() is None
    assert private_parts(device) == 1
    assert backend.key_package_status().usable


def test_a_welcome_on_its_way_survives_the_rotation(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    create_group(ann, GROUP, ["bob"])
    RineBackend(bob).rotate_key_package()
    assert RineBackend(bob).delete_superseded_key_packages() is not None
    assert bob.join_groups() == [GROUP]
    assert_converged(ann, bob)


def test_a_welcome_later_than_the_grace_period_holds_up_no_other(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    create_group(ann, b"too late", ["bob"])
    RineBackend(bob).rotate_key_package()
    stage.clock.now_ns += ns(GRACE_PERIOD)
    assert RineBackend(bob).delete_superseded_key_packages() is None
    create_group(ann, GROUP, ["bob"])
    assert bob.join_groups() == [GROUP]


def test_a_rotation_that_failed_is_tried_again_and_leaves_nothing_behind(stage: Stage) -> None:
    device = stage.device("ann")
    backend = RineBackend(device)
    due_ns = backend.next_rotation_ns()
    stage.network.faults.outage(calls=1)
    with pytest.raises(Exception, match="away"):
        backend.rotate_key_package()
    assert backend.next_rotation_ns() == due_ns
    (device.store / "mls" / "key_packages" / "left by a crash.bin").touch()
    backend.rotate_key_package()
    stage.clock.now_ns += ns(GRACE_PERIOD)
    backend.delete_superseded_key_packages()
    assert private_parts(device) == 1
    assert backend.key_package_status().usable
