"""The housekeeping of MLS (RFC 9420) group messaging, as plugins of the Callboard task engine.

A host gives the engine a `Backend` and installs this distribution; the engine finds one plugin for each job.
What the jobs do can also be called inline, as the host's fast path: the tasks are the backstop and call the
same functions.
"""

from loguru import logger as _logger

from callboard_mls.backend import (
    Backend,
    DirectoryBehindError,
    EpochRejectedError,
    GroupNotFoundError,
    KeyPackageStatus,
    MalformedGroupIdError,
)
from callboard_mls.key_packages import check_key_package, delete_superseded_key_packages, rotate_key_package
from callboard_mls.missing_installations import add_missing_installations, schedule_missing_installations
from callboard_mls.pull_in import pull_in_deadline
from callboard_mls.self_remove import process_pending_self_removals

# Silent until the host asks, as the engine is: logger.enable("callboard_mls").
_logger.disable("callboard_mls")

__all__ = [
    "Backend",
    "DirectoryBehindError",
    "EpochRejectedError",
    "GroupNotFoundError",
    "KeyPackageStatus",
    "MalformedGroupIdError",
    "add_missing_installations",
    "check_key_package",
    "delete_superseded_key_packages",
    "process_pending_self_removals",
    "pull_in_deadline",
    "rotate_key_package",
    "schedule_missing_installations",
]
