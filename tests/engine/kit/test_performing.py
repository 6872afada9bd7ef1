"""`perform`: one task by the real way, and what its handler said."""

from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import MakeEngine, Plugin, Scripted, receipt, receipts

from callboard import (
    Defer,
    Discard,
    Done,
    RescheduleAt,
    ServiceUnavailable,
    TaskContext,
    UnknownKindError,
)
from callboard.testing import perform


@pytest.mark.parametrize("line", [None, Done(), Defer(1 << 62), RescheduleAt(1 << 62), Discard("no use")])
@pytest.mark.parametrize("inline", [False, True])
def test_the_outcome_comes_back(make_engine: MakeEngine, line: Any, inline: bool) -> None:
    engine = make_engine(Plugin(receipts(Scripted(line))), inline=inline)

    assert perform(engine, receipt("read"), key="k") == (line or Done())

    assert len(engine.tasks()) == isinstance(line, (Defer, RescheduleAt))
    assert len(engine.dead_tasks()) == isinstance(line, Discard)


def test_what_the_handler_raises_is_raised_and_its_attempt_has_failed(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(ZeroDivisionError("oops"), ServiceUnavailable("away")))))

    with pytest.raises(ZeroDivisionError, match="oops"):
        perform(engine, receipt("counted"))
    with pytest.raises(ServiceUnavailable, match="away"):
        perform(engine, receipt("not counted"))

    assert [(task.attempts, task.state) for task in engine.tasks()] == [(1, "pending"), (0, "pending")]


def test_coroutines_and_completions_tell_as_well(make_engine: MakeEngine) -> None:
    async def send(message: Any, ctx: TaskContext) -> None:
        if message.text == "raise":
            raise ZeroDivisionError("oops")
        with ctx.complete(Discard("no use")):
            pass

    engine = make_engine(Plugin(receipts(send)))

    assert perform(engine, receipt("read")) == Discard("no use")
    with pytest.raises(ZeroDivisionError, match="oops"):
        perform(engine, receipt("raise"))


def test_a_task_that_does_not_run_is_a_failure_that_says_why(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(), requires=(ValueError,))))
    with pytest.raises(AssertionError, match=r"SendReceipt does not run here; give Engine.*ValueError"):
        perform(engine, receipt("read"))

    engine = make_engine(Plugin(receipts(Scripted())))
    with pytest.raises(AssertionError, match=r"no run \(inserted\): task \d+ pending, due in 3600 s"):
        perform(engine, receipt("later"), not_before=timedelta(hours=1))
    with pytest.raises(AssertionError, match=r"no run \(conflict\)"):
        engine.enqueue(receipt("held"), key="k", not_before=timedelta(hours=1))
        perform(engine, receipt("another"), key="k")

    with pytest.raises(UnknownKindError):
        perform(make_engine(), receipt("read"))


def test_what_is_no_outcome_is_a_failure(make_engine: MakeEngine) -> None:
    with pytest.raises(AssertionError, match="returned 'sent', which is no outcome"):
        perform(make_engine(Plugin(receipts(Scripted("sent")))), receipt("read"))
    with pytest.raises(AssertionError, match="is recurring, and its handler returned Done"):
        perform(make_engine(Plugin(receipts(Scripted(), recurring=True))), receipt("again"))


def test_the_handler_is_watched_only_meanwhile(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(kind := receipts(Scripted())))
    perform(engine, receipt("read"))
    assert engine._core.registry.runnable[kind.name] is kind
