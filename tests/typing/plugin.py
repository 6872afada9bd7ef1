"""A plugin as it should be written: type checkers have nothing to say, and know the types of what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_type

from google.protobuf.wrappers_pb2 import StringValue

from callboard import (
    Defer,
    Discard,
    Done,
    Engine,
    Enqueued,
    FinishedTask,
    GroupEvent,
    GroupState,
    LeaveRequested,
    Outcome,
    RescheduleAt,
    RetryPolicy,
    ServiceUnavailable,
    Task,
    TaskContext,
    TaskKind,
    Transaction,
    hookimpl,
)
from callboard.events import Event
from callboard.testing import FakeClock
from callboard.wire import AddMissingInstallations


class Mailer:
    """What the host gives."""

    def send(self, text: str) -> bool:
        return bool(text)


def send(message: StringValue, ctx: TaskContext) -> Outcome | None:
    mailer = ctx.service(Mailer)
    assert_type(mailer, Mailer)
    assert_type(ctx.task, Task)
    assert_type(ctx.group, GroupState | None)
    assert_type(ctx.cancelled, bool)
    if ctx.cancelled:
        return Defer(timedelta(minutes=1))
    if not message.value:
        return Discard("it is empty")
    if not mailer.send(message.value):
        raise ServiceUnavailable("the mail server is away")
    with ctx.complete(Done()) as tx:
        assert_type(tx, Transaction)
    return None


async def send_later(message: StringValue, ctx: TaskContext) -> Outcome:
    ctx.enqueue(message)
    return RescheduleAt(ctx.clock.now_ns() + 1)


def nothing(message: AddMissingInstallations, ctx: TaskContext) -> None:
    assert_type(message.group_id, bytes)


@hookimpl
def callboard_task_kinds(engine: Engine) -> Sequence[TaskKind[StringValue] | TaskKind[AddMissingInstallations]]:
    kind = TaskKind(StringValue, send, group_id=lambda message: message.value.encode(), requires=(Mailer,))
    assert_type(kind, TaskKind[StringValue])
    return [
        kind,
        TaskKind(StringValue, send_later, retry=RetryPolicy(max_attempts=3), timeout=timedelta(seconds=5)),
        TaskKind(AddMissingInstallations, nothing, on_unknown_fields="defer"),
    ]


@hookimpl
def callboard_reconcile(engine: Engine, reason: str) -> None:
    for group in engine.groups(pending=True):
        assert_type(group, GroupState)
        assert_type(engine.enqueue(StringValue(value="again"), group_id=group.group_id), Enqueued)


@hookimpl
def callboard_group_event(tx: Transaction, event: GroupEvent) -> None:
    if isinstance(event, LeaveRequested):
        assert_type(event.inbox_id, str)
        tx.enqueue(StringValue(value=event.inbox_id), not_before=timedelta(seconds=1))


@hookimpl
def callboard_event(engine: Engine, event: Event) -> None:
    engine.wake()


@hookimpl
def callboard_tasks_finished(engine: Engine, finished: Sequence[FinishedTask]) -> None:
    for each in finished:
        assert_type(each.task, Task)
        assert_type(each.outcome, Outcome | None)


def host(clock: FakeClock) -> None:
    with Engine("sqlite:///service.db", services={Mailer: Mailer()}, clock=clock) as engine:
        assert_type(engine, Engine)
        assert_type(engine.run_due(), int)
        assert_type(engine.service(Mailer), Mailer)
        with engine.transaction() as tx:
            assert_type(tx.enqueue(StringValue(value="both or neither")), Enqueued)
