"""The messages that rows of the task table are made of.

Everything here is generated from `task.proto`, which pins the field numbers; this module is the one place
that imports the generated code, so that its name stays free to change.
"""

from callboard.wire.task_pb2 import (
    AddMissingInstallations,
    KpDeletion,
    KpLiveness,
    KpRotation,
    ProcessPendingSelfRemove,
    PullInDeadline,
    Task,
)

__all__ = [
    "AddMissingInstallations",
    "KpDeletion",
    "KpLiveness",
    "KpRotation",
    "ProcessPendingSelfRemove",
    "PullInDeadline",
    "Task",
]
