"""A device's store, its lock and its mail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.plugins.rine.conftest import GROUP, Stage, assert_converged, read, sql

from callboard import CallboardError, ServiceUnavailable
from callboard_mls.backend import GroupNotFoundError
from callboard_rine import (
    Device,
    LocalNetwork,
    Message,
    MlsLibraryMissingError,
    NoInstallationError,
    StoreLockedError,
)


def test_one_client_for_one_store(stage: Stage) -> None:
    device = stage.device("ann")
    with pytest.raises(StoreLockedError, match=f"in use by process {os.getpid()}:"):
        Device(device.store, stage.network)
    other_process = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from callboard_rine import *; Device(sys.argv[1], LocalNetwork(sys.argv[2]))",
            device.store,
            stage.network.path,
        ],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert f"in use by process {os.getpid()}:" in other_process.stderr.decode()
    device.close()
    device.close()
    with Device(device.store, stage.network) as again:
        assert again.installation_id == device.installation_id


def test_a_store_belongs_to_one_inbox(stage: Stage) -> None:
    with pytest.raises(NoInstallationError, match="inbox_id"):
        Device(stage.store("ann"), stage.network)
    stage.device("ann").close()
    with pytest.raises(NoInstallationError, match="another inbox"):
        Device(stage.store("ann"), stage.network, inbox_id="bob")


def test_a_network_file_that_is_none_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but longer than the header of one is")
    with pytest.raises(CallboardError, match="not an SQLite database"):
        LocalNetwork(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text().startswith("not a database")
    with pytest.raises(ServiceUnavailable, match="unable to open"):
        LocalNetwork(tmp_path / "missing" / "network.db")


def test_secrets_are_private(stage: Stage) -> None:
    device = stage.device("ann")
    assert os.stat(device.store / "installation.json").st_mode & 0o077 == 0
    for directory in ("mls", "key_packages", "snapshots"):
        assert os.stat(device.store / directory).st_mode & 0o077 == 0


def test_a_platform_without_rine_mls_gets_a_clear_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rine_mls", None)
    with pytest.raises(MlsLibraryMissingError, match="Windows") as missing:
        Device(stage.store("ann"), stage.network, inbox_id="ann")
    assert isinstance(missing.value, CallboardError)


def test_a_leave_request_reaches_the_others(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.group(ann, bob)
    request_id = bob.request_leave(GROUP)
    messages: list[Message] = []
    assert ann.receive(GROUP, messages.append) == 1
    assert messages[0].is_leave_request
    assert (messages[0].message_id, messages[0].sender) == (request_id, bob.installation_id)
    assert bob.receive(GROUP, messages.append) == 0


def test_a_message_comes_again_until_it_was_handled(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.group(ann, bob)
    ann.send(GROUP, b"one")
    ann.send(GROUP, b"two")
    seen: list[bytes] = []

    def fail_on_two(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"two":
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        bob.receive(GROUP, fail_on_two)
    bob.close()
    bob = stage.device("bob")
    assert (seen, read(bob), read(bob)) == ([b"one", b"two"], [b"two"], [])


def test_messages_read_before_a_crash_are_neither_lost_nor_doubled(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.group(ann, bob)
    ann.send(GROUP, b"hello")
    with bob.group(GROUP):
        pass
    # Decrypted, stored and saved, but killed before the log was passed.
    sql(bob.store / "state.db", "DELETE FROM log_cursor")
    assert read(bob) == [b"hello"]
    assert_converged(ann, bob)


def test_what_came_before_an_eviction_is_still_read(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    backend = stage.group(ann, bob)
    ann.send(GROUP, b"goodbye")
    backend.remove_members(GROUP, ["bob"])
    ann.send(GROUP, b"are we alone?")
    bodies: list[bytes] = []
    with pytest.raises(GroupNotFoundError):
        bob.receive(GROUP, lambda message: bodies.append(message.body))
    assert bodies == [b"goodbye"]
    assert not (bob.store / "mls" / "groups" / GROUP.hex()).exists()


def test_garbage_and_forged_senders_in_the_log_hold_up_nothing(stage: Stage) -> None:
    ann, bob, cem = stage.device("ann"), stage.device("bob"), stage.device("cem")
    stage.group(ann, bob, cem)
    ann.send(GROUP, b"hello")
    delivery = stage.network.delivery
    genuine = delivery.read(GROUP)[-1]
    sql(stage.network.path, "UPDATE log SET sender = ? WHERE seq = ?", cem.installation_id, genuine.seq)
    delivery.send_message(GROUP, b"garbage", cem.installation_id)
    ann.send(GROUP, b"again")
    assert read(bob) == [b"again"]


def test_a_redelivered_welcome_does_not_set_the_group_back(stage: Stage) -> None:
    ann, bob, cem = stage.device("ann"), stage.device("bob"), stage.device("cem")
    backend = stage.group(ann, bob, cem)
    backend.remove_members(GROUP, ["cem"])
    assert read(bob) == []
    sql(bob.store / "state.db", "DELETE FROM welcome_cursor")
    assert bob.join_groups() == []
    assert_converged(ann, bob)


def test_who_was_evicted_can_be_invited_again(stage: Stage) -> None:
    ann, bob = stage.device("ann"), stage.device("bob")
    backend = stage.group(ann, bob)
    backend.remove_members(GROUP, ["bob"])
    stage.group(ann, bob)
    assert_converged(ann, bob)
