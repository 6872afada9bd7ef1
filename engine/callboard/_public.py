"""The names of the package `callboard`, which imports this module when it is first asked for one of them."""

from __future__ import annotations

from callboard._actors.hooks import OverdueHook
from callboard._actors.throttle import PausedKind
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
from callboard.hookspec import API_VERSION, hookimpl

__all__ = [
    "API_VERSION",
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
    "PausedKind",
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
