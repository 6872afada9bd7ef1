"""What the process does to the engines in it: a fork, and an exit without `stop`."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callboard._engine import Engine

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def watch(engine: Engine) -> None:
    """Have `engine` unstarted in every child that this process forks, and stopped when the interpreter exits."""
    _engines.add(engine)


def _forked() -> None:
    for engine in list(_engines):
        engine._after_fork()


def _exiting() -> None:
    for engine in list(_engines):
        engine.stop(timeout=0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_exiting)
