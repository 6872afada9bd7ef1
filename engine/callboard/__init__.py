"""Callboard: an embeddable, durable task engine on an actor model.

What is named here is the public API; modules whose names begin with an underscore are not. Where to begin:

* A host makes an `Engine` (`help(Engine.__init__)` tells its arguments) and calls `Engine.enqueue`.
* A plugin returns `TaskKind`s. A handler gets a `TaskContext` and returns `Done`, `RescheduleAt`, `Defer` or
  `Discard`, or raises. The hooks are in `callboard.hookspec`, their reference.
* Tests move a `callboard.testing.FakeClock`.
* For another database somebody writes a store: `callboard.stores`.
* `Engine.health`, `Engine.tasks` and `Engine.dead_tasks` tell what goes on; the log (loguru's) is silent until
  `logger.enable("callboard")`.
"""

from __future__ import annotations

from loguru import logger as _logger

from callboard._actors.hooks import OverdueHook
from callboard._actors.watch import OverdueRun
from callboard._clock import NEVER_NS, Clock, SystemClock
from callboard._context import TaskContext
from callboard._engine import Engine
from callboard._group_state import Consent, GroupState, PendingRemove
from callboard._health import Health
from callboard._kinds import TaskKind
from callboard._migration import Migration, read_migrations
from callboard._outcome import Defer, Discard, Done, Outcome, RescheduleAt
from callboard._plugins import PluginHealth
from callboard._retry import RetryPolicy
from callboard._store.interface import NodeRow
from callboard._task import DeadReason, DeadTask, Enqueued, EnqueueStatus, FinishedTask, Task, TaskState
from callboard._transaction import GroupHandle, Transaction
from callboard.errors import (
    CallboardError,
    CompletionError,
    ConfigurationError,
    DatabaseGoneError,
    DatabaseUnavailableError,
    EngineStateError,
    KindError,
    MalformedPayloadError,
    NotADatabaseError,
    PayloadError,
    PluginError,
    SchemaError,
    ServiceMissingError,
    ServiceUnavailable,
    StaleRunError,
    StoreError,
    UnknownKindError,
    UnknownPayloadError,
)
from callboard.events import (
    ConsentChanged,
    GroupCreated,
    GroupEvent,
    InstallationAdded,
    LeaveRequested,
    MembershipChanged,
)
from callboard.hookspec import hookimpl

# A library is silent until its host asks: logger.enable("callboard").
_logger.disable("callboard")

__all__ = [
    "NEVER_NS",
    "CallboardError",
    "Clock",
    "CompletionError",
    "ConfigurationError",
    "Consent",
    "ConsentChanged",
    "DatabaseGoneError",
    "DatabaseUnavailableError",
    "DeadReason",
    "DeadTask",
    "Defer",
    "Discard",
    "Done",
    "Engine",
    "EngineStateError",
    "EnqueueStatus",
    "Enqueued",
    "FinishedTask",
    "GroupCreated",
    "GroupEvent",
    "GroupHandle",
    "GroupState",
    "Health",
    "InstallationAdded",
    "KindError",
    "LeaveRequested",
    "MalformedPayloadError",
    "MembershipChanged",
    "Migration",
    "NodeRow",
    "NotADatabaseError",
    "Outcome",
    "OverdueHook",
    "OverdueRun",
    "PayloadError",
    "PendingRemove",
    "PluginError",
    "PluginHealth",
    "RescheduleAt",
    "RetryPolicy",
    "SchemaError",
    "ServiceMissingError",
    "ServiceUnavailable",
    "StaleRunError",
    "StoreError",
    "SystemClock",
    "Task",
    "TaskContext",
    "TaskKind",
    "TaskState",
    "Transaction",
    "UnknownKindError",
    "UnknownPayloadError",
    "hookimpl",
    "read_migrations",
]
