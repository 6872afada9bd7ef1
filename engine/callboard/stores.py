"""For authors of stores: what the engine asks of a database, and what it passes to it and back.

A store is an object with everything that `Store` names; `Engine(store)` runs on it, and
`callboard.testing.store_contract.StoreContract` tests that it keeps the promises that the protocols make.
"""

from __future__ import annotations

from callboard._group_state import GroupState, PendingRemove
from callboard._lifecycle import Bury, Finish, Keep, Transition
from callboard._migration import Migration
from callboard._store.interface import (
    AwaitedConnections,
    GroupTable,
    NodeRow,
    NodeTable,
    PluginTables,
    Row,
    Session,
    Store,
)
from callboard._store.policy import Orphan, TaskPolicy
from callboard._store.task_table import LOOK, Heads, Held, TaskTable
from callboard._task import (
    DeadReason,
    DeadTask,
    Enqueued,
    EnqueueStatus,
    FinishedTask,
    NewTask,
    Task,
    TaskState,
)

__all__ = [
    "LOOK",
    "AwaitedConnections",
    "Bury",
    "DeadReason",
    "DeadTask",
    "EnqueueStatus",
    "Enqueued",
    "Finish",
    "FinishedTask",
    "GroupState",
    "GroupTable",
    "Heads",
    "Held",
    "Keep",
    "Migration",
    "NewTask",
    "NodeRow",
    "NodeTable",
    "Orphan",
    "PendingRemove",
    "PluginTables",
    "Row",
    "Session",
    "Store",
    "Task",
    "TaskPolicy",
    "TaskState",
    "TaskTable",
    "Transition",
]
