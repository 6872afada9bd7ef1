"""The ledger's entries on their way to a file, which several processes share and no kill cuts short.

Each entry is one write to a file opened for appending, so it is there, in one piece, before its writer goes on.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.ledger import Came, Entry, What


class Journal:
    """One node's pen."""

    def __init__(self, path: Path, node: str) -> None:
        """Append to `path` what happens on `node`."""
        self.node = node
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def new_ref(self) -> str:
        """Return a name for a request or a run that no other has."""
        with self._lock:
            return f"{self.node}/{next(self._numbers)}"

    def note(self, what: What, *, at_ns: int | None = None, **fields: Any) -> None:
        """Write an entry, by default of now."""
        at_ns = time.monotonic_ns() if at_ns is None else at_ns
        os.write(self._file, json.dumps([at_ns, self.node, what, fields]).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: Path) -> list[Entry]:
    """Return the entries of a file."""
    entries = []
    for line in path.read_text().splitlines():
        at_ns, node, what, fields = json.loads(line)
        if "came" in fields:
            fields["came"] = Came(fields["came"])
        entries.append(Entry(at_ns, node, What(what), **fields))
    return entries
