"""Who an installation is: the inbox it belongs to and the seed of its signing key, in one private file."""

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from callboard import CallboardError

_FILE_NAME = "installation.json"
_SEED_SIZE = 32
"""Bytes of an Ed25519 private key (RFC 8032 section 5.1.5)."""


class NoInstallationError(CallboardError):
    """The directory holds no installation, or another inbox's."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What makes an installation itself.

    Attributes:
        inbox_id: The inbox that it belongs to.
        signing_seed: The seed of its Ed25519 key; secret.
    """

    inbox_id: str
    signing_seed: bytes

    @classmethod
    def open(cls, store: Path, inbox_id: str | None) -> "Credentials":
        """Return the credentials kept in `store`; make them for `inbox_id` where there are none.

        Raises:
            NoInstallationError: There are none and no inbox to make them for, or another inbox's.
        """
        path = store / _FILE_NAME
        if not path.exists():
            if inbox_id is None:
                raise NoInstallationError(f"{store} holds no installation: give an inbox_id to make one")
            _write(path, inbox_id, secrets.token_bytes(_SEED_SIZE))
        fields = json.loads(path.read_text())
        if inbox_id not in (None, fields["inbox_id"]):
            raise NoInstallationError(f"{store} belongs to another inbox: give each installation its own")
        return cls(inbox_id=fields["inbox_id"], signing_seed=bytes.fromhex(fields["signing_seed"]))


def _write(path: Path, inbox_id: str, seed: bytes) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.unlink(missing_ok=True)
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump({"inbox_id": inbox_id, "signing_seed": seed.hex()}, file)
        file.flush()
        os.fsync(fd)
    unfinished.rename(path)
