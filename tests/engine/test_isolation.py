"""One plugin's limit, failures or slowness is nobody else's: limited and paused kinds beside healthy ones."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    receipt,
    receipts,
    text_of,
    thread,
    threads,
)
from tests.engine.either_store import callboard_database
from tests.engine.messages import ReceiptThread, SendReceipt
from tests.engine.rows import sql
from tests.engine.test_cli.invoking import callboard

from callboard import Engine, RetryPolicy, ServiceUnavailable, Task, TaskContext
from callboard.testing import FakeClock

__all__ = ["callboard_database"]

THREAD = "acme.receipts.ReceiptThread"
FIRST_PAUSE = timedelta(seconds=5)


class Counted:
    """A handler that counts how many of its runs overlap, and stays until the test lets it go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self.most = 0
        self.through = Blocking()

    def __call__(self, message: SendReceipt | ReceiptThread, ctx: TaskContext) -> Any:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        try:
            return self.through(message, ctx)
        finally:
            with self._lock:
                self._running -= 1


class Failing:
    """A handler that fails until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.begun: list[str] = []

    def __call__(self, message: SendReceipt | ReceiptThread, ctx: TaskContext) -> None:
        self.begun.append(text_of(message))
        if not self.mended:
            raise ZeroDivisionError("oops")


def untouched(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that nobody has claimed so far."""
    return [task for task in tasks if task.token == 0]


def fill(engine: Engine, count: int, group: Callable[[int], bytes] = lambda number: b"") -> None:
    engine.enqueue_many([receipt(str(number), group(number)) for number in range(count)])


# Limited kinds


@pytest.mark.parametrize("group", [lambda number: b"", lambda number: b"%d" % number], ids=["loose", "grouped"])
def test_no_more_tasks_of_a_limited_kind_run_at_once_than_it_says(
    make_engine: MakeEngine, group: Callable[[int], bytes]
) -> None:
    limited = Counted()
    other = Blocking()
    with make_engine(Plugin(receipts(limited, concurrency=2), threads(other))) as engine:
        fill(engine, 20, group)
        limited.through.wait_count(2)
        engine.enqueue(thread("other"))
        other.wait_begun("other")  # while the limited kind is full

        assert len(untouched(engine.tasks(kind=RECEIPT))) == 18, "what cannot run is not claimed"
        limited.through.let_go("0")
        limited.through.wait_count(3)
        limited.through.let_go()
        other.let_go()
        assert engine.wait_idle(WAIT_S)
    assert limited.most == 2
    assert len(limited.through.begun) == 20


def test_a_full_kind_is_not_claimed_and_handed_back_again_and_again(make_engine: MakeEngine) -> None:
    limited, other = Blocking(), Blocking()
    with make_engine(Plugin(receipts(limited, concurrency=1), threads(other))) as engine:
        fill(engine, 5)
        limited.wait_count(1)
        other.let_go()
        for number in range(5):  # each of them makes the scheduler claim
            task_id = engine.enqueue(thread(str(number))).task_id
            eventually(lambda task_id=task_id: engine.task(task_id) is None)  # type: ignore[misc]

        assert [task.token for task in engine.tasks(kind=RECEIPT)] == [1, 0, 0, 0, 0]
        limited.let_go()
        assert engine.wait_idle(WAIT_S)


def test_a_task_of_a_limited_kind_that_waits_for_its_group_keeps_no_place(make_engine: MakeEngine) -> None:
    """A slow group does not delay another one (rule 7), nor does its limited task starve behind its others."""
    limited, slow = Blocking(), Blocking()
    limited.let_go("other")
    with make_engine(Plugin(receipts(limited, concurrency=1), threads(slow))) as engine:
        engine.enqueue(thread("slow", b"a"))
        slow.wait_begun("slow")
        engine.enqueue(receipt("behind it", b"a"))
        engine.enqueue(receipt("other", b"b"))
        limited.wait_begun("other")
        engine.enqueue_many([thread(f"later {number}", b"a") for number in range(100)])
        assert "behind it" not in limited.begun

        slow.let_go("slow")
        limited.wait_begun("behind it")
        assert slow.begun == ["slow"], "it is the earliest of its group"
        limited.let_go()
        slow.let_go()
        assert engine.wait_idle(WAIT_S)
    assert len(slow.begun) == 101


def test_the_backlog_of_one_group_does_not_keep_a_limited_kind_from_others(make_engine: MakeEngine) -> None:
    limited = Blocking()
    limited.let_go("other")
    with make_engine(Plugin(receipts(limited, concurrency=2))) as engine:
        fill(engine, 1_000, lambda number: b"a")
        limited.wait_count(1)
        engine.enqueue(receipt("other", b"b"))
        limited.wait_begun("other")
        limited.let_go()
        assert engine.wait_idle(WAIT_S)
    assert len(limited.begun) == 1_001


def test_groups_of_a_limited_kind_take_turns(make_engine: MakeEngine) -> None:
    order: list[str] = []
    engine = make_engine(Plugin(receipts(lambda message, ctx: order.append(message.text), concurrency=1)))
    engine.enqueue_many([receipt(f"a{number}", b"a") for number in range(101)])
    engine.enqueue(receipt("b", b"b"))
    assert engine.run_due() == 102
    assert order[-1] == "b", "the earliest due comes first, and none is left out"
    assert len(set(order)) == 102


def test_a_limit_holds_in_run_due_and_nothing_is_left(make_engine: MakeEngine) -> None:
    limited = Scripted()
    engine = make_engine(Plugin(receipts(limited, concurrency=3)))
    fill(engine, 50, lambda number: b"%d" % (number % 7) if number % 2 else b"")

    assert engine.run_due() == 50
    assert engine.tasks() == []


def test_coroutines_of_a_limited_kind_are_no_more_than_it_says(make_engine: MakeEngine) -> None:
    running: Counter[str] = Counter()
    most: list[int] = []

    async def work(message: SendReceipt, ctx: TaskContext) -> None:
        running["now"] += 1
        most.append(running["now"])
        await asyncio.sleep(0)
        running["now"] -= 1

    with make_engine(Plugin(receipts(work, concurrency=3))) as engine:
        fill(engine, 100, lambda number: b"%d" % (number % 5) if number % 2 else b"")
        assert engine.wait_idle(WAIT_S)
    assert len(most) == 100
    assert max(most) <= 3


def test_slow_handlers_of_a_limited_plugin_leave_workers_to_others(make_engine: MakeEngine) -> None:
    slow, quick = Blocking(), Scripted()
    plugins = [Plugin(receipts(slow, concurrency=1), name="slow"), Plugin(threads(quick), name="quick")]
    with make_engine(*plugins, workers=2) as engine:
        fill(engine, 10)
        slow.wait_count(1)
        engine.enqueue_many([thread(str(number)) for number in range(10)])
        eventually(lambda: len(quick.played) == 10)
        assert len(slow.begun) == 1
        slow.let_go()
        assert engine.wait_idle(WAIT_S)


def test_a_task_that_expired_dies_though_its_limited_kind_has_no_place_for_many(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    limited = Scripted()
    engine = make_engine(Plugin(receipts(limited, concurrency=1)))
    for number in range(100):
        engine.enqueue(receipt(str(number)), expires_after=timedelta(hours=1))
    callboard_clock.advance(timedelta(hours=2))

    assert engine.run_due() == 0
    assert [dead.reason for dead in engine.dead_tasks()] == ["expired"] * 100


def test_a_task_that_must_run_alone_does_so_in_a_limited_kind(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    limited = Scripted()
    engine = make_engine(Plugin(receipts(limited, concurrency=1), threads(Scripted())))
    fill(engine, 3)
    engine.enqueue(thread("other"))
    sql(callboard_database, "UPDATE callboard_task SET alone = 1 WHERE kind = ?", RECEIPT)

    assert engine.run_due() == 4


# A kind that fails for everybody


def paused_engine(make_engine: MakeEngine, *others: Any, **options: Any) -> tuple[Engine, Failing]:
    """Return an engine on which 30 tasks of one kind wait, of which 20 have failed."""
    failing = Failing()
    engine = make_engine(Plugin(receipts(failing, **options), name="bad"), *others, workers=1)
    fill(engine, 30)
    engine.start()
    assert engine.wait_idle(WAIT_S)
    return engine, failing


def test_a_kind_that_fails_for_everybody_is_paused_and_costs_no_more_attempts(make_engine: MakeEngine) -> None:
    quick = Scripted()
    with logged("WARNING") as log:
        engine, failing = paused_engine(make_engine, Plugin(threads(quick), name="good"))

        assert len(failing.begun) == 20
        tasks = engine.tasks(kind=RECEIPT)
        assert sorted(task.attempts for task in tasks) == [0] * 10 + [1] * 20
        assert {task.state for task in tasks} == {"pending"}
        [paused] = engine.health().paused
        assert (paused.kind, paused.failed, paused.trial) == (RECEIPT, 20, None)
        assert paused.resumes_in_ns == FIRST_PAUSE // timedelta(microseconds=1) * 1_000
        assert "ZeroDivisionError: oops" in paused.last_error

        engine.enqueue(thread("other"))
        assert engine.wait_idle(WAIT_S), "what is paused is not due for this node"
        assert quick.played == ["other"]
        assert len(failing.begun) == 20
    [line] = [str(each) for each in log if "paused" in each]
    assert line.startswith(f"ERROR kind {RECEIPT} is paused: 20 different groups or tasks failed in a row")
    assert "ZeroDivisionError" in line


def test_a_paused_kind_is_tried_with_one_task_and_resumed_by_its_success(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine, failing = paused_engine(make_engine)

    callboard_clock.advance(FIRST_PAUSE)
    eventually(lambda: len(failing.begun) == 21)
    assert engine.wait_idle(WAIT_S)
    assert len(failing.begun) == 21, "one"
    failing.mended = True
    callboard_clock.advance(FIRST_PAUSE)
    assert engine.wait_idle(WAIT_S)
    assert len(failing.begun) == 21, "the second pause is longer"

    callboard_clock.advance(timedelta(minutes=2))  # all backoffs are over as well
    eventually(lambda: not engine.tasks())
    assert engine.health().paused == []
    assert engine.dead_tasks() == []


def test_a_coroutine_that_fails_for_everybody_is_paused_and_resumed(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    async def handle(message: SendReceipt, ctx: TaskContext) -> None:
        failing(message, ctx)

    failing = Failing()
    with make_engine(Plugin(receipts(handle, concurrency=1))) as engine:
        fill(engine, 30)
        assert engine.wait_idle(WAIT_S)
        assert len(failing.begun) == 20
        failing.mended = True
        callboard_clock.advance(timedelta(minutes=2))
        eventually(lambda: not engine.tasks())


def test_one_poison_task_pauses_nothing(make_engine: MakeEngine, callboard_clock: FakeClock) -> None:
    retry = RetryPolicy(initial=timedelta(0), max_attempts=3)
    failing = Failing()
    engine = make_engine(Plugin(receipts(failing, retry=retry)))
    engine.enqueue(receipt("poison"))
    engine.enqueue_many([receipt(f"of one group {number}", b"g") for number in range(25)])

    assert engine.run_due() == 26 * 3
    assert {dead.reason for dead in engine.dead_tasks()} == {"exhausted"}


def test_an_outage_pauses_nothing(make_engine: MakeEngine) -> None:
    away = Scripted(ServiceUnavailable("away"))
    engine = make_engine(Plugin(receipts(away)))
    fill(engine, 25)

    assert engine.run_due() == 25
    assert {(task.attempts, task.outages) for task in engine.tasks()} == {(0, 1)}


def test_other_tasks_of_the_groups_of_a_paused_kind_go_on(make_engine: MakeEngine) -> None:
    """Also where hundreds of the paused kind had fallen behind in their group, before those of the other kind."""
    failing, quick = Failing(), Scripted()
    engine = make_engine(Plugin(receipts(failing)), Plugin(threads(quick)))
    fill(engine, 300, lambda number: b"a")
    engine.enqueue_many([receipt(f"in {number}", b"g%d" % number) for number in range(25)])
    engine.enqueue_many([thread(str(number), b"a") for number in range(50)])
    engine.run_due()

    assert len(quick.played) == 50
    attempts = Counter(task.attempts for task in engine.tasks(kind=RECEIPT))
    assert attempts[0] >= 250
    assert sum(attempts.values()) == 325


def test_a_task_that_expires_while_its_kind_is_paused_dies_when_it_is_claimed_next(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine, failing = paused_engine(make_engine, retry=RetryPolicy(expires_after=timedelta(seconds=4)))
    callboard_clock.advance(FIRST_PAUSE - timedelta(milliseconds=1))
    assert engine.wait_idle(WAIT_S)
    assert engine.dead_tasks() == []

    callboard_clock.advance(timedelta(milliseconds=1))
    eventually(lambda: len(engine.dead_tasks()) == 30)
    assert {dead.reason for dead in engine.dead_tasks()} == {"expired"}
    assert len(failing.begun) == 20


def test_a_task_of_a_paused_kind_that_must_run_alone_holds_nobody_up(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    slow = Blocking()
    engine, failing = paused_engine(make_engine, Plugin(threads(slow), name="good"))
    sql(
        callboard_database,
        "UPDATE callboard_task SET alone = 1 WHERE kind = ? AND attempts = 0",
        RECEIPT,
    )
    engine.enqueue(thread("slow"))
    slow.wait_begun("slow")
    slow.let_go()
    engine.enqueue_many([thread(str(number)) for number in range(10)])
    assert engine.wait_idle(WAIT_S)
    assert len(slow.begun) == 11

    failing.mended = True
    callboard_clock.advance(timedelta(minutes=2))
    eventually(lambda: not engine.tasks())


def test_a_kind_that_never_pauses_goes_on_failing(make_engine: MakeEngine) -> None:
    failing = Failing()
    engine = make_engine(Plugin(receipts(failing, pause_after=None)))
    fill(engine, 300)

    assert engine.run_due() == 300


def test_doctor_names_a_paused_kind_and_forgets_it_when_it_goes_on(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    engine, failing = paused_engine(make_engine)

    shown = callboard("doctor", callboard_database)
    assert shown.exit_code == 3
    flat = " ".join(shown.output.replace("│", " ").split())
    assert f"kind {RECEIPT} is paused on node" in flat
    assert "when it succeeds the kind goes on by itself" in flat
    nodes = callboard("doctor", callboard_database, "--json").output
    assert f'"paused": ["{RECEIPT}"]' in " ".join(nodes.split()).replace("[ ", "[").replace(" ]", "]")

    failing.mended = True
    callboard_clock.advance(timedelta(minutes=2))
    eventually(lambda: not engine.tasks())
    assert engine.wait_idle(WAIT_S)
    assert "is paused" not in callboard("doctor", callboard_database).output


@pytest.mark.parametrize("pause_after", [1, 20])
def test_a_pause_outlives_no_engine(make_engine: MakeEngine, pause_after: int) -> None:
    failing = Failing()
    fill(first := make_engine(Plugin(receipts(failing, pause_after=pause_after)), workers=1), 30)
    first.run_due()
    assert len(failing.begun) == pause_after
    failing.mended = True

    assert make_engine(Plugin(receipts(failing))).run_due() == 30 - pause_after


def test_a_stop_does_not_wait_for_a_pause(make_engine: MakeEngine) -> None:
    engine, failing = paused_engine(make_engine)

    assert engine.stop(timeout=5)
    assert len(failing.begun) == 20
