"""Keep a thread at its work whatever is raised in it: a bug of ours, or an exception thrown from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from callboard._error_text import trace_of
from callboard._log import logger

_PAUSE_S = 0.1
"""How long a thread waits before it begins again, so that one which fails each time does not spin."""


def endure(what: str, body: Callable[[], None]) -> None:
    """Call `body` until it returns; what it raises is logged, and it is called again. Its state is not its own."""
    while True:
        try:
            return body()
        except BaseException as error:
            log_defect(what, error)
            time.sleep(_PAUSE_S)


def log_defect(what: str, error: BaseException) -> None:
    """Say that a part of the engine raised, and goes on."""
    with suppress(Exception):  # of a sink of the host's
        logger.error("{} failed and goes on; please report this\n{}", what, trace_of(error))
