"""Between messages and rows: the same bytes in every build, and nothing but payload errors for bad ones."""

import hashlib
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.engine.messages import LinkedReceipt, ReceiptArchive, ReceiptThread, SendReceipt, TaggedReceipt

from callboard._codec import check_deterministic, decode, encode, hash_of, keyed_identity, kind_of
from callboard.errors import KindError, MalformedPayloadError, PayloadError, UnknownPayloadError
from callboard.wire import (
    AddMissingInstallations,
    KpDeletion,
    KpLiveness,
    KpRotation,
    ProcessPendingSelfRemove,
    PullInDeadline,
    Task,
)

RECEIPT = SendReceipt(group_id=b"g", text="read")
RECEIPT_KIND = "acme.receipts.SendReceipt"
PULL_IN = PullInDeadline(target_data_hash=b"\x11" * 32, not_later_than_ns=1234567890)

GROUP_IDS = st.binary(max_size=300)
RECEIPTS = st.builds(SendReceipt, group_id=GROUP_IDS, text=st.text(max_size=50))
THREADS = st.recursive(
    st.builds(ReceiptThread, receipt=RECEIPTS),
    lambda threads: st.builds(ReceiptThread, replies=st.lists(threads, max_size=3)),
    max_leaves=10,
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    RECEIPTS,
    THREADS,
    st.builds(AnyMessage, type_url=st.text(max_size=20), value=st.binary(max_size=20)),
    st.builds(ProcessPendingSelfRemove, group_id=GROUP_IDS),
    st.builds(AddMissingInstallations, group_id=GROUP_IDS),
    st.builds(
        PullInDeadline,
        target_data_hash=st.binary(max_size=40),
        not_later_than_ns=st.integers(-(2**63), 2**63 - 1),
    ),
    st.builds(KpRotation),
    st.builds(KpDeletion),
    st.builds(KpLiveness),
)
MESSAGE_TYPES = st.sampled_from([SendReceipt, ReceiptThread, PullInDeadline, KpRotation, AddMissingInstallations])


def in_plugin_field(type_url: str, value: bytes) -> bytes:
    return Task(plugin=AnyMessage(type_url=type_url, value=value)).SerializeToString()


def varint(number: int) -> bytes:
    encoded = b""
    while number > 127:
        encoded, number = encoded + bytes([number & 127 | 128]), number >> 7
    return encoded + bytes([number])


def length_delimited(number: int, value: bytes) -> bytes:
    """Return a field of bytes or of a message, as a build that knows it writes it."""
    return varint(number << 3 | 2) + varint(len(value)) + value


# Section 5: names, bytes and hashes


@pytest.mark.parametrize(
    ("message_type", "kind"),
    [
        (ProcessPendingSelfRemove, "process_pending_self_remove"),
        (PullInDeadline, "pull_in_deadline"),
        (KpRotation, "kp_rotation"),
        (KpDeletion, "kp_deletion"),
        (AddMissingInstallations, "add_missing_installations"),
        (KpLiveness, "kp_liveness"),
        (SendReceipt, "acme.receipts.SendReceipt"),
        (AnyMessage, "google.protobuf.Any"),
    ],
)
def test_section_5_a_kind_is_its_field_in_the_envelope_or_else_the_full_message_name(
    message_type: type[Message], kind: str
) -> None:
    assert kind_of(message_type) == kind


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (KpRotation(), "2a00"),
        (KpDeletion(), "3200"),
        (KpLiveness(), "4200"),
        (ProcessPendingSelfRemove(group_id=b"g"), "1a030a0167"),
        (AddMissingInstallations(), "3a00"),
    ],
)
def test_section_5_messages_encode_to_these_bytes(message: Message, encoded: str) -> None:
    assert encode(message).hex() == encoded


@pytest.mark.parametrize(
    ("message", "digest"),
    [
        (KpRotation(), "17d5f5a33ab5f6aed0395d2bc0a4e5df61d92441ea8d77b0952c01bc8aa8bde0"),
        (KpDeletion(), "913da1f8df6f8fd47593840d533ba0458cc9873996bf310460abb495b34c232a"),
        (PULL_IN, "16b424873a34096e5157ab9f0a31e80dff1d23ebd8b1aab2b948a4732abfc849"),
    ],
)
def test_section_5_the_hash_of_a_row_is_libxmtps(message: Message, digest: str) -> None:
    assert hash_of(encode(message)).hex() == digest


@given(message=RECEIPTS | THREADS)
def test_section_5_a_plugins_message_is_written_as_any_pack_writes_it(message: Message) -> None:
    task = Task()
    task.plugin.Pack(message, deterministic=True)

    assert encode(message) == task.SerializeToString(deterministic=True)


@given(message=MESSAGES)
def test_section_5_encoding_is_deterministic(message: Message) -> None:
    twin = type(message).FromString(message.SerializeToString())

    assert encode(message) == encode(message) == encode(twin)


@given(one=MESSAGES, other=MESSAGES)
def test_section_5_different_messages_have_different_bytes(one: Message, other: Message) -> None:
    assert (encode(one) == encode(other)) == (type(one) is type(other) and one == other)


@given(kind=st.text(st.characters(codec="ascii", exclude_characters="\0")), key=st.text())
def test_section_5_a_keyed_identity_is_the_sha256_of_kind_nul_and_key(kind: str, key: str) -> None:
    assert keyed_identity(kind, key) == hashlib.sha256(f"{kind}\0{key}".encode()).digest()


# Decoding what was encoded


@given(message=MESSAGES)
def test_section_5_a_message_survives_the_round_trip_through_its_row(message: Message) -> None:
    assert decode(encode(message), kind_of(type(message)), type(message)) == message


@pytest.mark.parametrize("prefix", ["type.googleapis.com/", "/", "", "example.org/schemas/v1/", "a//"])
def test_section_5_a_type_url_may_have_any_prefix(prefix: str) -> None:
    data = in_plugin_field(prefix + RECEIPT_KIND, RECEIPT.SerializeToString())

    assert decode(data, RECEIPT_KIND, SendReceipt) == RECEIPT


# Rules 5, 6 and 16: payloads that are not what the row says


def test_rule_16_an_empty_payload_is_malformed_not_unknown() -> None:
    with pytest.raises(MalformedPayloadError, match="empty"):
        decode(b"", "kp_rotation", KpRotation)


@given(
    number=st.integers(1, 2**29 - 1),
    value=st.binary(max_size=100),
    message_type=MESSAGE_TYPES,
)
@example(number=1, value=b"", message_type=KpRotation)
@example(number=2, value=b"", message_type=KpRotation)
@example(number=9, value=b"", message_type=KpRotation)
def test_rule_16_a_oneof_field_that_this_build_does_not_know_is_unknown_not_malformed(
    number: int, value: bytes, message_type: type[Message]
) -> None:
    assume(number not in Task.DESCRIPTOR.fields_by_number)

    with pytest.raises(UnknownPayloadError):
        decode(length_delimited(number, value), kind_of(message_type), message_type)


NEWER = length_delimited(15, b"of a newer build")
"""A field that none of the messages here has."""

RECEIPT_BYTES = RECEIPT.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("kind", "message_type", "data"),
    [
        pytest.param(
            RECEIPT_KIND, SendReceipt, in_plugin_field(RECEIPT_KIND, RECEIPT_BYTES + NEWER), id="message"
        ),
        pytest.param(
            "acme.receipts.ReceiptThread",
            ReceiptThread,
            in_plugin_field("acme.receipts.ReceiptThread", length_delimited(1, RECEIPT_BYTES + NEWER)),
            id="message-in-it",
        ),
        pytest.param(
            "acme.receipts.ReceiptThread",
            ReceiptThread,
            in_plugin_field("acme.receipts.ReceiptThread", length_delimited(2, length_delimited(1, NEWER))),
            id="two-down",
        ),
        pytest.param(RECEIPT_KIND, SendReceipt, in_plugin_field(RECEIPT_KIND, NEWER), id="nothing-else"),
        pytest.param(
            RECEIPT_KIND,
            SendReceipt,
            in_plugin_field(RECEIPT_KIND, varint(1 << 3) + b"\7"),
            id="known-of-another-type",
        ),
        pytest.param("kp_rotation", KpRotation, length_delimited(5, NEWER), id="first-party"),
        pytest.param(RECEIPT_KIND, SendReceipt, encode(RECEIPT) + NEWER, id="envelope"),
        pytest.param(
            RECEIPT_KIND,
            SendReceipt,
            length_delimited(100, length_delimited(1, RECEIPT_KIND.encode()) + NEWER),
            id="any",
        ),
    ],
)
def test_fields_that_this_build_does_not_know_are_found_at_any_depth_where_the_whole_is_asked_for(
    kind: str, message_type: type[Message], data: bytes
) -> None:
    decode(data, kind, message_type)

    with pytest.raises(UnknownPayloadError, match=kind):
        decode(data, kind, message_type, whole=True)


@given(message=MESSAGES)
def test_a_message_without_such_fields_is_whole_and_untouched(message: Message) -> None:
    assert decode(encode(message), kind_of(type(message)), type(message), whole=True) == message


@pytest.mark.parametrize(
    "below", [b"", length_delimited(1, NEWER), length_delimited(2, length_delimited(1, NEWER))]
)
def test_a_message_keeps_fields_that_this_build_does_not_know_through_decoding_and_encoding(below: bytes) -> None:
    data = in_plugin_field("type.googleapis.com/acme.receipts.ReceiptThread", below + NEWER)

    assert encode(decode(data, "acme.receipts.ReceiptThread", ReceiptThread)) == data


@given(message=MESSAGES, message_type=MESSAGE_TYPES)
def test_rule_06_a_payload_that_disagrees_with_the_kind_is_malformed(
    message: Message, message_type: type[Message]
) -> None:
    assume(not isinstance(message, message_type))

    with pytest.raises(MalformedPayloadError) as raised:
        decode(encode(message), kind_of(message_type), message_type)
    assert kind_of(type(message)) in str(raised.value)
    assert kind_of(message_type) in str(raised.value)


@pytest.mark.parametrize(
    ("message", "kind", "message_type"),
    [
        pytest.param(KpRotation(), "kp_rotation", KpDeletion, id="another-message-of-the-same-kind"),
        pytest.param(RECEIPT, "kp_rotation", KpRotation, id="plugin-in-a-first-party-row"),
        pytest.param(KpRotation(), RECEIPT_KIND, SendReceipt, id="first-party-in-a-plugins-row"),
        pytest.param(RECEIPT, "SendReceipt", SendReceipt, id="name-without-its-package"),
    ],
)
def test_rule_06_a_payload_of_another_type_is_malformed(
    message: Message, kind: str, message_type: type[Message]
) -> None:
    with pytest.raises(MalformedPayloadError, match=kind):
        decode(encode(message), kind, message_type)


@pytest.mark.parametrize(
    "type_url", ["", "/", RECEIPT_KIND + "/", "type.googleapis.com/acme.receipts.sendreceipt"]
)
def test_rule_06_a_type_url_that_names_no_or_another_message_is_malformed(type_url: str) -> None:
    data = in_plugin_field(type_url, RECEIPT.SerializeToString())

    with pytest.raises(MalformedPayloadError):
        decode(data, RECEIPT_KIND, SendReceipt)


def a_thread_nested(depth: int) -> bytes:
    """Return the bytes of a `ReceiptThread` with replies to replies, without help from protobuf's limits."""
    value = b""
    for _ in range(depth):
        value = length_delimited(2, value)
    return value


@pytest.mark.parametrize(
    ("data", "message_type"),
    [
        pytest.param(b"\x1a\x05\x0a\x03", ProcessPendingSelfRemove, id="cut-off"),
        pytest.param(b"\xff\xff\xff", SendReceipt, id="no-protobuf"),
        pytest.param(b"\x00\x00", SendReceipt, id="field-0"),
        pytest.param(in_plugin_field("/" + RECEIPT_KIND, b"\x0a\xff"), SendReceipt, id="cut-off-inside"),
        pytest.param(in_plugin_field("/" + RECEIPT_KIND, b"\x12\x01\xff"), SendReceipt, id="text-not-utf-8"),
        pytest.param(b"\xa2\x06\x03\x0a\x01\xff", SendReceipt, id="type-url-not-utf-8"),
        pytest.param(
            in_plugin_field("/acme.receipts.ReceiptThread", a_thread_nested(300)),
            ReceiptThread,
            id="too-deep",
        ),
    ],
)
def test_rule_05_bytes_that_do_not_decode_are_malformed(data: bytes, message_type: type[Message]) -> None:
    with pytest.raises(MalformedPayloadError, match="does not decode"):
        decode(data, kind_of(message_type), message_type)


def assert_decodes_or_is_a_payload_error(data: bytes, message_type: type[Message]) -> None:
    try:
        message = decode(data, kind_of(message_type), message_type)
    except PayloadError as error:
        assert str(error)
    else:
        assert isinstance(message, message_type)


@given(data=st.binary(), message_type=MESSAGE_TYPES)
def test_rule_05_arbitrary_bytes_raise_nothing_but_payload_errors(
    data: bytes, message_type: type[Message]
) -> None:
    assert_decodes_or_is_a_payload_error(data, message_type)


@given(
    message=MESSAGES,
    position=st.integers(0),
    removed=st.integers(0, 4),
    inserted=st.binary(max_size=4),
    message_type=MESSAGE_TYPES,
)
def test_rule_05_damaged_rows_raise_nothing_but_payload_errors(
    message: Message, position: int, removed: int, inserted: bytes, message_type: type[Message]
) -> None:
    data = encode(message)
    start = position % (len(data) + 1)
    damaged = data[:start] + inserted + data[start + removed :]

    for expected in (type(message), message_type):
        assert_decodes_or_is_a_payload_error(damaged, expected)


@given(value=st.binary(), message_type=st.sampled_from([SendReceipt, ReceiptThread]))
def test_rule_05_arbitrary_bytes_inside_a_plugins_payload_raise_nothing_but_payload_errors(
    value: bytes, message_type: type[Message]
) -> None:
    data = in_plugin_field(f"type.googleapis.com/{kind_of(message_type)}", value)

    assert_decodes_or_is_a_payload_error(data, message_type)


# Section 5: map fields


@pytest.mark.parametrize(
    ("message_type", "field"),
    [
        pytest.param(TaggedReceipt, "acme.receipts.TaggedReceipt.tags", id="of-its-own"),
        pytest.param(ReceiptArchive, "acme.receipts.ReceiptArchive.Folder.Page.receipts", id="two-levels-down"),
        pytest.param(LinkedReceipt, "acme.receipts.TaggedReceipt.tags", id="behind-a-recursive-field"),
        pytest.param(Struct, "google.protobuf.Struct.fields", id="of-protobufs-own"),
    ],
)
def test_section_5_a_map_field_at_any_depth_is_refused_and_named(message_type: type[Message], field: str) -> None:
    with pytest.raises(KindError) as raised:
        check_deterministic(message_type)

    assert field in str(raised.value)
    assert str(message_type.DESCRIPTOR.full_name) in str(raised.value)


@pytest.mark.parametrize("message_type", [SendReceipt, ReceiptThread, PullInDeadline, KpRotation, AnyMessage])
def test_section_5_types_without_a_map_field_are_accepted_recursive_ones_too(message_type: Any) -> None:
    assert check_deterministic(message_type) is None  # type: ignore[func-returns-value]
