"""`hookspec.py` is the reference for plugin authors: what it promises of each hook holds, and its page agrees."""

import inspect
import re
import threading
from typing import Any

import pytest
from tests import pages
from tests.engine.acting import WAIT_S, MakeEngine, Plugin, Scripted, receipt, receipts

from callboard import (
    DeadReason,
    Discard,
    Done,
    Engine,
    FinishedTask,
    GroupCreated,
    Migration,
    RescheduleAt,
    Transaction,
    hookimpl,
    hookspec,
)
from callboard._hook_checks import HOOKS
from callboard._plugins import PluginHost

DOCUMENTED = {
    "callboard_task_kinds": ["engine"],
    "callboard_migrations": ["engine"],
    "callboard_startup": ["engine"],
    "callboard_reconcile": ["engine", "reason"],
    "callboard_group_event": ["tx", "event"],
    "callboard_event": ["engine", "event"],
    "callboard_tasks_finished": ["engine", "finished"],
}
"""The hooks of the design, with their arguments."""


class Everything:
    """A plugin that implements every hook and keeps each call's arguments and thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], int]] = []

    def _keep(self, hook: str, **arguments: Any) -> None:
        self.calls.append((hook, arguments, threading.get_ident()))

    def of(self, hook: str) -> list[dict[str, Any]]:
        return [arguments for name, arguments, _ in self.calls if name == hook]

    @hookimpl
    def callboard_task_kinds(self, engine: Engine) -> Any:
        self._keep("callboard_task_kinds", engine=engine)
        outcomes = {"done": Done(), "again": RescheduleAt(2**62), "discarded": Discard("no use")}
        return [receipts(lambda message, ctx: outcomes[message.text])]

    @hookimpl
    def callboard_migrations(self, engine: Engine) -> Any:
        self._keep("callboard_migrations", engine=engine)
        return [Migration("sqlite", 1, "the notes", "CREATE TABLE acme_note (text TEXT)", 1)]

    @hookimpl
    def callboard_startup(self, engine: Engine) -> None:
        self._keep("callboard_startup", engine=engine)

    @hookimpl
    def callboard_reconcile(self, engine: Engine, reason: str) -> None:
        self._keep("callboard_reconcile", engine=engine, reason=reason)

    @hookimpl
    def callboard_group_event(self, tx: Transaction, event: object) -> None:
        self._keep("callboard_group_event", tx=tx, event=event)

    @hookimpl
    def callboard_event(self, engine: Engine, event: object) -> None:
        self._keep("callboard_event", engine=engine, event=event)

    @hookimpl
    def callboard_tasks_finished(self, engine: Engine, finished: Any) -> None:
        self._keep("callboard_tasks_finished", engine=engine, finished=list(finished))


def test_the_hooks_are_those_of_the_design() -> None:
    found = {name: list(inspect.signature(getattr(hookspec, name)).parameters) for name in HOOKS}

    assert found == DOCUMENTED


@pytest.mark.parametrize("hook", DOCUMENTED)
def test_each_hook_is_documented(hook: str) -> None:
    documentation = inspect.getdoc(getattr(hookspec, hook))

    assert documentation is not None
    first, *rest = documentation.splitlines()
    assert first.endswith(".")
    assert rest, "says more than its name"


PAGE = "docs/reference/hooks.md"


def test_the_page_has_each_hook_with_its_exact_signature() -> None:
    shown = re.findall(r"^## (callboard_\w+)\n\n```text\n(.+)\n```$", pages.read(PAGE), re.MULTILINE)
    exact = [f"{name}{inspect.signature(getattr(hookspec, name))}".replace("'", "") for name in HOOKS]

    assert [signature for _, signature in shown] == exact
    assert [name for name, _ in shown] == pages.column(pages.table(PAGE, "hook"), "hook") == list(HOOKS)


def test_the_page_has_each_reason_to_reconcile() -> None:
    sources = [file.read_text(encoding="utf-8") for file in (pages.ROOT / "engine").rglob("*.py")]
    given = {name for source in sources for name in re.findall(r'_reconcile(?:, |\()"(\w+)"', source)}

    assert set(pages.column(pages.table(PAGE, "reason"), "reason")) == given
    documentation = inspect.getdoc(hookspec.callboard_reconcile)
    assert documentation is not None
    assert given <= set(re.findall(r"`(\w+)`", documentation))


def test_a_plugin_that_implements_every_hook_gets_each_called_as_documented(make_engine: MakeEngine) -> None:
    plugin = Everything()
    engine = make_engine(plugin)
    assert plugin.calls == []

    with engine:
        assert engine.wait_idle(WAIT_S)
        engine.group(b"group").created("alice")
        engine.publish("an event")
        answers = engine.enqueue_many([receipt("done"), receipt("again"), receipt("discarded")])
        assert engine.wait_idle(WAIT_S)

    here = threading.get_ident()
    assert {name for name, _, _ in plugin.calls} == set(DOCUMENTED)
    for hook in ("callboard_task_kinds", "callboard_migrations", "callboard_startup"):
        assert plugin.of(hook) == [{"engine": engine}]
    assert plugin.of("callboard_reconcile") == [{"engine": engine, "reason": "start"}]
    assert plugin.of("callboard_event") == [{"engine": engine, "event": "an event"}]
    [in_transaction] = plugin.of("callboard_group_event")
    assert in_transaction["event"] == GroupCreated(b"group")
    assert isinstance(in_transaction["tx"], Transaction) and in_transaction["tx"].engine is engine
    threads = {name: thread for name, _, thread in plugin.calls}
    assert threads["callboard_group_event"] == threads["callboard_startup"] == here
    assert here not in {threads[name] for name in ("callboard_event", "callboard_tasks_finished")}

    finished = [one for call in plugin.of("callboard_tasks_finished") for one in call["finished"]]
    assert all(isinstance(one, FinishedTask) for one in finished)
    assert {one.task.id: (one.outcome, one.dead_reason) for one in finished} == {
        answers[0].task_id: (Done(), None),
        answers[2].task_id: (Discard("no use"), DeadReason.DISCARDED),
    }
    assert all(call["engine"] is engine for call in plugin.of("callboard_tasks_finished"))


def test_startup_comes_before_the_first_task(make_engine: MakeEngine) -> None:
    order: list[str] = []

    def handler(message: Any, ctx: Any) -> None:
        order.append("task")

    engine = make_engine(Plugin(receipts(handler), startup=lambda engine: order.append("startup")))
    engine.enqueue(receipt("hello"))
    with engine:
        assert engine.wait_idle(WAIT_S)

    assert order == ["startup", "task"]


def test_what_startup_enqueues_merges_with_the_live_row(make_engine: MakeEngine) -> None:
    def startup(engine: Engine) -> None:
        engine.enqueue(receipt("singleton"))

    plugin = Plugin(receipts(Scripted(RescheduleAt(2**62)), recurring=True), startup=startup)
    for _ in range(3):
        with make_engine(plugin) as engine:
            assert engine.wait_idle(WAIT_S)
            assert len(engine.tasks()) == 1


def test_a_task_that_died_without_an_outcome_is_told_as_well(make_engine: MakeEngine) -> None:
    told: list[FinishedTask] = []

    def tasks_finished(engine: Engine, finished: Any) -> None:
        told.extend(finished)

    engine = make_engine(Plugin(receipts(Scripted()), tasks_finished=tasks_finished))
    task_id = engine.enqueue(receipt("hello"), expires_after=0).task_id
    engine.run_due()

    assert [(one.task.id, one.outcome, one.dead_reason) for one in told] == [(task_id, None, DeadReason.EXPIRED)]


def test_ended_tasks_are_told_in_batches_after_the_commit(make_engine: MakeEngine) -> None:
    batches: list[int] = []
    left: list[int] = []

    def tasks_finished(engine: Engine, finished: Any) -> None:
        batches.append(len(finished))
        left.extend(one.task.id for one in finished if engine.task(one.task.id))

    engine = make_engine(Plugin(receipts(Scripted()), tasks_finished=tasks_finished))
    engine.enqueue_many([receipt(str(number)) for number in range(100)])

    assert engine.run_due() == 100

    assert sum(batches) == 100
    assert len(batches) <= 2
    assert left == []


def test_an_event_at_a_time_for_each_engine(make_engine: MakeEngine) -> None:
    alone = threading.Lock()
    met: list[bool] = []

    def event(engine: Engine, event: object) -> None:
        met.append(not alone.acquire(blocking=False))
        alone.release()

    with make_engine(Plugin(event=event)) as engine:
        for number in range(200):
            engine.publish(number)
        assert engine.wait_idle(WAIT_S)

    assert met == [False] * 200


@pytest.mark.parametrize("implements", [[], ["callboard_startup"]], ids=["kinds only", "another hook"])
def test_a_hook_that_nobody_implements_costs_no_call(
    implements: list[str], make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is there a call for each task: pluggy is not on the hot path at all."""
    called: list[str] = []
    call = PluginHost.call

    def counted(self: PluginHost, hook: Any, **arguments: Any) -> Any:
        called.append(hook.hook)
        return call(self, hook, **arguments)

    monkeypatch.setattr(PluginHost, "call", counted)
    hooks: dict[str, Any] = {hook.removeprefix("callboard_"): lambda engine: None for hook in implements}
    engine = make_engine(Plugin(receipts(Scripted()), **hooks))
    with engine:
        engine.enqueue_many([receipt(str(number), b"group %d" % (number % 5)) for number in range(200)])
        engine.group(b"group").created("alice")
        engine.publish("event")
        assert engine.wait_idle(WAIT_S)

    assert called == ["callboard_task_kinds", *implements]
    assert all(engine._core.plugins.hooks(hook) == [] for hook in DOCUMENTED.keys() - {*called})
