"""Run one task for a test, and give it what its handler returned or raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from callboard._codec import kind_of
from callboard._context import TaskContext
from callboard._engine import Engine
from callboard._kinds import TaskKind
from callboard._outcome import Done, Outcome
from callboard.testing._rows import described

_Ended = list[tuple[int, Any]]
"""For each call of the handler the task's id, and what was returned or raised."""


def perform(engine: Engine, message: Message, **options: Any) -> Outcome:
    """Enqueue a task, run it as the engine does, and return its outcome, or raise what its handler raised.

    It takes the way of every task, through the row, the payload's bytes and the claim; what becomes of the row is
    there to be looked at afterwards. What else is due runs, too.

    Args:
        engine: one that is not started.
        message: the payload.
        options: those of `Engine.enqueue`, such as `key`.

    Returns:
        What the handler returned, or gave to `ctx.complete`; `Done()` for `None`.

    Raises:
        AssertionError: the task did not run, or its handler returned what is no outcome of its kind.
        UnknownKindError: no plugin here registered the message's kind.
        EngineStateError: as `Engine.run_due` does.
    """
    __tracebackhide__ = True
    engine.load_plugins()
    registry = engine._core.registry
    name = kind_of(type(message))
    if registry.get(name) is not None and name not in registry.runnable:
        raise AssertionError(f"kind {name} does not run here; {registry.remedy(name)}")
    with _watched(registry.runnable, name) as ended:
        answer = engine.enqueue(message, **options)
        engine.run_due()
    results = [result for task_id, result in ended if task_id == answer.task_id]
    if not results:
        row = None if answer.task_id is None else engine.task(answer.task_id)
        raise AssertionError(f"no run ({answer.status}): {'no task' if row is None else described(engine, row)}")
    result = Done() if results[0] is None else results[0]
    if isinstance(result, BaseException):
        raise result
    if not isinstance(result, Outcome):
        raise AssertionError(f"the handler of {name} returned {result!r}, which is no outcome")
    if isinstance(result, Done) and registry.runnable[name].recurring:
        raise AssertionError(f"{name} is recurring, and its handler returned Done in place of RescheduleAt")
    return result


@contextmanager
def _watched(kinds: dict[str, TaskKind[Any]], name: str) -> Iterator[_Ended]:
    """Have the handler of a kind tell what came of each call."""
    ended: _Ended = []
    kind = kinds.get(name)
    if kind is None:
        yield ended
        return
    kinds[name] = replace(kind, handler=_telling_later(kind, ended) if kind.is_async else _telling(kind, ended))
    try:
        yield ended
    finally:
        kinds[name] = kind


def _telling(kind: TaskKind[Any], ended: _Ended) -> Any:
    def handler(message: Message, ctx: TaskContext) -> Any:
        try:
            result = kind.handler(message, ctx)
        except BaseException as error:
            ended.append((ctx.task.id, error))
            raise
        ended.append((ctx.task.id, ctx._run.completed or result))
        return result

    return handler


def _telling_later(kind: TaskKind[Any], ended: _Ended) -> Any:
    async def handler(message: Message, ctx: TaskContext) -> Any:
        try:
            result = await kind.handler(message, ctx)  # type: ignore[misc]
        except BaseException as error:
            ended.append((ctx.task.id, error))
            raise
        ended.append((ctx.task.id, ctx._run.completed or result))
        return result

    return handler
