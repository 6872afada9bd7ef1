"""A payload for display, where somebody asked to see it: never an error, whatever is in it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from callboard._codec import decode
from callboard._databaseless import databaseless
from callboard._task import DeadTask, Task
from callboard.cli._output import printable


def as_json(row: Task | DeadTask) -> dict[str, Any]:
    """Return what JSON has of a payload: the bytes in hex, and the message, `None` if nobody here can read it."""
    from google.protobuf import json_format  # here, because help and listings need not wait for it

    message = _message(row)
    try:
        decoded = None if message is None else json_format.MessageToDict(message, preserving_proto_field_name=True)
    except Exception:  # such as an Any inside, of a type that is not installed
        decoded = None
    return {"data": row.data.hex(), "payload": decoded}


def as_text(row: Task | DeadTask) -> str:
    """Return what people see of a payload: the message, or the bytes in hex if nobody here can read it."""
    from google.protobuf import text_format

    message = _message(row)
    if message is not None:
        try:
            return printable_lines(text_format.MessageToString(message)) or "(no field is set)"
        except Exception:  # as above
            pass
    return row.data.hex() or "(empty)"


def printable_lines(text: str) -> str:
    """Return text of several lines that cannot move a terminal's cursor or change its colours."""
    return "\n".join(printable(line) for line in text.rstrip().splitlines())


def _message(row: Task | DeadTask) -> Message | None:
    kind = databaseless()._core.registry.get(row.kind)
    if kind is None:
        return None
    try:
        message: Message = decode(row.data, row.kind, kind.message_type)
    except Exception:  # what is no payload at all, or a plugin's message class that does not work
        return None
    return message
