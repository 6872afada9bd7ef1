"""Callboard's side of what is measured: tasks that do nothing, and engines that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from callboard import Engine, RetryPolicy, TaskKind, hookimpl
from callboard.wire import AddMissingInstallations


class NoOp:
    """A plugin whose tasks do nothing, so that only the engine's own work is measured."""

    def __init__(self, handler: Callable[..., Any] = lambda message, ctx: None) -> None:
        """Call `handler` for each task, if there is something to do after all."""
        self._handler = handler

    @hookimpl
    def callboard_task_kinds(self) -> list[TaskKind[Any]]:
        """Bring one kind; the first 8 bytes of a message's id name the group. What fails is due again at once."""
        at_once = RetryPolicy(initial=timedelta(0))
        return [
            TaskKind(
                AddMissingInstallations,
                self._handler,
                group_id=lambda message: message.group_id[:8],
                retry=at_once,
                pause_after=None,  # in a storm everybody fails, and the storm is what is measured
            )
        ]


def engine_on(path: Path, plugin: NoOp | None = None) -> Engine:
    """Return an engine with the default settings, `synchronous=FULL` among them."""
    return Engine(f"sqlite:///{path}", plugins=[plugin or NoOp()])


def group_name(number: int) -> bytes:
    """Return the id of a group: 8 bytes."""
    return b"%08d" % number


def message(number: int, groups: int) -> AddMissingInstallations:
    """Return a task's message: group and number, 34 bytes as the payload of every contestant."""
    return AddMissingInstallations(group_id=b"%b:%025d" % (group_name(number % groups), number))


def number_of(message: AddMissingInstallations) -> int:
    """Return the number of a task."""
    return int(message.group_id[9:])


def messages(numbers: Iterable[int], groups: int) -> Iterator[AddMissingInstallations]:
    """Yield the messages of different tasks, spread over `groups` groups in turn."""
    for number in numbers:
        yield message(number, groups)


def fill(engine: Engine, tasks: int, groups: int, first: int = 0) -> None:
    """Enqueue due tasks one by one, as services do; in one transaction, to be quick."""
    with engine.transaction() as tx:
        for each in messages(range(first, first + tasks), groups):
            tx.enqueue(each)
