"""The page of wire numbers is that of the generated code."""

from __future__ import annotations

from hashlib import sha256

from google.protobuf.descriptor import FieldDescriptor
from tests import pages

from callboard.wire import Task as Envelope

PAGE = "docs/reference/wire.md"


def test_the_numbers_are_those_of_the_descriptor() -> None:
    kinds = {
        FieldDescriptor.TYPE_BYTES: "bytes",
        FieldDescriptor.TYPE_INT64: "int64",
        FieldDescriptor.TYPE_STRING: "string",
    }
    expected = [
        [
            str(field.number),
            field.name,
            field.message_type.full_name,
            ", ".join(f"{kinds[each.type]} {each.name} = {each.number}" for each in field.message_type.fields),
        ]
        for field in Envelope.DESCRIPTOR.fields
    ]

    assert [[pages.plain(cell) for cell in row.values()] for row in pages.table(PAGE, "number")] == expected


def test_the_bytes_and_hashes_are_those_of_the_page() -> None:
    for row in pages.table(PAGE, "encoded"):
        envelope = Envelope()
        getattr(envelope, pages.plain(row["encoded"])).SetInParent()
        encoded = envelope.SerializeToString(deterministic=True)
        assert encoded.hex() == pages.plain(row["bytes, in hex"])
        assert sha256(encoded).hexdigest() == pages.plain(row["SHA-256"])
