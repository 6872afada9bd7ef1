"""`RineBackend` keeps each promise of the `Backend` protocol, with real MLS groups."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.plugins.rine.conftest import GROUP, Stage, assert_converged, epoch, read, sql

from callboard import ServiceUnavailable
from callboard_mls.backend import (
    DirectoryBehindError,
    EpochRejectedError,
    GroupNotFoundError,
    MalformedGroupIdError,
)
from callboard_rine import RineBackend, create_group


def test_tells_who_it_is(stage: Stage) -> None:
    device = stage.device("ann")
    backend = RineBackend(device)
    assert backend.own_inbox_id() == "ann"
    assert stage.network.directory.look_up("ann").installation_ids == {backend.own_installation_id()}


def test_members_and_super_admins(stage: Stage) -> None:
    ann, bob, bob2 = stage.device("ann"), stage.device("bob"), stage.device("bob", "2")
    backend = stage.group(ann, bob, bob2)
    assert backend.members(GROUP) == {
        "ann": {ann.installation_id},
        "bob": {bob.installation_id, bob2.installation_id},
    }
    assert backend.super_admins(GROUP) == RineBackend(bob).super_admins(GROUP) == {"ann"}
    stage.network.directory.promote(GROUP, "bob")
    stage.network.directory.promote(GROUP, "somebody who is no member")
    assert backend.super_admins(GROUP) == {"ann", "bob"}
    stage.network.directory.demote(GROUP, "ann")
    assert backend.super_admins(GROUP) == {"bob"}
    assert_converged(ann, bob, bob2)


def test_evicts_all_installations_of_an_inbox_all_or_none(stage: Stage) -> None:
    ann, bob, bob2, cem = (
        stage.device("ann"),
        stage.device("bob"),
        stage.device("bob", "2"),
        stage.device("cem"),
    )
    backend = stage.group(ann, bob, bob2, cem)
    assert backend.remove_members(GROUP, {"bob", "nobody"}) == {"bob"}
    assert backend.members(GROUP).keys() == {"ann", "cem"}
    ann.send(GROUP, b"without bob")
    payload = stage.network.delivery.read(GROUP)[-1].payload
    assert cem.can_read(GROUP, payload) is False  # not before it has caught up
    assert read(cem) == [b"without bob"]
    for gone in (bob, bob2):
        assert not gone.can_read(GROUP, payload)
        with pytest.raises(GroupNotFoundError):
            gone.send(GROUP, b"still here?")
    assert_converged(ann, cem)


def test_evicting_who_is_gone_already_is_success(stage: Stage) -> None:
    backend = stage.group(stage.device("ann"), stage.device("bob"))
    assert backend.remove_members(GROUP, ["bob"]) == {"bob"}
    commits = stage.commits()
    assert backend.remove_members(GROUP, ["bob"]) == frozenset()
    assert stage.commits() == commits


def test_nobody_evicts_themselves(stage: Stage) -> None:
    backend = stage.group(stage.device("ann"), stage.device("bob"))
    with pytest.raises(ValueError, match="own inbox"):
        backend.remove_members(GROUP, ["ann", "bob"])
    assert backend.members(GROUP).keys() == {"ann", "bob"}


def test_adds_missing_installations_to_every_group_with_one_key_package(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    backend = stage.group(ann, bob)
    create_group(ann, b"another", ["bob"])
    assert backend.add_missing_installations(GROUP) == frozenset()
    bob2, ann2 = stage.device("bob", "2"), stage.device("ann", "2")
    new = {bob2.installation_id, ann2.installation_id}
    commits = stage.commits()
    for group_id in (GROUP, b"another"):
        assert backend.add_missing_installations(group_id) == new
        assert backend.add_missing_installations(group_id) == frozenset()
    assert stage.commits() == commits + 1
    assert bob2.join_groups() == ann2.join_groups() == [GROUP, b"another"]
    assert_converged(ann, ann2, bob, bob2)


def test_a_slow_directory_is_retryable_and_holds_up_nobody_else(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    backend = stage.group(ann, bob)
    bob2, ann2 = stage.device("bob", "2"), stage.device("ann", "2")
    stage.network.faults.hide_installation(bob2.installation_id, lookups=2)
    with pytest.raises(DirectoryBehindError, match="not caught up with bob") as behind:
        backend.add_missing_installations(GROUP)
    assert behind.value.added == {ann2.installation_id}
    with pytest.raises(DirectoryBehindError) as behind:
        backend.add_missing_installations(GROUP)
    assert behind.value.added == frozenset()
    assert backend.add_missing_installations(GROUP) == {bob2.installation_id}


def test_an_installation_without_a_usable_key_package_is_retryable(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    backend = stage.group(ann, bob)
    directory = stage.network.directory
    directory.register("bob", b"registered before it published")
    with pytest.raises(DirectoryBehindError, match="none is published"):
        backend.add_missing_installations(GROUP)
    directory.publish_key_package(b"registered before it published", b"garbage")
    with pytest.raises(DirectoryBehindError, match="not an MLS"):
        backend.add_missing_installations(GROUP)
    stolen = directory.key_package(bob.installation_id)
    assert stolen is not None
    directory.publish_key_package(b"registered before it published", stolen)
    with pytest.raises(DirectoryBehindError, match="another installation's"):
        backend.add_missing_installations(GROUP)


def test_a_member_that_the_directory_does_not_know_is_retryable(stage: Stage) -> None:
    ann = stage.device("ann")
    backend = stage.group(ann)
    stranger = stage.device("eve")
    with ann.group(GROUP) as group:
        key_package = stage.network.directory.key_package(stranger.installation_id)
        assert key_package is not None
        ann.commit(group, [group.mls.add_members([key_package])], added=[stranger.installation_id])
    sql(stage.network.path, "DELETE FROM installation WHERE inbox_id = 'eve'")
    with pytest.raises(DirectoryBehindError, match="does not know whose"):
        backend.members(GROUP)


@pytest.mark.parametrize("group_id", [b"", b"x" * 128])
def test_a_malformed_group_id_is_told_apart_from_a_missing_group(stage: Stage, group_id: bytes) -> None:
    backend = RineBackend(stage.device("ann"))
    for call in (backend.members, backend.super_admins, backend.add_missing_installations):
        with pytest.raises(MalformedGroupIdError):
            call(group_id)
        with pytest.raises(GroupNotFoundError):
            call(b"x" * 127)
    with pytest.raises(MalformedGroupIdError):
        backend.remove_members(group_id, ["bob"])
    with pytest.raises(GroupNotFoundError):
        backend.remove_members(GROUP, ["bob"])


def test_of_two_commits_for_one_epoch_one_is_rejected_and_rolled_back(stage: Stage) -> None:
    ann, bob, cem = stage.device("ann"), stage.device("bob"), stage.device("cem")
    backend = stage.group(ann, bob, cem)
    with ann.group(GROUP) as held:
        bundle = held.mls.remove_member(held.mls.member_index(bob.installation_id))
        assert RineBackend(bob).remove_members(GROUP, ["cem"]) == {"cem"}
        with pytest.raises(EpochRejectedError):
            ann.commit(held, [bundle], removed=frozenset({"bob"}))
    assert backend.members(GROUP).keys() == {"ann", "bob"}
    assert_converged(ann, bob)
    assert backend.remove_members(GROUP, ["bob"]) == {"bob"}


def test_a_rejected_epoch_is_retryable(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    backend = stage.group(ann, bob)
    before = epoch(ann)
    stage.network.faults.reject_commit(GROUP)
    with pytest.raises(EpochRejectedError):
        backend.remove_members(GROUP, ["bob"])
    assert epoch(ann) == before
    assert_converged(ann, bob)
    assert backend.remove_members(GROUP, ["bob"]) == {"bob"}


def test_an_absent_network_changes_nothing(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    backend = stage.group(ann, bob)
    stage.network.faults.outage(calls=3)
    with pytest.raises(ServiceUnavailable):
        backend.remove_members(GROUP, ["bob"])
    with pytest.raises(ServiceUnavailable):
        backend.key_package_status()
    with pytest.raises(ServiceUnavailable):
        backend.super_admins(GROUP)
    assert backend.members(GROUP).keys() == {"ann", "bob"}


def test_a_network_that_goes_away_while_publishing_is_caught_up_with(stage: Stage) -> None:
    unplugged_at = ""

    def unplug(name: str) -> None:
        if name == unplugged_at:
            stage.network.faults.outage(calls=1)

    ann, bob = stage.device("ann", crash_point=unplug), stage.device("bob")
    backend = stage.group(ann, bob)
    commits = stage.commits()
    unplugged_at = "rine.commit.saved"
    with pytest.raises(ServiceUnavailable):
        backend.remove_members(GROUP, ["bob"])
    assert stage.commits() == commits
    assert backend.remove_members(GROUP, ["bob"]) == {"bob"}
    assert stage.commits() == commits + 1


def test_threads_on_one_group_take_turns(stage: Stage) -> None:
    others = [stage.device(f"member{number}") for number in range(6)]
    backend = stage.group(stage.device("ann"), *others)
    commits = stage.commits()
    with ThreadPoolExecutor(max_workers=6) as pool:
        removals = pool.map(lambda device: backend.remove_members(GROUP, [device.credentials.inbox_id]), others)
        assert set().union(*removals) == {device.credentials.inbox_id for device in others}
    assert stage.commits() == commits + 6
    assert backend.members(GROUP).keys() == {"ann"}
