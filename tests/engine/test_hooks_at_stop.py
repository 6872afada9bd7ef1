"""A clean stop leaves no plugin untold."""

import threading
from collections.abc import Callable, Sequence

from tests.engine.messages import SendReceipt

from callboard import Engine, FinishedTask, TaskContext, TaskKind, hookimpl


class Observer:
    """A plugin whose observing of ended tasks takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.seen: list[int] = []

    @hookimpl
    def callboard_task_kinds(self) -> list[TaskKind[SendReceipt]]:
        return [TaskKind(SendReceipt, handle)]

    @hookimpl
    def callboard_tasks_finished(self, finished: Sequence[FinishedTask]) -> None:
        self.begun.set()
        assert self.may_go_on.wait(10)
        self.seen += [each.task.id for each in finished]


def handle(message: SendReceipt, ctx: TaskContext) -> None:
    """Do nothing."""


def test_stop_waits_until_plugins_were_told_what_ended(make_engine: Callable[..., Engine]) -> None:
    observer = Observer()
    engine = make_engine(observer)
    engine.start()
    task_id = engine.enqueue(SendReceipt(text="read")).task_id
    assert observer.begun.wait(10)
    seen_at_stop: list[list[int]] = []
    stopping = threading.Thread(target=lambda: seen_at_stop.append([*observer.seen] if engine.stop(10) else []))
    stopping.start()
    stopping.join(0.1)
    observer.may_go_on.set()
    stopping.join(10)
    assert seen_at_stop == [[task_id]]
