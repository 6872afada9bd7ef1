"""The wire format is shared with libxmtp and with rows that older builds wrote: bytes must not drift."""

from hashlib import sha256

import pytest

from callboard import wire
from callboard.wire import (
    AddMissingInstallations,
    KpDeletion,
    KpLiveness,
    KpRotation,
    ProcessPendingSelfRemove,
    PullInDeadline,
    Task,
)

PULL_IN = PullInDeadline(target_data_hash=b"\x11" * 32, not_later_than_ns=1234567890)


def encode(task: Task) -> bytes:
    return task.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("task", "encoded"),
    [
        (Task(process_pending_self_remove=ProcessPendingSelfRemove(group_id=b"g")), "1a030a0167"),
        (Task(pull_in_deadline=PULL_IN), "22280a20" + "11" * 32 + "10d285d8cc04"),
        (Task(kp_rotation=KpRotation()), "2a00"),
        (Task(kp_deletion=KpDeletion()), "3200"),
        (Task(add_missing_installations=AddMissingInstallations(group_id=b"g")), "3a030a0167"),
        (Task(kp_liveness=KpLiveness()), "4200"),
    ],
)
def test_tasks_encode_to_these_bytes(task: Task, encoded: str) -> None:
    assert encode(task).hex() == encoded
    assert Task.FromString(bytes.fromhex(encoded)) == task


@pytest.mark.parametrize(
    ("task", "digest"),
    [
        (
            Task(kp_rotation=KpRotation()),
            "17d5f5a33ab5f6aed0395d2bc0a4e5df61d92441ea8d77b0952c01bc8aa8bde0",
        ),
        (
            Task(kp_deletion=KpDeletion()),
            "913da1f8df6f8fd47593840d533ba0458cc9873996bf310460abb495b34c232a",
        ),
        (
            Task(pull_in_deadline=PULL_IN),
            "16b424873a34096e5157ab9f0a31e80dff1d23ebd8b1aab2b948a4732abfc849",
        ),
    ],
)
def test_tasks_hash_as_in_libxmtp(task: Task, digest: str) -> None:
    assert sha256(encode(task)).hexdigest() == digest


def test_field_numbers_are_pinned() -> None:
    fields = Task.DESCRIPTOR.fields

    assert {field.containing_oneof.name for field in fields} == {"task"}
    assert {field.number: (field.name, field.message_type.full_name) for field in fields} == {
        3: ("process_pending_self_remove", "callboard.ProcessPendingSelfRemove"),
        4: ("pull_in_deadline", "callboard.PullInDeadline"),
        5: ("kp_rotation", "callboard.KpRotation"),
        6: ("kp_deletion", "callboard.KpDeletion"),
        7: ("add_missing_installations", "callboard.AddMissingInstallations"),
        8: ("kp_liveness", "callboard.KpLiveness"),
        100: ("plugin", "google.protobuf.Any"),
    }


def test_every_message_of_the_package_is_exported() -> None:
    defined = set(Task.DESCRIPTOR.file.message_types_by_name)

    assert set(wire.__all__) == defined
    assert all(hasattr(wire, name) for name in defined)


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param("0a00", id="libxmtp-welcome-pointer"),
        pytest.param("1200", id="libxmtp-sync-archive"),
        pytest.param("4a00", id="newer-build"),
    ],
)
def test_a_field_unknown_here_survives_a_round_trip(encoded: str) -> None:
    task = Task.FromString(bytes.fromhex(encoded))

    assert task.WhichOneof("task") is None
    assert encode(task).hex() == encoded
