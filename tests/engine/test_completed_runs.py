"""A run that has completed its task, and whose handler has not returned yet."""

import threading
from collections.abc import Callable

from tests.engine.messages import SendReceipt

from callboard import Engine, TaskContext, TaskKind, hookimpl


def test_a_task_requested_again_waits_until_the_handler_that_completed_it_has_returned(
    make_engine: Callable[..., Engine],
) -> None:
    scheduler_has_passed = threading.Event()
    runs: list[str] = []

    def handle(message: SendReceipt, ctx: TaskContext) -> None:
        if message.text == "other":
            scheduler_has_passed.set()
            return
        runs.append("begun")
        if len(runs) == 1:
            ctx.engine.enqueue(message)
        with ctx.complete():
            pass
        if len(runs) == 1:
            # The row is pending again by now; the pass that claims this one sees it.
            ctx.engine.enqueue(SendReceipt(text="other", group_id=b"another"))
            assert scheduler_has_passed.wait(10)
        runs.append("ended")

    class Plugin:
        @hookimpl
        def callboard_task_kinds(self) -> list[TaskKind[SendReceipt]]:
            return [TaskKind(SendReceipt, handle, group_id=lambda message: message.group_id or None)]

    for group_id in (b"group", b""):
        runs.clear()
        scheduler_has_passed.clear()
        engine = make_engine(Plugin())
        engine.start()
        engine.enqueue(SendReceipt(text="twice", group_id=group_id))
        assert engine.wait_idle(10)
        assert runs == ["begun", "ended", "begun", "ended"]
        assert engine.tasks() == []
        assert engine.health().counters["done"] == 2  # this one, once, and the other
        assert engine.stop(10)
