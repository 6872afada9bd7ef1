"""A plugin that is wrong is named, in the log and in `health`, and costs nobody else anything."""

import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    MakeEngine,
    Plugin,
    Scripted,
    logged,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.messages import LinkedReceipt, ReceiptArchive, SendReceipt, TaggedReceipt
from tests.engine.rows import payload
from tests.installed import describe

from callboard import (
    Defer,
    Engine,
    PluginError,
    PluginHealth,
    RetryPolicy,
    TaskContext,
    TaskKind,
    hookimpl,
)
from callboard.testing import FakeClock

THREAD = "acme.receipts.ReceiptThread"
HOOKS = ("task_kinds", "startup", "reconcile", "group_event", "event", "tasks_finished")


class OwnError(BaseException):
    """No `Exception`."""


def problems(engine: Engine) -> dict[str, dict[str, str]]:
    """Return what `health` says is wrong with each plugin."""
    return {plugin.name: plugin.problems for plugin in engine.health().plugins}


# Registration


def nothing(message: Message, ctx: TaskContext) -> None:
    """Handle a message of any type."""


def register(make: Callable[[], Any]) -> Plugin:
    """Return a plugin whose hook makes a kind, as a plugin's author would write it."""
    return Plugin(name="bad", task_kinds=lambda: [make()])


@pytest.mark.parametrize(
    ("make", "kind", "complaint"),
    [
        pytest.param(lambda: TaskKind(TaggedReceipt, nothing), "TaggedReceipt", "is a map", id="map"),
        pytest.param(lambda: TaskKind(ReceiptArchive, nothing), "ReceiptArchive", "is a map", id="map-inside"),
        pytest.param(lambda: TaskKind(LinkedReceipt, nothing), "LinkedReceipt", "is a map", id="map-far-inside"),
        pytest.param(
            lambda: receipts(Scripted()), "SendReceipt", "already registered, by plugin 'good'", id="twice"
        ),
        pytest.param(lambda: receipts("send"), "SendReceipt", "the handler must be callable", id="handler"),  # type: ignore[arg-type]
        pytest.param(
            lambda: receipts(Scripted(), timeout=timedelta(0)), "SendReceipt", "timeout must be", id="timeout"
        ),
    ],
)
def test_a_kind_that_cannot_work_is_refused_naming_plugin_and_kind_and_the_rest_goes_on(
    make_engine: MakeEngine, make: Callable[[], Any], kind: str, complaint: str
) -> None:
    good = Plugin(receipts(sent := Scripted()), name="good")
    with logged("ERROR") as log:
        engine = make_engine(good, register(make))
        engine.enqueue(receipt("read"))
        engine.run_due()

    assert sent.played == ["read"]
    bad = problems(engine)["bad"]
    assert problems(engine)["good"] == {}
    assert len(bad) == 1
    assert f"acme.receipts.{kind}" in str(bad)
    assert complaint in str(bad)
    assert log[0].startswith("ERROR plugin bad: ")
    assert kind in log[0]
    assert complaint in log[0]


@pytest.mark.parametrize(
    "numbers",
    [
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"factor": -1.5},
        {"initial": timedelta(seconds=-1)},
        {"cap": timedelta.max},
        {"max_attempts": -1},
        {"expires_after": timedelta(days=-3)},
    ],
)
def test_a_policy_that_cannot_work_is_refused_naming_plugin_number_and_kind(
    make_engine: MakeEngine, numbers: dict[str, Any]
) -> None:
    engine = make_engine(register(lambda: TaskKind(SendReceipt, Scripted(), retry=RetryPolicy(**numbers))))
    with logged("ERROR") as log:
        engine.load_plugins()

    [problem] = problems(engine)["bad"].values()
    assert next(iter(numbers)) in problem
    assert RECEIPT in problem
    assert log[0].startswith("ERROR plugin bad: ")


@pytest.mark.parametrize("kinds", [5, [None], ["acme.receipts.SendReceipt"], [SendReceipt]])
def test_a_hook_that_returns_no_kinds_is_reported(make_engine: MakeEngine, kinds: Any) -> None:
    engine = make_engine(
        Plugin(name="bad", task_kinds=lambda: kinds), Plugin(receipts(sent := Scripted()), name="good")
    )
    engine.enqueue(receipt("read"))
    engine.run_due()

    assert sent.played == ["read"]
    assert len(problems(engine)["bad"]) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), SystemExit("oops"), GeneratorExit("oops")])
def test_a_hook_that_raises_half_way_through_its_kinds_loses_only_the_others(
    make_engine: MakeEngine, error: BaseException
) -> None:
    def task_kinds() -> Iterator[TaskKind[Any]]:
        yield receipts(sent)
        raise error

    sent = Scripted()
    engine = make_engine(Plugin(name="bad", task_kinds=task_kinds))
    engine.enqueue(receipt("read"))
    engine.run_due()

    assert sent.played == ["read"]
    assert "oops" in problems(engine)["bad"]["callboard_task_kinds"]


# Plugins that cannot be loaded


def install(folder: Path, name: str, target: str, distribution: str | None = None, **modules: str) -> None:
    """Put a distribution with one plugin, and its modules, where Python finds them."""
    describe(folder, distribution or name, callboard=f"{name} = {target}")
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)


GOOD = """
from tests.engine.acting import receipts
from callboard import hookimpl
sent = []

@hookimpl
def callboard_task_kinds():
    return [receipts(lambda message, ctx: sent.append(message.text))]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on Python's path in which a good plugin is installed, whose modules go with it."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    install(folder, "acme-good", "acme_good", acme_good=GOOD)
    yield folder
    for module in ("acme_good", "acme_bad", "acme_other"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("target", "source", "problem"),
    [
        pytest.param("acme_bad", "import no_such_module", "no_such_module", id="missing-import"),
        pytest.param("acme_bad", "raise ZeroDivisionError('oops')", "oops", id="raises"),
        pytest.param("acme_bad", "raise SystemExit('oops')", "oops", id="exits"),
        pytest.param("acme_bad", "raise KeyboardInterrupt('oops')", "oops", id="interrupts"),
        pytest.param("acme_bad", "def (", "SyntaxError", id="no-python"),
        pytest.param("no_such_module", "", "no_such_module", id="no-such-module"),
        pytest.param("acme_bad:nothing", "", "nothing", id="no-such-attribute"),
        pytest.param(
            "acme_bad:make", "def make():\n    raise ZeroDivisionError('oops')", "oops", id="factory-raises"
        ),
        pytest.param(
            "acme_bad",
            "from callboard import hookimpl\n@hookimpl\ndef callboard_task_kind():\n    pass",
            "callboard_task_kind",
            id="misspelt-hook",
        ),
        pytest.param(
            "acme_bad",
            "from callboard import hookimpl\n@hookimpl\ndef callboard_startup(database):\n    pass",
            "database",
            id="unknown-argument",
        ),
    ],
)
def test_a_plugin_that_fails_to_import_is_isolated_and_named(
    make_engine: MakeEngine, site: Path, target: str, source: str, problem: str
) -> None:
    install(site, "acme-bad", target, acme_bad=source)
    with logged("ERROR") as log, make_engine(plugins=["acme-bad", "acme-good"]) as engine:
        engine.enqueue(receipt("read"))
        assert engine.wait_idle(WAIT_S)
        bad, good = engine.health().plugins

    assert sys.modules["acme_good"].sent == ["read"]
    assert good == PluginHealth("acme-good", loaded=True, kinds=[RECEIPT])
    assert (bad.name, bad.loaded, bad.kinds) == ("acme-bad", False, [])
    assert problem in bad.problems["import"]
    [line] = log
    assert line.startswith("ERROR plugin acme-bad: import failed, and the engine goes on")
    assert problem in line


def test_all_installed_plugins_are_loaded_by_default_and_a_bad_one_is_isolated(
    make_engine: MakeEngine, site: Path
) -> None:
    install(site, "acme-bad", "acme_bad", acme_bad="raise ZeroDivisionError('oops')")
    engine = make_engine(plugins=None)
    engine.load_plugins()

    plugins = {plugin.name: plugin for plugin in engine.health().plugins}
    assert plugins["acme-good"].loaded
    assert not plugins["acme-bad"].loaded


def test_a_plugin_asked_for_by_a_name_that_is_not_installed_is_refused(
    make_engine: MakeEngine, site: Path
) -> None:
    with pytest.raises(PluginError, match=r"no plugin 'acme-god' is installed \(installed: .*acme-good.*install"):
        make_engine(plugins=["acme-god"]).start()


def test_two_plugins_of_one_name_are_both_loaded(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())), Plugin(threads(Scripted(Defer(timedelta(1))))))
    engine.enqueue(receipt("read"))
    engine.enqueue(thread("seen"))
    engine.run_due()

    assert sent.played == ["read"]
    assert [kind for plugin in engine.health().plugins for kind in plugin.kinds] == [RECEIPT, THREAD]
    assert len(problems(engine)) == 2


def test_of_two_distributions_with_one_entry_point_name_both_are_loaded(
    make_engine: MakeEngine, site: Path
) -> None:
    other = GOOD.replace("receipts", "threads")
    install(site, "acme-good", "acme_other", distribution="acme-other", acme_other=other)
    engine = make_engine(plugins=["acme-good"])
    engine.load_plugins()

    assert [(plugin.name, plugin.kinds) for plugin in engine.health().plugins] == [
        ("acme-good", [RECEIPT]),
        ("acme-good (2)", [THREAD]),
    ]


@pytest.mark.parametrize("hook", ["task_kinds", "migrations"])
@pytest.mark.parametrize("use", [lambda engine: engine.tasks(), lambda engine: engine.enqueue(receipt("early"))])
def test_a_hook_that_uses_the_engine_while_it_is_loaded_is_told_so(
    make_engine: MakeEngine, hook: str, use: Callable[[Engine], object]
) -> None:
    module = ModuleType("bad")
    setattr(module, f"callboard_{hook}", hookimpl(lambda engine: use(engine)))
    engine = make_engine(module, Plugin(receipts(sent := Scripted()), name="good"))
    engine.enqueue(receipt("runs"))
    engine.run_due()

    assert "the plugins are still being loaded" in problems(engine)["bad"][f"callboard_{hook}"]
    assert sent.played == ["runs"]


# Plugins that raise in a hook


def observing(name: str, called: list[str]) -> Plugin:
    """Return a plugin with every hook, each of which notes that it was called."""

    def noting(hook: str) -> Callable[[], None]:
        return lambda: called.append(hook)

    return Plugin(name=name, **{hook: noting(hook) for hook in HOOKS})


def raising(hook: str, error: BaseException) -> Plugin:
    """Return a plugin with one hook, which raises."""

    def fail() -> None:
        raise error

    return Plugin(name="bad", **{hook: fail})


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("oops"),
        SystemExit("oops"),
        GeneratorExit("oops"),
        StopIteration("oops"),
        OwnError("oops"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_plugin_that_raises_in_a_hook_is_isolated_and_named(
    make_engine: MakeEngine, hook: str, error: BaseException
) -> None:
    before: list[str] = []
    after: list[str] = []
    plugins = [observing("before", before), raising(hook, error), observing("after", after)]
    with logged("ERROR") as log, make_engine(*plugins, Plugin(receipts(sent := Scripted()))) as engine:
        engine.group(b"g").created("ann", members=["bo"])
        engine.publish("something happened")
        engine.enqueue(receipt("read"))
        assert engine.wait_idle(WAIT_S)

        state = engine.group(b"g").state()
        assert state is not None
        assert state.members == {"ann", "bo"}
        assert sent.played == ["read"]
        assert set(before) == set(after) == set(HOOKS)
        assert "oops" in problems(engine)["bad"][f"callboard_{hook}"]
        assert problems(engine)["before"] == problems(engine)["after"] == {}

    assert log[0].startswith(f"ERROR plugin bad: callboard_{hook} failed")
    assert "oops" in log[0]


@pytest.mark.parametrize("hook", ["reconcile", "event", "tasks_finished"])
def test_an_interrupt_in_a_hook_on_the_engines_threads_is_the_plugins_own(
    make_engine: MakeEngine, hook: str
) -> None:
    with make_engine(raising(hook, KeyboardInterrupt("oops")), Plugin(receipts(sent := Scripted()))) as engine:
        engine.publish("something happened")
        engine.enqueue(receipt("read"))
        assert engine.wait_idle(WAIT_S)

        assert "oops" in problems(engine)["bad"][f"callboard_{hook}"]
    assert sent.played == ["read"]


def test_a_hook_that_succeeds_again_is_no_problem_any_more(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    def reconcile() -> None:
        calls.append(callboard_clock.now_ns())
        if len(calls) < 3:
            raise ZeroDivisionError

    calls: list[int] = []
    with make_engine(Plugin(name="bad", reconcile=reconcile)) as engine:
        assert engine.wait_idle(WAIT_S)
        assert problems(engine) == {"bad": {"callboard_reconcile": "ZeroDivisionError"}}
        for expected in (2, 3):
            callboard_clock.advance(timedelta(minutes=1))
            # Idle is only who has also set when the next attempt is: one set after the next minute never comes.
            assert engine.wait_idle(WAIT_S)
            assert len(calls) == expected
        assert problems(engine) == {"bad": {}}


def test_a_group_event_hook_that_raises_loses_its_own_writes_only_and_a_reconcile_follows(
    make_engine: MakeEngine,
) -> None:
    def enqueue(text: str) -> Callable[..., None]:
        def group_event(tx: Any) -> None:
            tx.enqueue(receipt(text), not_before=timedelta(days=1))
            if text == "bad":
                raise ZeroDivisionError

        return group_event

    reasons: list[str] = []
    reconciled = threading.Event()

    def reconcile(reason: str) -> None:
        reasons.append(reason)
        if reason == "hook":
            reconciled.set()

    plugins = [Plugin(name=name, group_event=enqueue(name)) for name in ("first", "bad", "last")]
    with make_engine(*plugins, Plugin(receipts(Scripted()), reconcile=reconcile)) as engine:
        assert engine.wait_idle(WAIT_S)
        with engine.transaction() as tx:
            assert tx.group(b"g").leave_requested("bo", b"message")
        assert reconciled.wait(WAIT_S)

        assert reasons == ["start", "hook"]
        assert sorted(task.data for task in engine.tasks()) == sorted(
            payload(receipt(text)) for text in ("first", "last")
        )
        state = engine.group(b"g").state()
        assert state is not None
        assert [each.inbox_id for each in state.pending_removes] == ["bo"]
