"""Mistakes of plugins and hosts that type checkers have to tell of; one that stays silent fails `tox -e types`.

Both are told to complain of a comment that was not needed. What a name cannot have is not asked for here, since a
name that is gone is found by `tests/api`.
"""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.wrappers_pb2 import BytesValue, StringValue

from callboard import Defer, Discard, Engine, Outcome, RetryPolicy, TaskContext, TaskKind


def send(message: StringValue, ctx: TaskContext) -> Outcome:
    return Discard("no")


def without_context(message: StringValue) -> None:
    """Lack the second parameter."""


def answers_text(message: StringValue, ctx: TaskContext) -> str:
    return "done"


TaskKind(BytesValue, send)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
TaskKind(StringValue, without_context)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
TaskKind(StringValue, answers_text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
TaskKind(StringValue, send, group_id=lambda message: 7)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
TaskKind(StringValue, send, timeout=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
TaskKind(StringValue, send, on_unknown_fields="skip")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
TaskKind(StringValue, send).timeout = timedelta(1)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
TaskKind(send, StringValue)  # type: ignore[arg-type, type-var]  # pyright: ignore[reportArgumentType]
RetryPolicy(initial=2.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Defer("soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Discard()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

engine = Engine("sqlite:///service.db")
Engine(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Engine("sqlite:///service.db", services=[object()])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
engine.enqueue("hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
engine.enqueue(StringValue(), key=b"key")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
engine.enqueue(StringValue(), not_before=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
engine.group("climbing")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
engine.pull_in("key", timedelta(1))  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


def handler(message: StringValue, ctx: TaskContext) -> None:
    ctx.service("mailer")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ctx.cancelled = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    ctx.enqueue(message, connection=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
