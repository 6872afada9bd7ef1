"""The page of states: its drawing, its tables and the engine say the same."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from tests import pages
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    receipt,
    receipts,
)
from tests.engine.rows import sql, write_by_hand

from callboard import (
    DeadReason,
    Defer,
    Discard,
    Done,
    Engine,
    Outcome,
    RescheduleAt,
    Task,
    _lifecycle,
)
from callboard._lifecycle import Bury, Finish, Keep, Transition, settle
from callboard._outcome import Failure
from callboard.testing import FakeClock

PAGE = "docs/reference/states.md"
DRAWING = pages.read("docs/reference/states.svg")
ROWS = [
    (pages.plain(row["from"]), row["what happens"], pages.plain(row["to"])) for row in pages.table(PAGE, "from")
]

NOW_NS = 1_800_000_000 * 10**9
LATER_NS = NOW_NS + 7
SPAN_NS = 3600 * 10**9
CREATED_NS = NOW_NS - 60 * 10**9
TASK = Task(
    id=1,
    kind=RECEIPT,
    group_id=None,
    identity=b"i" * 32,
    data=b"d",
    data_hash=b"h" * 32,
    state="running",
    attempts=3,
    max_attempts=20,
    created_at_ns=CREATED_NS,
    expires_at_ns=CREATED_NS + SPAN_NS,
    next_attempt_at_ns=NOW_NS,
    last_attempted_at_ns=NOW_NS,
    initial_backoff_ns=10**9,
    backoff_factor=2.0,
    max_backoff_ns=3600 * 10**9,
    requests=1,
    outages=2,
    pulled_in_ns=None,
    token=1,
    origin=None,
    last_error="an earlier one",
    owner=1,
)


def test_the_drawing_has_the_transitions_of_the_table() -> None:
    groups = re.findall(r'<g class="transition" id="(\w+)-to-(\w+)">(.*?)</g>', DRAWING, re.DOTALL)
    drawn = [
        (source, words, target)
        for source, target, inside in groups
        for words in re.findall(r"<tspan[^>]*>([^<]+)</tspan>", inside)
    ]

    assert sorted(drawn) == sorted(ROWS)


def test_the_whole_state_machine_is_in_the_table() -> None:
    decided_by = {pages.plain(row["decided by"]) for row in pages.table(PAGE, "from")}
    decisions = {
        name
        for name, value in vars(_lifecycle).items()
        if callable(value) and value.__module__ == _lifecycle.__name__
    }
    decisions -= {"Finish", "Keep", "Bury"}  # what they decide
    decisions -= {"judged"}  # what counts as which outcome, which `settle` asks

    assert {f"_lifecycle.{name}" for name in decisions if not name.startswith("_")} <= decided_by


# What a run changes, by the arithmetic alone

FAILED = Failure("it raised")
OUTAGE = Failure("it raised", counted=False)
OUTCOMES: list[Outcome] = [Done(), RescheduleAt(LATER_NS), Defer(LATER_NS), Discard("no use")]
RUNS: dict[str, list[Transition]] = {
    "Done() or None": [settle(TASK, Done(), NOW_NS)],
    "RescheduleAt(when)": [settle(TASK, RescheduleAt(LATER_NS), NOW_NS, recurring=each) for each in (False, True)],
    "Defer(when)": [settle(TASK, Defer(LATER_NS), NOW_NS, recurring=each) for each in (False, True)],
    "Discard(reason)": [settle(TASK, Discard("no use"), NOW_NS, recurring=each) for each in (False, True)],
    "a failure": [settle(TASK, FAILED, NOW_NS)],
    "a failure, the last attempt": [settle(TASK._replace(max_attempts=4), FAILED, NOW_NS)],
    "an outage": [
        settle(TASK._replace(max_attempts=most), OUTAGE, NOW_NS, recurring=each)
        for most, each in product((4, 20), (False, True))
    ],
    "any outcome, requested": [settle(TASK, outcome, NOW_NS, requested=True) for outcome in OUTCOMES],
    "a failure, requested": [
        settle(TASK._replace(max_attempts=most), FAILED, NOW_NS, requested=True) for most in (4, 20)
    ],
    "an outage, requested": [settle(TASK, OUTAGE, NOW_NS, requested=True)],
    "Done(), recurring": [settle(TASK, Done(), NOW_NS, recurring=True)],
    "a failure, recurring": [
        settle(TASK._replace(max_attempts=most), FAILED, NOW_NS, recurring=True) for most in (4, 20)
    ],
}


def in_words(change: Transition) -> tuple[str, ...]:
    """Return what becomes of `TASK`, as the page says it."""
    counts = {0: "0", 3: "as they were", 4: "one more"}
    match change:
        case Finish():
            return ("done", "", "", "", "", "")
        case Bury(reason, attempts, error):
            said = "the reason" if error == "no use" else "the error"
            return (f"dead, {reason}", counts[attempts], "", "", "", said)
        case Keep(attempts, outages, next_ns, created_ns, expires_ns, error):
            assert expires_ns - created_ns == SPAN_NS
            backoffs = {
                NOW_NS + 2 ** (number - 1) * 10**9 for number in (3, 4)
            }  # of the third outage, fourth attempt
            when = {NOW_NS: "now", LATER_NS: "when"}.get(next_ns, "backoff" if next_ns in backoffs else "?")
            outage = {0: "0", 3: "one more"}[outages]
            expiry = {CREATED_NS: "as it was", NOW_NS: "afresh"}[created_ns]
            return ("pending", counts[attempts], outage, when, expiry, "the error" if error else "none")


@pytest.mark.parametrize("row", pages.table(PAGE, "the run ends with"), ids=lambda row: row["the run ends with"])
def test_a_run_changes_what_the_page_says(row: dict[str, str]) -> None:
    ends_with, *cells = (pages.plain(cell) for cell in row.values())

    assert {in_words(change) for change in RUNS[ends_with]} == {tuple(cells)}


def test_every_way_in_which_a_run_may_end_is_on_the_page() -> None:
    results: list[Outcome | Failure] = [*OUTCOMES, FAILED, OUTAGE]
    reached = {
        change.reason if isinstance(change, Bury) else type(change)
        for result in results
        for recurring, requested, last in product((False, True), repeat=3)
        for change in [
            settle(
                TASK._replace(max_attempts=4 if last else 20),
                result,
                NOW_NS,
                recurring=recurring,
                requested=requested,
            )
        ]
    }

    assert set(pages.column(pages.table(PAGE, "the run ends with"), "the run ends with")) == set(RUNS)
    assert reached == {Finish, Keep, DeadReason.DISCARDED, DeadReason.EXHAUSTED}


# Each transition, on an engine

HOUR = timedelta(hours=1)


class World:
    """An engine with a kind whose handler plays one line, and one task of it."""

    def __init__(self, make_engine: MakeEngine, url: str, clock: FakeClock) -> None:
        self._make_engine = make_engine
        self.url = url
        self.clock = clock

    def engine(self, *lines: Any, **options: Any) -> Engine:
        return self._make_engine(Plugin(receipts(Scripted(*lines))), **options)

    def ignorant(self) -> Engine:
        return self._make_engine()

    def enqueue(self, engine: Engine, **options: Any) -> int:
        task_id = engine.enqueue(receipt("hello"), allow_unknown=True, **options).task_id
        assert task_id is not None
        return task_id

    def state(self) -> str:
        """Return where the one task is, and of a dead one why."""
        live = [state for (state,) in sql(self.url, "SELECT state FROM callboard_task")]
        dead = [f"dead: {reason}" for (reason,) in sql(self.url, "SELECT reason FROM callboard_dead_task")]
        [state] = live + dead or ["done"]
        return str(state)

    def during(self, act: Callable[[Engine, int], object], **options: Any) -> str:
        """Do something while the task runs; return the state in which the run leaves it."""
        handler = Blocking(RescheduleAt(HOUR), patience_s=WAIT_S)
        engine = self._make_engine(Plugin(receipts(handler)), **options)
        with engine:
            task_id = self.enqueue(engine)
            handler.wait_begun("hello")
            assert self.state() == "running"
            act(engine, task_id)
            handler.let_go()
            assert engine.wait_idle(WAIT_S)
        return self.state()


def claimed(world: World) -> None:
    seen: list[str] = []
    assert world.during(lambda engine, task_id: seen.append(world.state())) == "pending"
    assert seen == ["running"]


def outcome(line: Any, after: str, **options: Any) -> Callable[[World], None]:
    """Return a scenario in which one run of the task ends like that."""

    def play(world: World) -> None:
        engine = world.engine(line)
        world.enqueue(engine)
        sql(world.url, "UPDATE callboard_task SET attempts = ?", options.get("attempts", 0))
        assert world.state() == "pending"
        engine.run_due()
        assert world.state() == after

    return play


def before_a_run(after: str, statement: str = "") -> Callable[[World], None]:
    """Return a scenario in which a pending row is not run, once `statement` has changed it."""

    def play(world: World) -> None:
        engine = world.engine()
        world.enqueue(engine)
        if statement:
            sql(world.url, statement)
        assert world.state() == "pending"
        assert engine.run_due() == 0
        assert world.state() == after

    return play


def deferred(world: World) -> int:
    ignorant = world.ignorant()
    task_id = world.enqueue(ignorant)
    assert world.state() == "pending"
    ignorant.run_due()
    assert world.state() == "deferred"
    return task_id


def unknown(world: World) -> None:
    deferred(world)


def known(world: World) -> None:
    deferred(world)
    world.engine(RescheduleAt(HOUR)).run_due()
    assert world.state() == "pending"


def deferred_expired(world: World) -> None:
    deferred(world)
    world.clock.advance(timedelta(days=4))
    world.ignorant().run_due()
    assert world.state() == "dead: expired"


def cancelled(state: str) -> Callable[[World], None]:
    def play(world: World) -> None:
        engine = world.engine()
        task_id = deferred(world) if state == "deferred" else world.enqueue(engine)
        assert world.state() == state
        engine.cancel(task_id)
        assert world.state() == "dead: cancelled"

    return play


def cancelled_while_it_runs(world: World) -> None:
    assert world.during(lambda engine, task_id: engine.cancel(task_id)) == "dead: cancelled"


def requested(world: World) -> None:
    """That it runs again at once, and not after an hour, shows that it was pending and due."""
    runs = 0

    def handler(message: Any, ctx: Any) -> Any:
        nonlocal runs
        runs += 1
        if runs == 1:
            assert ctx.engine.enqueue(receipt("hello")).status == "rerun"
        return RescheduleAt(HOUR)

    engine = world._make_engine(Plugin(receipts(handler)))
    world.enqueue(engine)
    assert engine.run_due() == 2
    assert world.state() == "pending"


def handed_back(world: World) -> None:
    """Of two tasks of a group the second is claimed and has not begun when the engine stops."""
    handler = Blocking(Done())
    engine = world._make_engine(Plugin(receipts(handler)), execute=True)
    engine.enqueue_many([receipt("first", b"group"), receipt("second", b"group")])
    engine.start()
    handler.wait_begun("first")
    seen = dict(sql(world.url, "SELECT state, count(*) FROM callboard_task GROUP BY state"))
    assert seen == {"running": 2}
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    eventually(lambda: engine._core.running is None or engine._core.running.runner.stopping)
    handler.let_go()
    stopping.join()
    assert handler.begun == ["first"]
    assert world.state() == "pending"


def of_a_gone_process(after: str, **columns: Any) -> Callable[[World], None]:
    """Return a scenario with a row that a node which is gone has left running."""

    def play(world: World) -> None:
        engine = world.engine(RescheduleAt(HOUR), max_crashes=5)
        world.enqueue(engine)
        marks = ", ".join(f"{name} = ?" for name in columns)
        sql(world.url, f"UPDATE callboard_task SET state = 'running', owner = 77, {marks}", *columns.values())
        assert world.state() == "running"
        with engine:
            assert engine.wait_idle(WAIT_S)
        assert world.state() == after

    return play


def retried(world: World) -> None:
    engine = world.engine()
    engine.cancel(world.enqueue(engine))
    [dead] = engine.dead_tasks()
    assert world.state() == "dead: cancelled"
    engine.retry_dead(dead.id)
    assert world.state() == "pending"


def enqueued(world: World) -> None:
    world.enqueue(world.engine())
    assert world.state() == "pending"


def malformed(world: World) -> None:
    world.ignorant().migrate()
    write_by_hand(world.url, RECEIPT, b"\xff")
    assert world.state() == "pending"
    world.engine().run_due()
    assert world.state() == "dead: malformed"


EXPIRE = "UPDATE callboard_task SET expires_at_ns = 1"
EXHAUST = "UPDATE callboard_task SET attempts = max_attempts"
SCENARIOS: dict[tuple[str, str, str], Callable[[World], None]] = {
    ("new", "enqueued", "pending"): enqueued,
    ("pending", "claimed", "running"): claimed,
    ("pending", "unknown", "deferred"): unknown,
    ("pending", "expired", "dead"): before_a_run("dead: expired", EXPIRE),
    ("pending", "exhausted", "dead"): before_a_run("dead: exhausted", EXHAUST),
    ("pending", "malformed", "dead"): malformed,
    ("pending", "cancelled", "dead"): cancelled("pending"),
    ("deferred", "known", "pending"): known,
    ("deferred", "expired", "dead"): deferred_expired,
    ("deferred", "cancelled", "dead"): cancelled("deferred"),
    ("running", "done", "done"): outcome(Done(), "done"),
    ("running", "rescheduled", "pending"): outcome(RescheduleAt(HOUR), "pending"),
    ("running", "put off", "pending"): outcome(Defer(HOUR), "pending"),
    ("running", "failed", "pending"): outcome(ValueError("bad"), "pending"),
    ("running", "requested", "pending"): requested,
    ("running", "handed back", "pending"): handed_back,
    ("running", "process ended", "pending"): of_a_gone_process("pending", alone=0, crashes=0),
    ("running", "discarded", "dead"): outcome(Discard("no use"), "dead: discarded"),
    ("running", "exhausted", "dead"): outcome(ValueError("bad"), "dead: exhausted", attempts=19),
    ("running", "cancelled", "dead"): cancelled_while_it_runs,
    ("running", "crashed", "dead"): of_a_gone_process("dead: crashed", alone=1, crashes=4),
    ("dead", "retried", "pending"): retried,
}


def test_each_transition_of_the_table_is_played() -> None:
    assert sorted(SCENARIOS) == sorted(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_the_engine_makes_the_transition(
    row: tuple[str, str, str], make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    SCENARIOS[row](World(make_engine, callboard_database, callboard_clock))


CHECKS = {
    "expires_at_ns has come": (EXPIRE + ", attempts = max_attempts, data = x''", "dead, expired"),
    "attempts has reached max_attempts": (EXHAUST + ", data = x''", "dead, exhausted"),
    "data is empty": ("UPDATE callboard_task SET data = x''", "dead, malformed"),
    "no handler here for the kind, or a service is missing": (
        "UPDATE callboard_task SET kind = 'unheard.of', data = x'ff'",
        "deferred",
    ),
    "data does not decode, or is of another kind than the row says": (
        "UPDATE callboard_task SET data = x'ff'",
        "dead, malformed",
    ),
    "data needs a newer build": ("UPDATE callboard_task SET data = x'fa0f00'", "deferred"),
    "none of these": ("UPDATE callboard_task SET attempts = 1", "running"),
}
"""For each check a row that fails it, and all the later ones as far as that can be."""


def test_the_checks_before_a_run_are_made_in_their_order(make_engine: MakeEngine, callboard_database: str) -> None:
    shown = [(pages.plain(row["check"]), pages.plain(row["becomes"])) for row in pages.table(PAGE, "check")]
    assert shown == [(check, becomes) for check, (_, becomes) in CHECKS.items()]

    for statement, becomes in CHECKS.values():
        engine = make_engine(Plugin(receipts(Scripted(RescheduleAt(HOUR)))))
        engine.enqueue(receipt("hello"))
        sql(callboard_database, statement)
        ran = engine.run_due()
        found = [f"dead, {dead.reason}" for dead in engine.dead_tasks()] + [task.state for task in engine.tasks()]
        assert (ran, found) == ((1, ["pending"]) if becomes == "running" else (0, [becomes]))
        sql(callboard_database, "DELETE FROM callboard_task")
        sql(callboard_database, "DELETE FROM callboard_dead_task")
        engine.stop()
