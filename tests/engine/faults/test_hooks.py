"""Hooks that raise, that do not return and that are too slow: other plugins, tasks and the stop go on."""

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import (
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    receipt,
    receipts,
)

from callboard import Engine, FinishedTask, TaskKind
from callboard._actors import hooks
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock


class Stuck:
    """A hook that returns only at the end of the test."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._go_on = threading.Event()

    def __call__(self, *args: Any) -> None:
        self.entered.set()
        assert self._go_on.wait(3 * WAIT_S)

    def end(self) -> None:
        self._go_on.set()


@pytest.fixture
def stuck() -> Any:
    stuck = Stuck()
    yield stuck
    stuck.end()


@pytest.mark.parametrize("hook", ["reconcile", "event", "tasks_finished"])
def test_a_hook_that_never_returns_holds_up_no_other_plugin_no_task_and_no_stop(
    hook: str,
    stuck: Stuck,
    make_engine: MakeEngine,
    callboard_clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    heard: list[str] = []
    all_hooks: dict[str, Any] = {
        "reconcile": lambda engine, reason: heard.append("reconcile"),
        "event": lambda engine, event: heard.append(event),
        "tasks_finished": lambda engine, finished: heard.extend("finished" for _ in finished),
    }
    stuck_hooks: dict[str, Any] = {
        "reconcile": lambda engine, reason: stuck(),
        "event": lambda engine, event: stuck(),
        "tasks_finished": lambda engine, finished: stuck(),
    }
    handler = Scripted()
    engine = make_engine(
        Plugin(**{"name": "stuck", hook: stuck_hooks[hook]}),
        Plugin(receipts(handler), name="sound", **all_hooks),
    )
    engine.start()
    for number in (1, 2):
        engine.publish(f"event {number}")
        engine.enqueue(receipt(f"task {number}"))
        eventually(lambda: len(handler.played) == number)  # noqa: B023
        assert stuck.entered.wait(WAIT_S)
    engine.request_reconcile("again")
    eventually(lambda: sorted(heard) == ["event 1", "event 2", "finished", "finished", "reconcile", "reconcile"])
    assert engine.health().overdue_hooks == []

    with logged("WARNING") as log:
        callboard_clock.advance(timedelta(minutes=6))
        eventually(lambda: log)
        [overdue] = engine.health().overdue_hooks
        callboard_clock.advance(timedelta(minutes=6))
        eventually(lambda: engine.health().overdue_hooks[0].running_ns > overdue.running_ns)
    assert len(log) == 1
    assert f"plugin stuck: callboard_{hook} has not returned for minutes" in log[0]
    assert (overdue.plugin, overdue.hook) == ("stuck", f"callboard_{hook}")
    assert overdue.running_ns >= 360 * 10**9
    assert "in __call__" in overdue.stack and "test_hooks.py" in overdue.stack

    assert engine.stop(timeout=0.1)


def test_a_hook_that_never_returns_holds_one_worker(stuck: Stuck, make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(
        Plugin(name="stuck", reconcile=lambda engine, reason: stuck()), Plugin(receipts(handler)), workers=2
    )
    engine.start()
    assert stuck.entered.wait(WAIT_S)
    engine.enqueue_many([receipt("one"), receipt("two")])
    handler.wait_count(1)
    handler.let_go()
    handler.wait_begun("one", "two")


def test_a_reconcile_that_is_wanted_while_the_plugins_last_one_runs_waits_for_it(
    stuck: Stuck, make_engine: MakeEngine
) -> None:
    reasons: list[str] = []

    def reconcile(engine: Engine, reason: str) -> None:
        reasons.append(reason)
        stuck()

    with make_engine(Plugin(reconcile=reconcile)) as engine:
        assert stuck.entered.wait(WAIT_S)
        engine.request_reconcile("one")
        engine.request_reconcile("two")
        assert reasons == ["start"]
        stuck.end()
        assert engine.wait_idle(WAIT_S)

    assert reasons == ["start", "one"]


class Observer:
    """A plugin that sees ended tasks, and stays in the first batch until the test lets it go."""

    def __init__(self, kind: TaskKind[Any]) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.batches: list[int] = []
        self.plugin = Plugin(
            kind, name="slow", tasks_finished=lambda engine, finished: self.observe(engine, finished)
        )

    def observe(self, engine: Engine, finished: Sequence[FinishedTask]) -> None:
        self.batches.append(len(finished))
        self.begun.set()
        assert self.go_on.wait(WAIT_S)


def test_what_ends_while_tasks_finished_runs_is_one_batch(make_engine: MakeEngine) -> None:
    observer, told = Observer(receipts(Scripted())), Scripted()
    sound = Plugin(name="sound", tasks_finished=lambda engine, finished: told.played.extend("." for _ in finished))
    with make_engine(observer.plugin, sound) as engine:
        engine.enqueue(receipt("first"))
        assert observer.begun.wait(WAIT_S)
        for number in range(20):
            engine.enqueue(receipt(f"{number}"))
            eventually(lambda: len(told.played) == number + 2)  # noqa: B023
        observer.go_on.set()
        assert engine.wait_idle(WAIT_S)
        assert engine.health().untold == 0

    assert observer.batches == [1, 20]


def test_a_tasks_finished_that_is_too_slow_is_not_told_of_everything(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MAX_FINISHED", 10)
    observer, told = Observer(receipts(Scripted())), Scripted()
    sound = Plugin(name="sound", tasks_finished=lambda engine, finished: told.played.extend("." for _ in finished))
    with logged("WARNING") as log, make_engine(observer.plugin, sound) as engine:
        engine.enqueue(receipt("first"))
        assert observer.begun.wait(WAIT_S)
        for batch in range(3):
            engine.enqueue_many([receipt(f"{batch} {number}") for number in range(8)])
            eventually(lambda: len(told.played) == 8 * batch + 9)  # noqa: B023
        observer.go_on.set()
        assert engine.wait_idle(WAIT_S)
        engine.enqueue(receipt("told again"))
        assert engine.wait_idle(WAIT_S)
        assert engine.health().untold == 14

    assert observer.batches == [1, 10, 1]
    assert len(told.played) == 26
    [line] = log
    assert "plugin slow is not told of ended tasks until it is done with the 10 that wait" in line
