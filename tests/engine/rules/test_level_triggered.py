"""Rules 19 and 20: reconciling makes up for lost events, and a broken plugin breaks nothing else."""

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
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
    thread,
    threads,
)
from tests.engine.rows import sql
from tests.installed import describe

from callboard import Discard, Engine, GroupCreated, PluginError, ServiceUnavailable, hookimpl
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)
SIX_HOURS_AND_JITTER = timedelta(hours=6.6)


class Reconciler:
    """A plugin that counts its reconciles, and fails as often as it is told."""

    def __init__(self, name: str = "reconciler", failures: int = 0) -> None:
        self.__name__ = name
        self._failures = failures
        self.reasons: list[str] = []

    @hookimpl
    def callboard_reconcile(self, engine: Engine, reason: str) -> None:
        self.reasons.append(reason)
        if len(self.reasons) <= self._failures:
            raise ValueError("not yet")


# Rule 19


def test_rule_19_every_plugin_reconciles_on_start(make_engine: MakeEngine) -> None:
    one, two = Reconciler("one"), Reconciler("two")

    with make_engine(one, two) as engine:
        assert engine.wait_idle(WAIT_S)
        engine.start()
        assert engine.wait_idle(WAIT_S)

    assert one.reasons == two.reasons == ["start"]


def test_rule_19_the_first_run_due_of_an_engine_is_its_start(make_engine: MakeEngine) -> None:
    plugin = Reconciler()
    engine = make_engine(plugin)

    engine.run_due()
    engine.run_due()

    assert plugin.reasons == ["start"]


def test_rule_19_reconcile_creates_again_what_lost_events_would_have_created(make_engine: MakeEngine) -> None:
    handler = Scripted()

    def reconcile(engine: Engine, reason: str) -> None:
        engine.enqueue_many([receipt(state.group_id.decode()) for state in engine.groups(pending=True)])

    def lost(tx: Any, event: object) -> None:
        raise OSError("lost")

    engine = make_engine(Plugin(receipts(handler), reconcile=reconcile, group_event=lost))
    engine.group(b"marked").leave_requested("bob", b"message")
    engine.group(b"quiet").active()

    engine.run_due()

    assert handler.played == ["marked"]


def test_rule_19_a_reconcile_that_waits_keeps_no_other_waiting(make_engine: MakeEngine) -> None:
    """A service that flickers may wait for a minute; a reconnect may not, and is told."""
    plugin = Reconciler()
    with make_engine(plugin) as engine:
        assert engine.wait_idle(WAIT_S)
        assert engine._core.running is not None
        hooks = engine._core.running.hooks
        hooks.want_reconcile("service", engine.clock.now_ns() + 10**12)

        hooks.want_reconcile("reconnect")

        eventually(lambda: plugin.reasons == ["start", "reconnect"])


def test_rule_19_a_service_that_recovers_makes_every_plugin_reconcile(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Scripted(ServiceUnavailable("away"), ServiceUnavailable("away"), None)
    plugin = Reconciler()
    engine = make_engine(plugin, Plugin(receipts(handler)))
    with engine:
        engine.enqueue(receipt("hello"))
        for expected in (["start"], ["start"], ["start", "service"]):
            assert engine.wait_idle(WAIT_S)
            assert plugin.reasons == expected
            callboard_clock.advance(HOUR)
        engine.enqueue(receipt("all is well"))
        assert engine.wait_idle(WAIT_S)

    assert plugin.reasons == ["start", "service"]


def test_rule_19_a_handler_that_fails_otherwise_is_no_sign_of_recovery(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    plugin = Reconciler()
    engine = make_engine(plugin, Plugin(receipts(Scripted(ValueError("a bug"), None))))
    with engine:
        engine.enqueue(receipt("hello"))
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(HOUR)
        assert engine.wait_idle(WAIT_S)
        assert engine.tasks() == []

    assert plugin.reasons == ["start"]


def test_rule_19_an_event_stream_that_lags_drops_events_and_triggers_one_reconcile(
    make_engine: MakeEngine,
) -> None:
    """The reconcile that the first dropped event asks for waits for its turn; the others ask for the same one."""
    told: list[object] = []
    entered, go_on = threading.Event(), threading.Event()
    reconciling, finish = threading.Event(), threading.Event()
    reasons: list[str] = []

    def event(engine: Engine, event: object) -> None:
        told.append(event)
        entered.set()
        assert go_on.wait(WAIT_S)

    def reconcile(engine: Engine, reason: str) -> None:
        reasons.append(reason)
        reconciling.set()
        assert finish.wait(WAIT_S)

    engine = make_engine(Plugin(event=event, reconcile=reconcile))
    engine.start()
    assert reconciling.wait(WAIT_S)
    assert engine.publish(-1)
    assert entered.wait(WAIT_S)

    kept = [engine.publish(number) for number in range(1_100)]
    go_on.set()
    finish.set()
    assert engine.wait_idle(WAIT_S)

    assert kept == [True] * 1_000 + [False] * 100
    assert told == [-1, *range(1_000)]
    assert reasons == ["start", "overflow"]


def test_rule_19_publishing_never_waits_for_the_plugins(make_engine: MakeEngine) -> None:
    go_on = threading.Event()
    told: list[object] = []

    def event(engine: Engine, event: object) -> None:
        assert go_on.wait(WAIT_S)
        told.append(event)

    engine = make_engine(Plugin(event=event))
    engine.start()
    assert engine.publish("one")
    assert engine.publish("two")
    assert told == []
    go_on.set()
    assert engine.wait_idle(WAIT_S)
    assert told == ["one", "two"]


def test_rule_19_the_fleet_reconciles_every_six_hours(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    plugin = Reconciler()
    with make_engine(plugin) as engine:
        running = engine._core.running
        assert running is not None
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(timedelta(hours=5.9))
        eventually(lambda: running.rounds.deadline_ns > callboard_clock.now_ns())
        assert engine.wait_idle(WAIT_S)
        assert plugin.reasons == ["start"]

        for turns in (1, 2, 3):
            callboard_clock.advance(SIX_HOURS_AND_JITTER)
            eventually(lambda: len(plugin.reasons) > turns)  # noqa: B023
            assert plugin.reasons == ["start"] + ["interval"] * turns


def test_rule_19_a_host_that_starts_anew_each_hour_has_its_turns_too(
    make_engine: MakeEngine, callboard_clock: FakeClock, callboard_database: str
) -> None:
    """Minutes after a start, if the fleet's last turn is six hours ago; the start itself has reconciled."""
    stamps: list[int] = []
    reasons: list[str] = []
    for _ in range(14):
        plugin = Reconciler()
        with make_engine(plugin) as engine:
            running = engine._core.running
            assert running is not None
            assert engine.wait_idle(WAIT_S)
            callboard_clock.advance(timedelta(minutes=5))
            eventually(lambda: running.rounds.deadline_ns > callboard_clock.now_ns())  # noqa: B023
            assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(timedelta(minutes=55))
        reasons += plugin.reasons
        stamps += [at_ns for (at_ns,) in sql(callboard_database, "SELECT at_ns FROM callboard_stamp")]

    six_hours_ns = 6 * 3_600 * 10**9
    assert sorted(set(stamps)) == [stamps[0], stamps[0] + six_hours_ns, stamps[0] + 2 * six_hours_ns]
    assert reasons == ["start"] * 14


def test_rule_19_a_script_that_only_runs_what_is_due_has_its_turns_too(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    kind = receipts(Scripted(Discard("not wanted")))
    first = make_engine(Plugin(kind), dead_retention=HOUR)
    first.enqueue(receipt("hello"))
    assert first.run_due() == 1
    for dead_later in (1, 0):
        callboard_clock.advance(timedelta(hours=4))
        engine = make_engine(Plugin(kind), dead_retention=HOUR)
        engine.run_due()
        assert len(engine.dead_tasks()) == dead_later


def test_rule_19_a_turn_makes_no_task_late(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarm that rang for the turn rings again for the task, and not only when it looks around."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 3_600.0)
    handler = Scripted()
    with make_engine(Plugin(receipts(handler))) as engine:
        running = engine._core.running
        assert running is not None
        engine.enqueue(receipt("before"), not_before=timedelta(seconds=1))
        engine.enqueue(receipt("later"), not_before=timedelta(minutes=10))
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(timedelta(seconds=1))
        eventually(lambda: handler.played == ["before"])
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(timedelta(minutes=5))
        eventually(lambda: running.rounds.deadline_ns > callboard_clock.now_ns())
        callboard_clock.advance(timedelta(minutes=5))
        eventually(lambda: handler.played == ["before", "later"])


def test_rule_19_a_stamp_in_the_database_keeps_a_fleet_from_doing_it_all_at_once(
    make_engine: MakeEngine, callboard_clock: FakeClock, callboard_database: str
) -> None:
    plugin = Reconciler()
    with make_engine(plugin) as engine:
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(SIX_HOURS_AND_JITTER)
        eventually(lambda: plugin.reasons == ["start", "interval"])
        [(at_ns,)] = sql(callboard_database, "SELECT at_ns FROM callboard_stamp")
        assert at_ns == callboard_clock.now_ns()

        half_an_interval_on = at_ns + SIX_HOURS_AND_JITTER // timedelta(microseconds=2) * 1_000
        sql(callboard_database, "UPDATE callboard_stamp SET at_ns = ?", half_an_interval_on)  # another node's turn
        callboard_clock.advance(SIX_HOURS_AND_JITTER)
        running = engine._core.running
        eventually(lambda: running and running.rounds.deadline_ns > callboard_clock.now_ns())
        assert engine.wait_idle(WAIT_S)

    assert plugin.reasons == ["start", "interval"]


def test_rule_19_nodes_that_start_together_take_their_turns_apart(make_engine: MakeEngine, tmp_path: Path) -> None:
    deadlines = set()
    for number in range(5):
        with make_engine(database=f"sqlite:///{tmp_path / str(number)}.db") as engine:
            assert engine._core.running is not None
            deadlines.add(engine._core.running.rounds.deadline_ns)

    assert len(deadlines) == 5


def test_rule_19_a_reconcile_that_fails_is_retried_with_backoff_until_it_succeeds(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    failing, healthy = Reconciler("failing", failures=3), Reconciler("healthy")
    with make_engine(failing, healthy) as engine:
        for tries, wait_s in [(1, 2.0), (2, 3.0), (3, 4.5)]:
            assert engine.wait_idle(WAIT_S)
            assert len(failing.reasons) == tries
            assert "not yet" in engine.health().plugins[0].problems["callboard_reconcile"]
            callboard_clock.advance(timedelta(seconds=wait_s - 0.001))
            assert engine.wait_idle(WAIT_S)
            assert len(failing.reasons) == tries
            callboard_clock.advance(timedelta(seconds=0.001))
        eventually(lambda: len(failing.reasons) == 4)
        assert engine.wait_idle(WAIT_S)
        callboard_clock.advance(HOUR)
        assert engine.wait_idle(WAIT_S)
        assert engine.health().plugins[0].problems == {}

    assert failing.reasons == ["start"] * 4
    assert healthy.reasons == ["start"]


def test_rule_19_a_slow_reconcile_holds_up_no_task(make_engine: MakeEngine) -> None:
    go_on = threading.Event()
    handler = Blocking()

    def reconcile(engine: Engine, reason: str) -> None:
        assert go_on.wait(WAIT_S)

    engine = make_engine(Plugin(receipts(handler), reconcile=reconcile))
    engine.start()
    engine.enqueue(receipt("hello"))

    handler.wait_begun("hello")

    assert not engine.wait_idle(0)
    handler.let_go()
    go_on.set()
    assert engine.wait_idle(WAIT_S)


# Rule 20


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a plugin as pip does: a module and its distribution's entry point."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(name: str, code: str, target: str = "") -> None:
        monkeypatch.delitem(sys.modules, f"{name}_plugin", raising=False)
        (site / f"{name}_plugin.py").write_text(code)
        describe(site, name, callboard=f"{name} = {name}_plugin{target}")

    return install


GOOD_PLUGIN = """
from callboard import TaskKind, hookimpl
from tests.engine.messages import SendReceipt

ran = []

@hookimpl
def callboard_task_kinds():
    return [TaskKind(SendReceipt, lambda message, ctx: ran.append(message.text))]
"""


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("import no_such_module_of_ours", ""),
        ("raise SystemExit('go away')", ""),
        ("def (", ""),
        ("", ":missing"),
        ("def make(): raise RuntimeError('no configuration')", ":make"),
        ("class Make:\n def __init__(self): raise KeyboardInterrupt", ":Make"),
        (
            "from callboard import hookimpl\n@hookimpl\ndef callboard_task_kindz(): pass",
            "",
        ),
        ("from callboard import hookimpl\n@hookimpl\ndef callboard_startup(motor): pass", ""),
    ],
    ids=["import", "exits", "syntax", "attribute", "factory", "class", "misspelt hook", "argument"],
)
@pytest.mark.parametrize("selection", [None, ["aaa_bad", "good"]], ids=["all", "named"])
def test_rule_20_a_plugin_that_cannot_be_loaded_is_logged_shown_and_left_out(
    selection: Any, code: str, target: str, make_engine: MakeEngine, install: Callable[..., None]
) -> None:
    install("aaa_bad", code, target)
    install("good", GOOD_PLUGIN)
    engine = make_engine(plugins=selection)

    with logged("ERROR") as messages:
        engine.enqueue(receipt("hello"))
        assert engine.run_due() == 1

    health = {plugin.name: plugin for plugin in engine.health().plugins}
    assert health["aaa_bad"].loaded is False
    assert list(health["aaa_bad"].problems) == ["import"]
    assert health["good"].loaded is True
    assert health["good"].kinds == ["acme.receipts.SendReceipt"]
    assert ["aaa_bad" in message for message in messages] == [True]


def test_rule_20_a_plugin_named_that_is_not_installed_is_refused_by_name(
    make_engine: MakeEngine, install: Callable[..., None]
) -> None:
    install("good", GOOD_PLUGIN)
    engine = make_engine(plugins=["godo"])

    with pytest.raises(PluginError, match=r"'godo'.*good"):
        engine.start()


def raising(error: BaseException) -> Callable[..., Any]:
    def hook(engine: Engine) -> None:
        raise error

    return hook


HOOK_ERRORS = [ValueError("broken"), SystemExit(), GeneratorExit(), ServiceUnavailable("away")]


@pytest.mark.parametrize("error", HOOK_ERRORS, ids=lambda error: type(error).__name__)
def test_rule_20_a_hook_that_raises_is_logged_shown_and_the_rest_goes_on(
    error: BaseException, make_engine: MakeEngine
) -> None:
    def fail(**_: Any) -> None:
        raise error

    def startup(engine: Engine) -> None:
        fail()

    def reconcile(engine: Engine, reason: str) -> None:
        fail()

    def group_event(tx: Any, event: object) -> None:
        fail()

    def event(engine: Engine, event: object) -> None:
        fail()

    def tasks_finished(engine: Engine, finished: Any) -> None:
        fail()

    handler = Scripted()
    seen: list[str] = []
    bad = Plugin(
        threads(handler),
        name="bad",
        startup=startup,
        reconcile=reconcile,
        group_event=group_event,
        event=event,
        tasks_finished=tasks_finished,
    )
    good = Plugin(
        receipts(handler),
        name="good",
        startup=lambda engine: seen.append("startup"),
        reconcile=lambda engine, reason: seen.append("reconcile"),
        group_event=lambda tx, event: seen.append(type(event).__name__),
        event=lambda engine, event: seen.append(str(event)),
        tasks_finished=lambda engine, finished: seen.append("finished"),
    )
    engine = make_engine(bad, good)
    with logged("ERROR") as messages, engine:
        engine.group(b"group").created("alice")
        engine.publish("an event")
        engine.enqueue(receipt("hello"))
        assert engine.wait_idle(WAIT_S)
        health = engine.health().plugins

    hooks = ["startup", "reconcile", "group_event", "event", "tasks_finished"]
    assert sorted(health[0].problems) == sorted(f"callboard_{hook}" for hook in hooks)
    assert all(type(error).__name__ in problem for problem in health[0].problems.values())
    assert health[1].problems == {}
    assert handler.played == ["hello"]
    assert {"startup", "reconcile", GroupCreated.__name__, "an event", "finished"} <= set(seen)
    for hook in hooks:
        assert any("bad" in message and f"callboard_{hook}" in message for message in messages)


@pytest.mark.parametrize("error", HOOK_ERRORS, ids=lambda error: type(error).__name__)
def test_rule_20_a_plugin_that_cannot_tell_its_kinds_is_left_out(
    error: BaseException, make_engine: MakeEngine
) -> None:
    handler = Scripted()
    bad = Plugin(name="bad", task_kinds=raising(error))
    engine = make_engine(bad, Plugin(receipts(handler)))
    engine.enqueue(receipt("hello"))

    engine.run_due()

    assert handler.played == ["hello"]
    assert list(engine.health().plugins[0].problems) == ["callboard_task_kinds"]


@pytest.mark.parametrize("error", HOOK_ERRORS, ids=lambda error: type(error).__name__)
def test_rule_20_kinds_that_were_told_before_it_raised_remain(
    error: BaseException, make_engine: MakeEngine
) -> None:
    handler = Scripted()

    class Bad:
        @hookimpl
        def callboard_task_kinds(self, engine: Engine) -> Any:
            yield receipts(handler)
            raise error

    engine = make_engine(Bad())
    engine.enqueue(receipt("hello"))
    engine.run_due()

    assert handler.played == ["hello"]
    assert "callboard_task_kinds" in engine.health().plugins[0].problems


def test_rule_20_a_kind_that_is_refused_takes_no_other_with_it(make_engine: MakeEngine) -> None:
    first, second = Scripted(), Scripted()
    engine = make_engine(
        Plugin(receipts(first), name="first"), Plugin(receipts(second), threads(second), name="second")
    )
    with logged("ERROR") as messages:
        engine.enqueue_many([receipt("hello"), thread("hello")])
        engine.run_due()

    assert len(first.played) == 1
    assert len(second.played) == 1
    assert engine.health().plugins[1].kinds == ["acme.receipts.ReceiptThread"]
    [message] = messages
    assert "second" in message and "first" in message and "acme.receipts.SendReceipt" in message


def test_rule_20_two_plugins_of_one_name_are_both_shown(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted()), name="twin"), Plugin(threads(Scripted()), name="twin"))

    engine.load_plugins()

    assert sorted(kind for plugin in engine.health().plugins for kind in plugin.kinds) == [
        "acme.receipts.ReceiptThread",
        "acme.receipts.SendReceipt",
    ]


def test_rule_20_a_problem_that_is_over_is_no_longer_shown(make_engine: MakeEngine) -> None:
    lines = iter([ValueError("once"), None])

    def event(engine: Engine, event: object) -> None:
        line = next(lines)
        if line is not None:
            raise line

    engine = make_engine(Plugin(event=event))
    engine.publish("one")
    assert engine.health().plugins[0].problems == {"callboard_event": "ValueError: once"}

    engine.publish("two")
    assert engine.health().plugins[0].problems == {}
