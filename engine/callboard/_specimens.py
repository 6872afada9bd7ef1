"""Messages made from their type alone, the same in every build, with values that tell one field from another.

Where nobody gives messages of a kind, pins are made of these, and the contract suite runs its handler on them.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any, TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import StringValue

M = TypeVar("M", bound=Message)

_DEPTH = 3  # of messages inside messages, which may be recursive
_MESSAGES = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP)
_FLOATS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)


def specimens(message_type: type[M]) -> dict[str, M]:
    """Return messages of a type by what they show: no field, every field, and each further member of a oneof."""
    made = {"no field": message_type()}
    _fill(made["no field"], _DEPTH, only_required=True)
    if message_type.DESCRIPTOR.fields:
        made["every field"] = message_type()
        _fill(made["every field"], _DEPTH)
    for oneof in message_type.DESCRIPTOR.oneofs:
        for field in list(oneof.fields)[1:]:
            other = message_type()
            other.CopyFrom(made["every field"])
            _set(other, field, _DEPTH)
            made[f"{oneof.name}: {field.name}"] = other
    return made


def is_message(field: FieldDescriptor) -> bool:
    """Return whether a field holds messages."""
    return field.type in _MESSAGES


def is_repeated(message: Message, field: FieldDescriptor) -> bool:
    """Return whether a field holds several values; protobuf's versions have no common way to ask the field."""
    return isinstance(getattr(message, field.name), MutableSequence)


def is_required(field: FieldDescriptor) -> bool:
    """Return whether a message without the field cannot be written, as proto2 has it."""
    # Older versions of protobuf lack it, and newer ones warn of what the older ones have.
    found = getattr(field, "is_required", None)
    return field.label == FieldDescriptor.LABEL_REQUIRED if found is None else bool(found)


def _fill(message: Message, depth: int, *, only_required: bool = False) -> None:
    if isinstance(message, AnyMessage):  # what else is in it would be no message
        message.Pack(StringValue(value="any"))
        return
    for field in message.DESCRIPTOR.fields:
        if only_required and not is_required(field):
            continue
        if field.containing_oneof is None or field.containing_oneof.fields[0].number == field.number:
            _set(message, field, depth)


def _set(message: Message, field: FieldDescriptor, depth: int) -> None:
    if is_message(field) and depth == 0 and not is_required(field):
        return
    if is_repeated(message, field):
        values: Any = getattr(message, field.name)
        if is_message(field):
            _fill(values.add(), depth - 1)
        else:
            values.append(_value(field))
    elif is_message(field):
        inside: Message = getattr(message, field.name)
        inside.SetInParent()
        _fill(inside, depth - 1)
    else:
        setattr(message, field.name, _value(field))


def _value(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return field.name
    if field.type == FieldDescriptor.TYPE_BYTES:
        return field.name.encode()
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values[-1].number
    if field.type in _FLOATS:
        return field.number + 0.5
    return field.number
