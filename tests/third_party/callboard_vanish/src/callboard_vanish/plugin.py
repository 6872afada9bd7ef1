"""The plugin itself: one kind of task, and the hooks that see to it that there is one for each message."""

from __future__ import annotations

from typing import Any

from callboard import (
    NEVER_NS,
    Discard,
    Done,
    Engine,
    Outcome,
    RescheduleAt,
    ServiceMissingError,
    ServiceUnavailable,
    TaskContext,
    TaskKind,
    Transaction,
    hookimpl,
)
from callboard.testing import crash_point
from callboard_vanish.messages import MessageStore, Vanishing
from callboard_vanish.vanish_pb2 import DeleteMessage


def schedule(tx: Transaction, message: Vanishing) -> None:
    """Have a message vanish at its time; of several times that are said of it, at the earliest."""
    task = DeleteMessage(group_id=message.group_id, message_id=message.message_id)
    # It has no end: what was to vanish must not stay for having been out of reach for long.
    tx.enqueue(task, not_before=message.vanishes_at_ns, expires_after=NEVER_NS)
    tx.pull_in(task, not_later_than_ns=message.vanishes_at_ns)


def delete(task: DeleteMessage, ctx: TaskContext) -> Outcome:
    """Delete the message if it is still to vanish, and its time has come."""
    if not task.message_id:
        return Discard("it names no message")
    messages = ctx.service(MessageStore)  # type: ignore[type-abstract]
    try:
        vanishes_at_ns = messages.vanishes_at_ns(task.group_id, task.message_id)
        if vanishes_at_ns is None:
            return Done()
        if vanishes_at_ns > ctx.clock.now_ns():
            return RescheduleAt(vanishes_at_ns)
        messages.delete(task.group_id, task.message_id)
    except ConnectionError as error:
        raise ServiceUnavailable("the messages are out of reach") from error
    crash_point("vanish.deleted")
    return Done()


@hookimpl
def callboard_task_kinds() -> list[TaskKind[Any]]:
    """Bring the kind."""
    return [TaskKind(DeleteMessage, delete, group_id=lambda task: task.group_id or None, requires=(MessageStore,))]


@hookimpl
def callboard_event(engine: Engine, event: object) -> None:
    """Schedule what the host publishes."""
    if isinstance(event, Vanishing):
        with engine.transaction() as tx:
            schedule(tx, event)


@hookimpl
def callboard_reconcile(engine: Engine) -> None:
    """Schedule every message that is to vanish: each merges with the task that it has."""
    try:
        messages = engine.service(MessageStore)  # type: ignore[type-abstract]
    except ServiceMissingError:
        return  # another process has the messages
    with engine.transaction() as tx:
        for message in messages.vanishing():
            schedule(tx, message)
