"""Make rows that are nearly right: from an ordinary one, change a few columns and bytes of the payload."""

from __future__ import annotations

import random

from tests.fuzz.rows import CHOICES, ORDINARY, PAYLOADS

_TAGS = (b"\x0a\x01g", b"\x12\x04read", b"\xfa\x07\x03new", b"\x7a\x01x", b"\xa2\x06\x02\x0a\x00", b"\x08\x96\x01")


def seeds() -> list[bytes]:
    """Return ordinary rows, one of each sort."""
    return [ORDINARY + payload for payload in PAYLOADS]


def mutated(chance: random.Random) -> bytes:
    """Return the bytes of a row."""
    choices = bytearray(CHOICES)
    for _ in range(chance.randrange(6)):
        choices[chance.randrange(24)] = chance.randrange(256)
    payload = bytearray(chance.choice(PAYLOADS))
    for _ in range(chance.choice((0, 0, 1, 1, 2, 4, 8))):
        _mutate(payload, chance)
    return bytes(choices + payload)


def _mutate(payload: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(payload) + 1)
    match chance.randrange(6):
        case 0:
            payload[at:at] = chance.randbytes(chance.choice((1, 2, 10)))
        case 1:
            del payload[at : at + chance.choice((1, 2, 10))]
        case 2:
            payload[at:at] = chance.choice(_TAGS)
        case 3:
            payload[at:] = chance.choice(PAYLOADS)
        case 4:
            payload[at:at] = payload[: chance.randrange(len(payload) + 1)]
        case 5 if at < len(payload):
            payload[at] ^= 1 << chance.randrange(8)
