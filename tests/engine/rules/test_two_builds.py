"""Rules 16 to 18 with two builds on one file: what only the newer one knows waits for it, in every order."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.acting import MakeEngine, Plugin, Scripted, eventually, logged, receipt, receipts, thread
from tests.engine.messages.newer import NewerReceipt
from tests.engine.rules.build_engine import kinds_of
from tests.engine.rules.test_nodes import Serving

from callboard import Engine, SystemClock
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)
HOUR_NS = 3_600 * 10**9
MANY = 20_000


class Build(Serving):
    """A process of one of the two builds."""

    module = "build_engine"

    def ran(self) -> dict[str, tuple[str, str]]:
        """Return the tasks it ran: for each text the added field as it saw it, and the attempts before."""
        return {line[1].replace("_", " "): (line[2], line[3]) for line in list(self.lines) if line[0] == "ran"}


StartBuild = Callable[[str], Build]


@pytest.fixture
def start(callboard_database: str) -> Iterator[StartBuild]:
    started: list[Build] = []

    def start_build(build: str) -> Build:
        started.append(Build(callboard_database, build=build))
        started[-1].wait("serving")
        return started[-1]

    yield start_build
    for build in started:
        build.close()


@pytest.fixture
def host(make_engine: MakeEngine) -> Engine:
    """An engine of this process that executes nothing, to enqueue and look with."""
    return make_engine(clock=SystemClock(), execute=False)


def added(text: str, group: bytes = b"") -> Any:
    """Return a receipt as a newer build writes it."""
    return NewerReceipt(text=text, group_id=group, added=f"with-{text.replace(' ', '-')}")


def enqueue_all_sorts(host: Engine, name: str, count: int = 5) -> None:
    """Enqueue receipts that both builds run, and those and threads that only the newer one does."""
    for number in range(count):
        group = b"group-%d" % (number % 2)
        host.enqueue(receipt(f"plain {name} {number}", group), allow_unknown=True)
        host.enqueue(added(f"added {name} {number}", group), allow_unknown=True)
        host.enqueue(thread(f"thread {name} {number}"), allow_unknown=True)


def of_newer(host: Engine) -> int:
    """Return how many rows are left that only the newer build runs, after checking that nobody touched them."""
    left = [task for task in host.tasks() if b"plain" not in task.data]
    assert {(task.attempts, task.last_error) for task in left} <= {(0, None)}
    return len(left)


@pytest.mark.parametrize("ends", ["stop", "kill"])
@pytest.mark.parametrize(
    "order", [("old", "new"), ("new", "old", "new"), ("old", "old", "new"), ("old", "new", "old")]
)
@pytest.mark.slow
def test_builds_one_after_the_other_lose_nothing(
    start: StartBuild, host: Engine, order: tuple[str, ...], ends: str
) -> None:
    ran: dict[str, dict[str, tuple[str, str]]] = {"old": {}, "new": {}}
    for turn, name in enumerate(order):
        enqueue_all_sorts(host, str(turn))
        build = start(name)
        if name == "old":
            eventually(lambda: {task.state for task in host.tasks()} == {"deferred"})
        else:
            eventually(lambda: not host.tasks())
        getattr(build, ends)()
        ran[name] |= build.ran()

    waiting = 10 if order[-1] == "old" else 0  # of the last turn
    assert of_newer(host) == len(host.tasks()) == waiting
    assert host.dead_tasks() == []
    assert all(text.startswith("plain") for text in ran["old"])
    assert len(ran["old"]) + len(ran["new"]) == 15 * len(order) - waiting
    for text, (field, attempts) in ran["new"].items():
        assert attempts == "0"
        assert field == (f"with-{text.replace(' ', '-')}" if text.startswith("added") else "-")


@pytest.mark.parametrize("order", list(itertools.permutations(["old", "new", "rows"])))
@pytest.mark.slow
def test_builds_side_by_side_lose_nothing(start: StartBuild, host: Engine, order: tuple[str, ...]) -> None:
    host.migrate()
    builds = {}
    for name in order:
        if name == "rows":
            enqueue_all_sorts(host, "first", 30)
        else:
            builds[name] = start(name)
    enqueue_all_sorts(host, "second", 30)

    eventually(lambda: not host.tasks())

    for build in builds.values():
        build.stop()
    assert host.dead_tasks() == []
    old, new = builds["old"].ran(), builds["new"].ran()
    assert all(text.startswith("plain") for text in old)
    assert len(old) + len(new) == 180
    assert {field for text, (field, _) in new.items() if text.startswith("added")} == {
        f"with-added-{name}-{number}" for name in ("first", "second") for number in range(30)
    }
    assert {attempts for _, attempts in (old | new).values()} == {"0"}


@pytest.mark.parametrize("killed", ["old", "new"])
@pytest.mark.slow
def test_a_build_that_is_killed_at_work_leaves_everything_to_the_other(
    start: StartBuild, host: Engine, killed: str
) -> None:
    """The survivor takes over what it knows; what it does not know waits for the next newer build."""
    host.enqueue(receipt("hold") if killed == "old" else added("hold"), allow_unknown=True)
    first = start(killed)
    first.wait("began", "hold")
    survivor = start("new" if killed == "old" else "old")
    enqueue_all_sorts(host, "beside")
    eventually(lambda: len(host.tasks()) == 1)

    first.kill()

    if killed == "old":
        survivor.wait("began", "hold")  # which it knows, too
        return
    enqueue_all_sorts(host, "alone")
    eventually(lambda: of_newer(host) == 11 and {task.state for task in host.tasks()} == {"deferred"})
    [held] = [task for task in host.tasks() if b"hold" in task.data]
    assert held.attempts == 0
    survivor.kill()
    start("new").wait("began", "hold")
    assert host.dead_tasks() == []


@pytest.mark.campaign
@pytest.mark.parametrize("sort", ["thread", "added"])
@pytest.mark.slow
def test_rule_17_an_older_build_that_defers_again_and_again_does_not_starve_the_newer_one(
    start: StartBuild, host: Engine, sort: str
) -> None:
    host.enqueue_many(
        (thread(str(number)) if sort == "thread" else added(str(number)) for number in range(MANY)),
        allow_unknown=True,
    )
    start("old")
    eventually(lambda: len(host.tasks(state="deferred", limit=MANY)) == MANY)

    new = start("new")
    new.wait("ran", count=MANY, seconds=60)

    eventually(lambda: not host.tasks())
    assert {attempts for _, attempts in new.ran().values()} == {"0"}
    assert host.dead_tasks() == []


# In one process, with a clock that the test moves

STEPS = st.lists(
    st.sampled_from(["old", "new", "restart old", "restart new", "enqueue", "ten minutes", "hour"]), max_size=12
)


@given(steps=STEPS)
@settings(max_examples=40)
def test_whatever_the_order_of_builds_the_newer_ones_rows_end_done_and_untouched_by_the_older(
    steps: list[str],
) -> None:
    clock = FakeClock()
    ran: dict[str, list[tuple[str, int]]] = {"old": [], "new": []}
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'callboard.db'}"

        def build(name: str) -> Engine:
            def handle(message: Any, ctx: Any) -> None:
                text = message.receipt.text if hasattr(message, "receipt") else message.text
                ran[name].append((text, ctx.task.attempts))

            return Engine(url, plugins=[Plugin(*kinds_of(name, handle))], clock=clock)

        engines = {"old": build("old"), "new": build("new")}
        expected: set[str] = set()
        for turn, step in enumerate(["enqueue", *steps, "enqueue", "old", "new"]):
            match step.split():
                case ["enqueue"]:
                    enqueue_all_sorts(engines["old"], str(turn), 1)
                    expected |= {f"added {turn} 0", f"thread {turn} 0"}
                case ["restart", name]:
                    engines[name].stop()
                    engines[name] = build(name)
                case ["ten", "minutes"]:
                    clock.advance(timedelta(minutes=10))
                case ["hour"]:
                    clock.advance(HOUR)
                case [name]:
                    engines[name].run_due()
            left = [task for task in engines["old"].tasks() if b"plain" not in task.data]
            done = {text for text, _ in ran["new"]}
            assert len(left) == len(expected - done)
            assert {(task.attempts, task.last_error) for task in left} <= {(0, None)}

        assert expected <= {text for text, attempts in ran["new"] if attempts == 0}
        assert all(text.startswith("plain") for text, _ in ran["old"])
        everything = [text for text, _ in ran["old"] + ran["new"]]
        assert len(everything) == len(set(everything))
        assert engines["new"].tasks() == []
        assert engines["new"].dead_tasks() == []
        for engine in engines.values():
            engine.stop()


# Fields that this build does not know


def test_a_payload_with_unknown_fields_runs_without_them_unless_its_kind_says_otherwise(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())))
    engine.enqueue(added("read"))

    engine.run_due()

    assert sent.played == ["read"]


def test_a_payload_with_unknown_fields_is_deferred_where_its_kind_says_so(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted(), on_unknown_fields="defer")))
    engine.enqueue(added("read"))
    engine.enqueue(receipt("plain"))
    [before, _] = engine.tasks()

    with logged("WARNING") as log:
        engine.run_due()

    assert sent.played == ["plain"]
    deferred_until_ns = callboard_clock.now_ns() + HOUR_NS
    assert engine.tasks() == [before._replace(state="deferred", next_attempt_at_ns=deferred_until_ns)]
    [line] = log
    assert "their payloads are a newer build's" in line
    callboard_clock.advance(HOUR)
    with logged("WARNING") as log:
        engine.run_due()
    assert len(log) == 1
    assert engine.tasks()[0].next_attempt_at_ns == deferred_until_ns + HOUR_NS


def test_a_node_forgets_rows_of_newer_builds_that_others_have_run(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    with make_engine(Plugin(*kinds_of("old", Scripted()))) as old:
        old.enqueue(added("read"))
        eventually(lambda: old.tasks(state="deferred"))
        make_engine(Plugin(*kinds_of("new", lambda message, ctx: None))).run_due()
        assert old.tasks() == []
        runtime = old._core.running
        assert runtime is not None
        memory = runtime.scheduler._memory
        assert len(memory.undecodable) == 1

        another = old.enqueue(added("another")).task_id
        eventually(lambda: old.tasks(state="deferred"))
        callboard_clock.advance(HOUR)

        eventually(lambda: set(memory.undecodable) == {another})


def test_a_follow_up_keeps_the_fields_that_the_handlers_build_does_not_know(make_engine: MakeEngine) -> None:
    """A message that an older build hands on is the one it was given."""
    received = []

    def hand_on(message: Any, ctx: Any) -> None:
        if not message.text.startswith("again"):
            message.text = f"again {message.text}"
            ctx.enqueue(message)
        else:
            received.append(NewerReceipt.FromString(message.SerializeToString()).added)

    engine = make_engine(Plugin(receipts(hand_on)))
    engine.enqueue(added("read"))

    engine.run_due()

    assert received == ["with-read"]
