"""The engine's log, loguru's, which is silent until the host asks for it. Whatever logs takes `logger` from here.

Not in the package's `__init__`: loguru brings asyncio, a third of the time that `callboard --help` would take.
"""

from __future__ import annotations

from loguru import logger

__all__ = ["logger"]


def _is_asked_for() -> bool:
    """Return whether the host has enabled the log already, which must not be undone.

    loguru answers no such question. It keeps what was enabled in the same place since 0.2; without that place the
    log is silent, as it would be by default.
    """
    core = getattr(logger, "_core", None)
    return ("callboard.", True) in getattr(core, "activation_list", ())


if not _is_asked_for():
    logger.disable("callboard")
