"""Rule 7: tasks of one group never overlap, and no group waits for another."""

import asyncio
import threading
from collections import defaultdict
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
    pass_by,
    receipt,
    receipts,
    thread,
    threads,
)

from callboard import Defer, RescheduleAt, ServiceUnavailable, TaskState
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)


class Occupancy:
    """Who is in which group, and who met somebody there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[bytes, int] = defaultdict(int)
        self.met: list[str] = []
        self.seen: dict[bytes, list[str]] = defaultdict(list)

    def enter(self, message: Any) -> None:
        with self._lock:
            self._inside[message.group_id] += 1
            if self._inside[message.group_id] > 1:
                self.met.append(message.text)
            self.seen[message.group_id].append(message.text)

    def leave(self, message: Any) -> None:
        with self._lock:
            self._inside[message.group_id] -= 1


def test_rule_07_tasks_of_one_group_never_overlap(make_engine: MakeEngine) -> None:
    """Neither blocking ones, nor coroutines, nor one of each."""
    occupancy = Occupancy()
    yield_thread = threading.Event()

    def blocking(message: Any, ctx: Any) -> None:
        occupancy.enter(message)
        yield_thread.wait(0.0001)
        occupancy.leave(message)

    async def coroutine(message: Any, ctx: Any) -> None:
        occupancy.enter(message.receipt)
        await asyncio.sleep(0)
        occupancy.leave(message.receipt)

    engine = make_engine(Plugin(receipts(blocking), threads(coroutine)), workers=8)
    groups = [b"group %d" % number for number in range(10)]
    texts = [str(number) for number in range(20)]
    engine.enqueue_many([make(text, group) for text in texts for group in groups for make in (receipt, thread)])

    with engine:
        assert engine.wait_idle(WAIT_S)

    assert occupancy.met == []
    assert {group: sorted(seen) for group, seen in occupancy.seen.items()} == dict.fromkeys(
        groups, sorted(texts * 2)
    )


def test_rule_07_a_groups_next_task_begins_only_when_the_one_before_has_ended(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    for text in ("first", "second", "third"):
        engine.enqueue(receipt(text, b"group"))

    handler.wait_begun("first")
    pass_by(engine, handler, "passer-by")
    assert [text for text in handler.begun if text != "passer-by"] == ["first"]

    handler.let_go("first")
    handler.wait_begun("second")
    pass_by(engine, handler, "another")
    assert "third" not in handler.begun
    handler.let_go()


def test_rule_07_tasks_of_different_groups_run_concurrently(make_engine: MakeEngine) -> None:
    together = threading.Barrier(8)

    def meet(message: Any, ctx: Any) -> None:
        together.wait(WAIT_S)

    engine = make_engine(Plugin(receipts(meet)), workers=8)
    engine.enqueue_many([receipt("meet", b"group %d" % number) for number in range(8)])

    with engine:
        assert engine.wait_idle(WAIT_S)
        assert engine.health().counters["done"] == 8

    assert not together.broken


def test_rule_07_tasks_without_a_group_run_concurrently(make_engine: MakeEngine) -> None:
    together = threading.Barrier(8)

    def meet(message: Any, ctx: Any) -> None:
        together.wait(WAIT_S)

    engine = make_engine(Plugin(receipts(meet)), workers=8)
    engine.enqueue_many([receipt(f"meet {number}") for number in range(8)])

    with engine:
        assert engine.wait_idle(WAIT_S)
        assert engine.health().counters["done"] == 8

    assert not together.broken


def test_rule_07_slow_groups_do_not_delay_another_as_long_as_a_worker_is_free(make_engine: MakeEngine) -> None:
    slow, quick = Blocking(), Scripted()
    engine = make_engine(Plugin(receipts(slow), threads(quick)), workers=4)
    engine.start()
    engine.enqueue_many([receipt(f"slow {number}", b"slow %d" % number) for number in range(3)])
    slow.wait_begun("slow 0", "slow 1", "slow 2")

    engine.enqueue_many([thread(str(number), b"quick %d" % (number % 5)) for number in range(100)])

    eventually(lambda: engine.health().counters["done"] == 100)
    assert len(slow.begun) == 3
    slow.let_go()


def test_rule_07_up_to_workers_handlers_block_at_once_and_no_more(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), workers=3)
    engine.start()
    engine.enqueue_many([receipt(str(number), b"group %d" % number) for number in range(6)])

    handler.wait_count(3)
    assert engine.health().threads == 3
    first = list(handler.begun)
    handler.let_go(first[0])
    handler.wait_count(4)
    assert engine.health().threads == 3
    assert len(handler.begun) == 4
    handler.let_go()
    assert engine.wait_idle(WAIT_S)


@pytest.mark.parametrize("workers", [1, 4])
def test_rule_07_ten_times_more_groups_than_workers_all_get_their_turn(
    workers: int, make_engine: MakeEngine
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), workers=workers)
    engine.start()
    count = 10 * workers
    engine.enqueue_many([receipt(f"{number}", b"group %d" % number) for number in range(count)])

    for ended in range(count - workers + 1):
        handler.wait_count(workers + ended)
        handler.let_go(handler.begun[ended])
    handler.let_go()

    assert engine.wait_idle(WAIT_S)
    assert sorted(handler.begun) == sorted(str(number) for number in range(count))


@pytest.mark.parametrize("error", [ValueError("no"), ServiceUnavailable("away"), SystemExit("no")])
def test_rule_07_a_failing_group_delays_no_other_and_not_its_own_due_tasks(
    error: BaseException, make_engine: MakeEngine
) -> None:
    done: list[str] = []

    def handler(message: Any, ctx: Any) -> None:
        if message.text == "bad":
            raise error
        done.append(message.text)

    engine = make_engine(Plugin(receipts(handler)))
    for text in ("bad", "good"):
        engine.enqueue_many([receipt(text, b"group %d" % number) for number in range(3)])
    with engine:
        assert engine.wait_idle(WAIT_S)
        left = engine.tasks()

    assert done == ["good"] * 3
    assert len(left) == 3
    assert all("bad" in str(task.data) and task.state == TaskState.PENDING for task in left)


@pytest.mark.parametrize("line", [Defer(HOUR), RescheduleAt(HOUR)])
def test_rule_07_a_delayed_task_never_blocks_the_due_ones_of_its_group(line: Any, make_engine: MakeEngine) -> None:
    handler = Scripted(line, None)
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("enqueued for later", b"group"), not_before=HOUR)
    engine.enqueue(receipt("put off by itself", b"group"))
    engine.run_due()

    engine.enqueue(receipt("due", b"group"))
    engine.run_due()

    assert handler.played == ["put off by itself", "due"]


def test_rule_07_a_task_that_falls_due_is_not_overtaken_for_ever_by_its_group(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("delayed", b"group"), not_before=HOUR)
    engine.enqueue_many([receipt(str(number), b"group") for number in range(100)])
    handler.wait_count(1)

    callboard_clock.advance(HOUR)
    handler.let_go()

    assert engine.wait_idle(WAIT_S)
    assert len(handler.begun) == 101


def test_rule_07_a_group_with_two_thousand_due_rows_starves_nobody(make_engine: MakeEngine) -> None:
    crowd, others = Blocking(), Scripted()
    engine = make_engine(Plugin(receipts(crowd), threads(others)), workers=2)
    engine.enqueue_many([receipt(str(number), b"crowd") for number in range(2_000)])
    engine.start()
    crowd.wait_count(1)

    engine.enqueue_many([thread("other", b"other"), thread("none")])

    eventually(lambda: engine.health().counters["done"] == 2)
    assert len(crowd.begun) == 1
    crowd.let_go()
    assert engine.wait_idle(WAIT_S)
    assert sorted(map(int, crowd.begun)) == list(range(2_000))


def test_rule_07_the_same_kind_is_not_starved_by_a_group_either(make_engine: MakeEngine) -> None:
    """All rows are of one kind, so they are behind one another in the index that claims read."""
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), workers=2)
    engine.enqueue_many([receipt(str(number), b"crowd") for number in range(2_000)])
    engine.enqueue(receipt("other", b"other"))
    engine.start()

    handler.wait_begun("other")

    assert len(handler.begun) == 2
    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert len(handler.begun) == 2_001


def test_rule_07_the_token_is_checked_before_each_start(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's rows are claimed ahead; one that another engine cancels meanwhile never starts."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("first", b"group"))
    cancelled = engine.enqueue(receipt("second", b"group")).task_id
    engine.enqueue(receipt("third", b"group"))
    handler.wait_begun("first")
    eventually(lambda: all(task.state == TaskState.RUNNING for task in engine.tasks()))

    assert cancelled is not None
    with make_engine(Plugin(receipts(handler)), execute=False) as web:
        web.cancel(cancelled)
        handler.let_go("passer-by")
        passer_by = web.enqueue(receipt("passer-by")).task_id
        assert passer_by is not None
        eventually(lambda: web.task(passer_by) is None)
    handler.let_go()

    assert engine.wait_idle(WAIT_S)
    assert sorted(handler.begun) == ["first", "passer-by", "third"]


def test_rule_07_a_run_that_lost_its_row_is_told_and_its_writes_are_refused(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    handler = Blocking(RescheduleAt(HOUR))
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    task_id = engine.enqueue(receipt("hello", b"group")).task_id
    handler.wait_begun("hello")
    assert not handler.contexts["hello"].cancelled

    assert task_id is not None
    with make_engine(execute=False) as web:
        web.cancel(task_id)

    eventually(lambda: handler.contexts["hello"].cancelled)
    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert engine.tasks() == []
