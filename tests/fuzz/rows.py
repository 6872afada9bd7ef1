"""Rows as anybody may have written them, made of bytes, so that one harness serves every fuzzer.

The first bytes choose the columns, zeros the ordinary ones, and what is left is the payload. So a payload behind
`ORDINARY` is an ordinary row of it, from which a fuzzer may start.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from tests.engine.messages import ReceiptThread, SendReceipt

from callboard import TaskKind
from callboard._codec import encode, hash_of
from callboard._task import Task
from callboard.wire import (
    AddMissingInstallations,
    KpDeletion,
    KpLiveness,
    KpRotation,
    ProcessPendingSelfRemove,
    PullInDeadline,
)
from callboard.wire import Task as Envelope

NOW_NS = 1_700_000_000 * 10**9
LEAST, MOST = -(2**63), 2**63 - 1

CHOICES = 64
"""Bytes that choose columns."""

ORDINARY = bytes(CHOICES)

INTEGERS = (0, 1, -1, 2, 20, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**62), MOST - 1, MOST, LEAST + 1, LEAST)
TIMES = (NOW_NS - 1, NOW_NS, NOW_NS + 1, NOW_NS + 3_600 * 10**9, 10**15, *INTEGERS)
_FLOATS = (1.5, 0.0, -0.0, 1.0, -1.0, 5e-324, 1.7e308, -1.7e308, math.inf, -math.inf, math.nan, 1e-9)
TEXTS = (
    "",
    "a\0b",
    "kp_rotation\0",
    "acme.receipts.SendReceipt ",
    "\U0001f3ad",
    "\uff4bp_rotation",
    "%s{}",
    "'; --",
    "x" * 5_000,
)


def _refuse(message: Any, ctx: Any) -> None:
    raise AssertionError("the pure harness calls no handler")


def _group_of(message: SendReceipt) -> bytes | None:
    """Return the group, or do one of the things that a plugin's own code may do."""
    match message.text:
        case "raise":
            raise RuntimeError("half a pair: \udc80")
        case "exit":
            raise SystemExit(3)
    return message.group_id or None


def kinds(handler: Any = _refuse) -> list[TaskKind[Any]]:
    """Return kinds of every sort: with and without group, recurring, particular about unknown fields."""
    return [
        TaskKind(SendReceipt, handler, group_id=_group_of),
        TaskKind(ReceiptThread, handler, on_unknown_fields="defer"),
        TaskKind(KpRotation, handler, recurring=True),
        TaskKind(PullInDeadline, handler, on_unknown_fields="defer", timeout=timedelta(seconds=1)),
        TaskKind(AddMissingInstallations, handler, group_id=lambda message: message.group_id),
        TaskKind(AnyMessage, handler),
    ]


KINDS = {kind.name: kind for kind in kinds()}

EXAMPLES = [
    SendReceipt(group_id=b"g", text="read"),
    SendReceipt(text="raise"),
    SendReceipt(text="exit"),
    ReceiptThread(
        receipt=SendReceipt(text="read"), replies=[ReceiptThread(), ReceiptThread(replies=[ReceiptThread()])]
    ),
    KpRotation(),
    KpDeletion(),
    KpLiveness(),
    PullInDeadline(target_data_hash=b"\x11" * 32, not_later_than_ns=1234567890),
    AddMissingInstallations(group_id=b"g" * 32),
    ProcessPendingSelfRemove(group_id=b"g" * 32),
    AnyMessage(type_url="a/b", value=b"c"),
]
PAYLOADS = [encode(message) for message in EXAMPLES]
_NAMES = [*KINDS, "kp_deletion", "acme.unknown"]


class Source:
    """Bytes to choose by; zeros when they have run out."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, limit: int) -> int:
        """Return a number from 0 to below `limit`, which is at most 256."""
        self._at += 1
        return self._data[self._at - 1] % limit if self._at <= len(self._data) else 0

    def one_of(self, ordinary: Any, others: Any) -> Any:
        """Return the ordinary thing, half of the time, or one of the others."""
        choice = self.below(256)
        return ordinary if choice % 2 == 0 else others[(choice >> 1) % len(others)]

    def rest(self) -> bytes:
        """Return what is left after the bytes that choose."""
        return self._data[CHOICES:]


def row_of(data: bytes) -> Task:
    """Return the row that these bytes choose, due and as a claim reads it."""
    source = Source(data)
    rest = source.rest()
    payload = _payload(source, rest)
    name = (
        _kind_in(payload)
        if (choice := source.below(256)) % 2 == 0
        else [*_NAMES, *TEXTS][(choice >> 1) % (len(_NAMES) + len(TEXTS))]
    )
    return Task(
        id=1,
        kind=name,
        group_id=source.one_of(None, (b"", b"g", b"g" * 255, b"\xff" * 300)),
        identity=hash_of(payload),
        data=payload,
        data_hash=source.one_of(hash_of(payload), (b"", b"\0" * 32, b"x" * 1_000)),
        state=source.one_of("pending", ("running", "deferred", "", "PENDING", "paused")),
        attempts=source.one_of(0, INTEGERS),
        max_attempts=source.one_of(20, (None, *INTEGERS)),
        created_at_ns=source.one_of(NOW_NS, TIMES),
        expires_at_ns=source.one_of(NOW_NS + 259_200 * 10**9, TIMES),
        next_attempt_at_ns=source.one_of(0, TIMES),
        last_attempted_at_ns=source.one_of(None, TIMES),
        initial_backoff_ns=source.one_of(2 * 10**9, (None, *INTEGERS)),
        backoff_factor=source.one_of(1.5, (None, *_FLOATS)),
        max_backoff_ns=source.one_of(60 * 10**9, (None, *INTEGERS)),
        requests=source.one_of(1, INTEGERS),
        outages=source.one_of(0, INTEGERS),
        pulled_in_ns=source.one_of(None, TIMES),
        token=source.one_of(0, INTEGERS),
        owner=source.one_of(None, INTEGERS),
        origin=source.one_of(None, TEXTS),
        last_error=source.one_of(None, TEXTS),
    )


def _payload(source: Source, rest: bytes) -> bytes:
    """Return the rest as it is, in an envelope, or what it makes of a well-formed payload."""
    how, example, at = source.below(8), PAYLOADS[source.below(len(PAYLOADS))], source.below(256)
    match how:
        case 1:
            name = source.one_of(
                "acme.receipts.SendReceipt", ("", "/", "acme.receipts.ReceiptThread", "a" * 5_000)
            )
            return Envelope(
                plugin=AnyMessage(type_url=f"type.googleapis.com/{name}", value=rest)
            ).SerializeToString()
        case 2:
            return example[: at % (len(example) + 1)] + rest + example[at % (len(example) + 1) :]
        case 3:
            changed = bytearray(example)
            for position, byte in zip(rest[::2], rest[1::2], strict=False):
                changed[position % len(changed)] = byte
            return bytes(changed)
        case 4:
            return example + rest
        case 5:
            return example[: at % (len(example) + 1)]
        case 6:
            return rest * (1 + at * 4)
    return rest


def _kind_in(payload: bytes) -> str:
    """Return the kind that the payload says it is of, so that most rows agree with theirs."""
    try:
        envelope = Envelope.FromString(payload)
    except Exception:
        return _NAMES[0]
    name = envelope.WhichOneof("task")
    if name == "plugin":
        return str(envelope.plugin.type_url.rpartition("/")[2])
    return str(name or _NAMES[0])
