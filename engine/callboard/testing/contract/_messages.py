"""Messages of any type, as Hypothesis makes them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from callboard._specimens import is_message, is_repeated, is_required

_DEPTH = 3
_MOST_REPEATED = 3
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
}


@st.composite
def messages(draw: Callable[[Any], Any], message_type: type[Message]) -> Message:
    """Make a message of a type: any fields set, to anything that they can hold."""
    message = message_type()
    _fill(draw, message, _DEPTH)
    return message


def _fill(draw: Callable[[Any], Any], message: Message, depth: int) -> None:
    if isinstance(message, AnyMessage):  # anything else in it is none
        return
    for field in message.DESCRIPTOR.fields:
        if not is_required(field) and ((is_message(field) and depth == 0) or not draw(st.booleans())):
            continue
        if is_repeated(message, field):
            values: Any = getattr(message, field.name)
            for _ in range(draw(st.integers(1, _MOST_REPEATED))):
                if is_message(field):
                    _fill(draw, values.add(), depth - 1)
                else:
                    values.append(draw(_values(field)))
        elif is_message(field):
            inside: Message = getattr(message, field.name)
            inside.SetInParent()
            _fill(draw, inside, depth - 1)
        else:
            setattr(message, field.name, draw(_values(field)))


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return st.text(max_size=20)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=20)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type in _INTEGERS:
        return st.integers(*_INTEGERS[field.type])
    return st.floats(allow_nan=False, width=32)
