"""The records that the rest of the engine passes around: tasks, dead tasks and what an enqueue answered."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from callboard._outcome import Outcome


class TaskState(StrEnum):
    """Where a live row stands; the words are those in the table's `state` column."""

    PENDING = "pending"
    RUNNING = "running"
    DEFERRED = "deferred"


class DeadReason(StrEnum):
    """Why a task can no longer succeed; the words are those in the dead-task table's `reason` column."""

    EXPIRED = "expired"
    EXHAUSTED = "exhausted"
    MALFORMED = "malformed"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    CRASHED = "crashed"


class EnqueueStatus(StrEnum):
    """What an enqueue found under the task's identity."""

    INSERTED = "inserted"
    MERGED = "merged"
    RERUN = "rerun"
    CONFLICT = "conflict"
    ACCEPTED = "accepted"


class Enqueued(NamedTuple):
    """Answer one enqueue.

    Attributes:
        task_id: the live row; `None` where the answer is only known after the commit (`accepted`).
        status: `inserted` a new row; `merged` into a live one; `rerun`, the live one is running and runs
            again afterwards; `conflict`, the key is live with another payload and nothing was changed.
    """

    task_id: int | None
    status: EnqueueStatus


class Task(NamedTuple):
    """One live row of the task table, column by column. Times are nanoseconds since the epoch, UTC.

    It is a tuple because a claim makes hundreds of them at once.

    Attributes:
        owner: the id of the node that runs it, which `Engine.nodes` describes; `None` when none does.
    """

    id: int
    kind: str
    group_id: bytes | None
    identity: bytes
    data: bytes
    data_hash: bytes
    state: str
    attempts: int
    max_attempts: int | None
    created_at_ns: int
    expires_at_ns: int
    next_attempt_at_ns: int
    last_attempted_at_ns: int | None
    initial_backoff_ns: int | None
    backoff_factor: float | None
    max_backoff_ns: int | None
    requests: int
    outages: int
    pulled_in_ns: int | None
    token: int
    origin: str | None
    last_error: str | None
    owner: int | None


class DeadTask(NamedTuple):
    """One row of the dead-task table. Times are nanoseconds since the epoch, UTC.

    Attributes:
        id: the dead row; `Engine.retry_dead` takes it.
        task_id: the id that the task had while it lived.
    """

    id: int
    task_id: int
    kind: str
    group_id: bytes | None
    identity: bytes
    data: bytes
    data_hash: bytes
    attempts: int
    max_attempts: int | None
    created_at_ns: int
    expires_at_ns: int
    initial_backoff_ns: int | None
    backoff_factor: float | None
    max_backoff_ns: int | None
    origin: str | None
    last_error: str | None
    reason: str
    died_at_ns: int


class NewTask(NamedTuple):
    """What an enqueue writes; the rest of the row are defaults.

    The policy columns are `None` for a kind that nobody here knows: the node that claims it fills them in.
    """

    kind: str
    group_id: bytes | None
    identity: bytes
    data: bytes
    data_hash: bytes
    max_attempts: int | None
    created_at_ns: int
    expires_at_ns: int
    next_attempt_at_ns: int
    initial_backoff_ns: int | None
    backoff_factor: float | None
    max_backoff_ns: int | None
    origin: str | None


class FinishedTask(NamedTuple):
    """A task that ended: done, or dead.

    Attributes:
        task: the row as it was when it was claimed.
        outcome: what the handler returned; `None` when the task died without one.
        dead_reason: why it is in the dead-task table; `None` when it is done.
    """

    task: Task
    outcome: Outcome | None
    dead_reason: DeadReason | None
