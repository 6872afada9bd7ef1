"""Between a message and a row: the envelope's bytes, hash and identity, and back.

The bytes must be the same in every build, since a row's identity is made of them and rows outlive builds.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from callboard.errors import KindError, MalformedPayloadError, UnknownPayloadError
from callboard.wire import Task as Envelope

M = TypeVar("M", bound=Message)

_PLUGIN_FIELD = "plugin"
_ONEOF = "task"
_ENVELOPE_FIELDS: dict[str, str] = {
    field.message_type.full_name: field.name
    for field in Envelope.DESCRIPTOR.oneofs_by_name[_ONEOF].fields
    if field.name != _PLUGIN_FIELD
}


def kind_of(message_type: type[Message]) -> str:
    """Return a message type's kind: its field in the envelope, or else its full name."""
    full_name = str(message_type.DESCRIPTOR.full_name)
    return _ENVELOPE_FIELDS.get(full_name, full_name)


def check_deterministic(message_type: type[Message]) -> None:
    """Refuse a message type with a map field at any depth: the order of its bytes is not fixed.

    Raises:
        KindError: naming the field.
    """
    path = _map_field(message_type.DESCRIPTOR, seen=set())
    if path is not None:
        raise KindError(
            f"{message_type.DESCRIPTOR.full_name}: field {path} is a map, whose bytes have no fixed order, so"
            " the same task would get two identities; use a repeated message of key and value instead"
        )


def _map_field(descriptor: Descriptor, seen: set[str]) -> str | None:
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        if field.type != FieldDescriptor.TYPE_MESSAGE and field.type != FieldDescriptor.TYPE_GROUP:
            continue
        if field.message_type.GetOptions().map_entry:
            return str(field.full_name)
        if field.message_type.full_name not in seen:
            found = _map_field(field.message_type, seen)
            if found is not None:
                return found
    return None


def encode(message: Message) -> bytes:
    """Return the envelope's bytes for `message`, the same in every build."""
    envelope = Envelope()
    name = _ENVELOPE_FIELDS.get(message.DESCRIPTOR.full_name)
    if name is None:
        envelope.plugin.type_url = f"type.googleapis.com/{message.DESCRIPTOR.full_name}"
        envelope.plugin.value = message.SerializeToString(deterministic=True)
    else:
        getattr(envelope, name).CopyFrom(message)
    return bytes(envelope.SerializeToString(deterministic=True))


def decode(data: bytes, kind: str, message_type: type[M], *, whole: bool = False) -> M:
    """Return the message in a row's bytes, which must be of the row's kind.

    Args:
        data: the envelope's bytes.
        kind: what the row says that they are.
        message_type: the class of that kind's messages.
        whole: whether every field in the bytes must be known, at any depth.

    Raises:
        MalformedPayloadError: the bytes do not decode, are empty, or carry another kind than the row says.
        UnknownPayloadError: the envelope carries a oneof field that this build does not know, or the bytes are
            to be understood as a whole and are not.
    """
    try:
        envelope = Envelope.FromString(data)
        name = envelope.WhichOneof(_ONEOF)
        if name is None:
            if data:
                raise UnknownPayloadError("the payload carries a field that this build does not know")
            raise MalformedPayloadError("the payload is an empty Task")
        if name == _PLUGIN_FIELD:
            name = envelope.plugin.type_url.rpartition("/")[2]
            found: Message = message_type.FromString(envelope.plugin.value) if name == kind else envelope
        else:
            found = getattr(envelope, name)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last two in pure Python only
        raise MalformedPayloadError(f"the payload does not decode: {error}") from error
    if name != kind:
        raise MalformedPayloadError(f"the payload is of kind {name!r}, its row says {kind!r}")
    if not isinstance(found, message_type):
        raise MalformedPayloadError(f"the payload of kind {kind!r} is not a {message_type.DESCRIPTOR.full_name}")
    if whole and (_has_unknown_fields(envelope) or _has_unknown_fields(found)):
        raise UnknownPayloadError(f"the payload of kind {kind!r} has fields that this build does not know")
    return found


def _has_unknown_fields(message: Message) -> bool:
    """Tell whether a message has them, at any depth.

    Each of protobuf's versions has another way to ask; a copy without them is smaller in all.
    """
    known: Any = type(message)()  # whose stubs lack the method
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.ByteSize() != message.ByteSize())


def hash_of(data: bytes) -> bytes:
    """Return the SHA-256 of an envelope's bytes, 32 bytes: the `data_hash` column."""
    return hashlib.sha256(data).digest()


def keyed_identity(kind: str, key: str) -> bytes:
    """Return the identity of a task that the caller named by a key: SHA-256 of kind, NUL and key."""
    return hashlib.sha256(b"\0".join((kind.encode(), key.encode()))).digest()
