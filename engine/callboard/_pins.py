"""What a kind's rows look like, written down, so that no change of a message orphans rows by accident.

A row is found by its kind's name and the hash of its bytes, and outlives builds. A pin is one message with all
three. It holds as long as the message that its fields describe still has these bytes, and these bytes can still be
read as that message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import Message

from callboard._codec import decode, encode, hash_of
from callboard._kinds import TaskKind
from callboard._specimens import specimens
from callboard.errors import PayloadError, PluginError

Kinds = Mapping[str, TaskKind[Any]]


class Pin(NamedTuple):
    """One message as a row has it.

    Attributes:
        kind: the kind's name.
        sample: what the message shows of its type.
        message: its fields as protobuf's JSON has them.
        data: the row's bytes.
        sha256: their hash, by which a row is found.
    """

    kind: str
    sample: str
    message: Any
    data: bytes
    sha256: bytes

    def as_object(self) -> dict[str, Any]:
        """Return it as the file has it."""
        return {**self._asdict(), "data": self.data.hex(), "sha256": self.sha256.hex()}

    def __str__(self) -> str:
        """Name it."""
        return f"{self.kind} ({self.sample})"


def default_file(plugin: str, folder: Path = Path()) -> Path:
    """Return where the pins of a plugin are, unless somebody says otherwise."""
    return folder / "pins" / f"{plugin}.json"


def made(kinds: Kinds) -> list[Pin]:
    """Return pins of each field of each kind, as they are in this build."""
    return [
        _pin(name, sample, message)
        for name, kind in sorted(kinds.items())
        for sample, message in specimens(kind.message_type).items()
    ]


def _pin(kind: str, sample: str, message: Message) -> Pin:
    data = encode(message)
    return Pin(kind, sample, _as_json(message), data, hash_of(data))


def _as_json(message: Message) -> Any:
    from google.protobuf import json_format  # here, because the command line's help need not wait for it

    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def judged(pins: Iterable[Pin], kinds: Kinds) -> tuple[list[Pin], list[str]]:
    """Return the pins that hold, and of each other one why it does not hold any more."""
    holding, complaints = [], []
    for pin in pins:
        why = _complaint(pin, kinds)
        if why is None:
            holding.append(pin)
        else:
            complaints.append(why)
    return holding, complaints


def _complaint(pin: Pin, kinds: Kinds) -> str | None:
    from google.protobuf import json_format

    kind = kinds.get(pin.kind)
    if kind is None:
        return f"{pin}: the plugin brings no kind of that name any more, so nobody would run its rows"
    try:
        message = json_format.ParseDict(pin.message, kind.message_type())
    except json_format.ParseError as error:
        why = " ".join(str(error).split())
        return f"{pin}: a field is gone, or has another name or type: {why}"
    data = encode(message)
    if data != pin.data:
        return (
            f"{pin}: its bytes were {pin.data.hex()} and are {data.hex()}, so rows of it would not be recognised"
        )
    if hash_of(data) != pin.sha256:
        return f"{pin}: its SHA-256 is {hash_of(data).hex()}, not {pin.sha256.hex()}; somebody edited the file"
    try:
        decode(pin.data, pin.kind, kind.message_type, whole=True)
    except PayloadError as error:
        return f"{pin}: {error}"
    return None


def unpinned(pins: Iterable[Pin], kinds: Kinds) -> list[Pin]:
    """Return the pins that this build would make and that are not among `pins`."""
    known = {(pin.kind, pin.data) for pin in pins}
    return [pin for pin in made(kinds) if (pin.kind, pin.data) not in known]


def read(file: Path) -> list[Pin]:
    """Return the pins in a file.

    Raises:
        PluginError: there is no such file, or it holds something else.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return [
            Pin(
                str(each["kind"]),
                str(each["sample"]),
                each["message"],
                bytes.fromhex(each["data"]),
                bytes.fromhex(each["sha256"]),
            )
            for each in document["pins"]
        ]
    except OSError as error:
        raise PluginError(f"the pins cannot be read: {error}; `callboard pins write NAME` writes them") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PluginError(
            f"{file} holds no pins ({error!r}); take it back from version control, or delete it and run"
            " `callboard pins write`"
        ) from error


def write(file: Path, plugin: str, pins: Iterable[Pin]) -> None:
    """Write pins to a file, which is replaced as a whole.

    Raises:
        PluginError: the file cannot be written.
    """
    document = {"plugin": plugin, "pins": [pin.as_object() for pin in pins]}
    unfinished = file.with_name(f"{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        raise PluginError(f"the pins cannot be written: {error}") from error
