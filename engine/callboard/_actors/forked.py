"""End a child process that came back from a plugin's code, which forked there and let both sides return.

The child has a copy of all that waits in the engine's queues, and would run the parent's tasks a second time.
"""

from __future__ import annotations

import os

from callboard._log import logger
from callboard._pid import current_pid

EXIT_STATUS = 70
"""What such a child exits with: EX_SOFTWARE of sysexits.h."""


def end_child(pid: int, what: str) -> None:
    """End this process, without its exit handlers, unless it is still the process `pid`."""
    if current_pid() == pid:
        return
    try:
        logger.error("{} forked and came back in the child as well, which ends here; leave it by os._exit", what)
    finally:
        os._exit(EXIT_STATUS)
