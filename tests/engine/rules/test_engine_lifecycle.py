"""Rules 21 and 22: start, stop, fork and cancel."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from tests.engine.rows import path_of, sql

from callboard import DeadReason, Engine, EngineStateError, RescheduleAt, TaskState
from callboard._engine import DEFAULT_LEASE
from callboard._task import EnqueueStatus
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)

# Rule 21

CALLS: dict[str, Callable[[Engine], Any]] = {
    "start": lambda engine: engine.start(),
    "migrate": lambda engine: engine.migrate(),
    "run_due": lambda engine: engine.run_due(),
    "wait_idle": lambda engine: engine.wait_idle(0),
    "enqueue": lambda engine: engine.enqueue(receipt("hello")),
    "enqueue_many": lambda engine: engine.enqueue_many([receipt("hello")]),
    "aenqueue": lambda engine: asyncio.run(engine.aenqueue(receipt("hello"))),
    "transaction": lambda engine: engine.transaction().__enter__(),
    "pull_in": lambda engine: engine.pull_in(receipt("hello"), not_later_than_ns=0),
    "cancel": lambda engine: engine.cancel(1),
    "retry_dead": lambda engine: engine.retry_dead(1),
    "publish": lambda engine: engine.publish("event"),
    "tasks": lambda engine: engine.tasks(),
    "task": lambda engine: engine.task(1),
    "dead_tasks": lambda engine: engine.dead_tasks(),
    "groups": lambda engine: list(engine.groups()),
    "group.created": lambda engine: engine.group(b"group").created("alice"),
    "group.membership_changed": lambda engine: engine.group(b"group").membership_changed(added=["bob"]),
    "group.leave_requested": lambda engine: engine.group(b"group").leave_requested("bob", b"message"),
    "group.leave_settled": lambda engine: engine.group(b"group").leave_settled(["bob"]),
    "group.consent": lambda engine: engine.group(b"group").consent("denied"),
    "group.active": lambda engine: engine.group(b"group").active(),
    "group.state": lambda engine: engine.group(b"group").state(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_rule_21_after_stop_every_call_raises(call: Callable[[Engine], Any], make_engine: MakeEngine) -> None:
    with make_engine(Plugin(receipts(Scripted()))) as engine:
        pass

    with pytest.raises(EngineStateError, match=r"has been stopped|started engine"):
        call(engine)


def test_rule_21_an_engine_that_stopped_still_tells_its_health(make_engine: MakeEngine) -> None:
    with make_engine() as engine:
        assert engine.health().state == "running"

    assert engine.health().state == "stopped"


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"wait_idle", "start"}))
def test_rule_21_nothing_but_wait_idle_needs_a_start(name: str, make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    CALLS[name](engine)

    assert engine.health().state == "unstarted"
    assert engine.health().threads == 0


def test_rule_21_plugins_load_on_first_use(make_engine: MakeEngine) -> None:
    made: list[Plugin] = []

    def acme() -> Plugin:
        made.append(Plugin(receipts(Scripted())))
        return made[0]

    engine = make_engine(acme)
    assert made == []

    engine.enqueue(receipt("hello"))
    engine.tasks()
    engine.run_due()

    assert len(made) == 1


def test_rule_21_an_engine_that_does_not_execute_enqueues_and_lists_but_runs_nothing(
    make_engine: MakeEngine,
) -> None:
    handler = Scripted()
    called: list[str] = []
    plugin = Plugin(
        receipts(handler),
        startup=lambda engine: called.append("startup"),
        reconcile=lambda engine, reason: called.append(reason),
    )
    with make_engine(plugin, execute=False) as engine:
        engine.enqueue(receipt("hello"))
        with pytest.raises(EngineStateError):
            engine.run_due()
        with pytest.raises(EngineStateError):
            engine.wait_idle(0)
        assert engine.health().threads == 0
        assert [task.state for task in engine.tasks()] == [TaskState.PENDING]

    assert (handler.played, called) == ([], [])


def test_rule_21_an_engine_that_does_not_execute_goes_beside_one_that_does(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()

    with make_engine(Plugin(receipts(handler)), execute=False) as web:
        web.enqueue(receipt("hello"))
        handler.wait_begun("hello")

    handler.let_go()
    assert engine.wait_idle(WAIT_S)


def test_rule_21_several_engines_execute_one_file_and_one_goes_on_when_another_stops(
    make_engine: MakeEngine,
) -> None:
    handler = Blocking()
    plugin = Plugin(receipts(handler))
    with make_engine(plugin) as second:
        with make_engine(plugin) as first:
            first.enqueue(receipt("hello"))
            handler.wait_begun("hello")
            handler.let_go("hello")
            assert first.wait_idle(WAIT_S)
        second.enqueue(receipt("after"))
        handler.wait_begun("after")
        handler.let_go()
        assert second.wait_idle(WAIT_S)

    assert handler.begun == ["hello", "after"]


def test_rule_21_starting_twice_does_no_harm(make_engine: MakeEngine) -> None:
    startups: list[Engine] = []
    engine = make_engine(Plugin(startup=lambda engine: startups.append(engine)))

    with ThreadPoolExecutor(4) as pool:
        for start in [pool.submit(engine.start) for _ in range(4)]:
            start.result(WAIT_S)
    with engine:
        assert engine.wait_idle(WAIT_S)

    assert startups == [engine]


def test_rule_21_stopping_twice_or_before_the_start_does_no_harm(make_engine: MakeEngine) -> None:
    unstarted, started = make_engine(), make_engine()
    with make_engine(execute=False) as passive:
        pass
    started.start()

    for engine in (unstarted, started, passive):
        assert engine.stop() is True
        assert engine.stop() is True
        assert engine.health().state == "stopped"


def test_rule_21_a_start_that_failed_can_be_tried_again(make_engine: MakeEngine, callboard_database: str) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    with open(path_of(callboard_database), "wb") as file:
        file.write(b"not a database" * 100)
    with pytest.raises(Exception, match="not an SQLite database"):
        engine.start()

    os.remove(path_of(callboard_database))
    with engine:
        engine.enqueue(receipt("hello"))
        assert engine.wait_idle(WAIT_S)
        assert engine.tasks() == []


def test_rule_21_stop_waits_for_running_tasks_and_hands_unstarted_ones_back(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), workers=2)
    engine.start()
    for text in ("one", "two", "three"):
        engine.enqueue(receipt(text, b"group"))
    handler.wait_begun("one")
    eventually(lambda: {task.state for task in engine.tasks()} == {TaskState.RUNNING})

    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(engine.stop, timeout=WAIT_S)
        eventually(lambda: engine.health().state == "stopping")
        handler.let_go()
        assert stopping.result(WAIT_S) is True

    assert handler.begun == ["one"]
    rows = sql(callboard_database, "SELECT state, attempts, owner FROM callboard_task")
    assert rows == [(TaskState.PENDING, 0, None)] * 2
    with make_engine(Plugin(receipts(handler))) as following:
        assert following.wait_idle(WAIT_S)
        assert (following.tasks(), following.dead_tasks()) == ([], [])
    assert sorted(handler.begun) == ["one", "three", "two"]


def test_rule_21_leaving_the_with_block_drains(make_engine: MakeEngine, callboard_database: str) -> None:
    handler = Blocking(RescheduleAt(HOUR))
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("hello"))
        handler.wait_begun("hello")
        threading.Timer(0.05, handler.let_go).start()

    assert sql(callboard_database, "SELECT state FROM callboard_task") == [(TaskState.PENDING,)]


def test_rule_21_stop_claims_nothing_more(make_engine: MakeEngine, callboard_database: str) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("running"))
    handler.wait_begun("running")
    with make_engine(Plugin(receipts(handler)), execute=False) as web, ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(engine.stop, timeout=WAIT_S)
        eventually(lambda: engine.health().state == "stopping")
        web.enqueue(receipt("too late"))
        handler.let_go()
        assert stopping.result(WAIT_S)

    assert handler.begun == ["running"]
    assert len(sql(callboard_database, "SELECT * FROM callboard_task")) == 1


def test_rule_21_run_due_runs_nothing_of_an_engine_that_is_being_stopped(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), workers=1)
    engine.start()
    engine.enqueue(receipt("running"))
    handler.wait_begun("running")
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(engine.stop, timeout=WAIT_S)
        eventually(lambda: engine.health().state == "stopping")
        with pytest.raises(EngineStateError, match="not started"):
            engine.run_due()
        handler.let_go()
        assert stopping.result(WAIT_S)


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_rule_21_a_handler_that_outlives_the_deadline_keeps_its_row(
    timeout: Any, make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    """Until its lease is over, although its engine has stopped: the handler is still at work."""
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("stubborn", b"group"))
    engine.enqueue(receipt("unstarted", b"group"))
    handler.wait_begun("stubborn")
    eventually(lambda: {task.state for task in engine.tasks()} == {TaskState.RUNNING})

    assert engine.stop(timeout) is False

    assert handler.contexts["stubborn"].cancelled
    rows = "SELECT state, attempts FROM callboard_task ORDER BY id"
    assert sql(callboard_database, rows) == [(TaskState.RUNNING, 0), (TaskState.PENDING, 0)]
    following = Blocking()
    with make_engine(Plugin(receipts(following))) as other:
        pass_by(other, following, "passer-by")
        assert following.begun == ["passer-by"]  # the handler still runs, so its row and its group are taken
        callboard_clock.advance(DEFAULT_LEASE + timedelta(seconds=1))
        following.let_go()
        following.wait_begun("stubborn", "unstarted")
        assert other.wait_idle(WAIT_S)
    handler.let_go()


def test_rule_21_stop_does_not_wait_for_a_coroutine_that_ignores_its_cancellation(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def stubborn(message: Any, ctx: Any) -> None:
        begun.set()
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    engine = make_engine(Plugin(receipts(stubborn)))
    engine.start()
    engine.enqueue(receipt("stubborn"))
    assert begun.wait(WAIT_S)

    assert engine.stop(timeout=0) is False

    assert sql(callboard_database, "SELECT state, attempts FROM callboard_task") == [(TaskState.RUNNING, 0)]
    go_on.set()


SCRIPT = """
import json, os, sys, threading
import callboard
from callboard import Engine, TaskKind, hookimpl
from tests.engine.messages import SendReceipt

ran, changed = [], threading.Condition()

class Acme:
    @hookimpl
    def callboard_task_kinds(self):
        return [TaskKind(SendReceipt, self.handle)]

    def handle(self, message, ctx):
        with changed:
            ran.append([message.text, os.getpid() == parent])
            changed.notify_all()

parent = os.getpid()
engine = Engine("sqlite:///" + sys.argv[1], plugins=[Acme()])

def in_child(act):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = act()
        except BaseException as error:
            answer = repr(error)
        os.write(write, json.dumps(answer).encode())
        os._exit(0) if sys.argv[2] == "abruptly" else sys.exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = json.load(pipe)
    os.waitpid(pid, 0)
    return answer

def wait_ran(*texts):
    with changed:
        assert changed.wait_for(lambda: {text for text, _ in ran} >= set(texts), 20), ran
"""


def run_script(body: str, path: str, ending: str = "abruptly") -> Any:
    script = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT + body, path, ending],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=os.getcwd(),
    )
    assert script.stderr == ""
    return json.loads(script.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("ending", ["abruptly", "normally"])
def test_rule_21_a_forked_child_is_unstarted_and_leaves_the_parents_connections_alone(
    ending: str, callboard_database: str
) -> None:
    """It is a node of its own on connections of its own, and its end changes nothing for the parent."""
    body = """
def child():
    state = engine.health().state
    ran_here = engine.run_due()
    return [state, ran_here, engine.enqueue(SendReceipt(text="from the child")).status, engine.stop()]

with engine:
    engine.enqueue(SendReceipt(text="before"))
    wait_ran("before")
    with engine.transaction() as tx:
        tx.enqueue(SendReceipt(text="in a transaction"))
        inside = in_child(lambda: engine.health().state)
    wait_ran("in a transaction")
    engine.wait_idle(20)
    answer = in_child(child)
    engine.enqueue(SendReceipt(text="after"))
    wait_ran("from the child", "after")
    idle = engine.wait_idle(20)
    print(json.dumps([inside, answer, sorted(ran), idle, engine.health().state]))
"""
    inside, answer, ran, idle, state = run_script(body, path_of(callboard_database), ending)

    assert (inside, state, idle) == ("unstarted", "running", True)
    assert answer == ["unstarted", 0, EnqueueStatus.INSERTED, True]
    assert ran == [[text, True] for text in ("after", "before", "from the child", "in a transaction")]
    assert sql(callboard_database, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_rule_21_a_forked_child_can_start_its_engine_once_the_parents_has_stopped(callboard_database: str) -> None:
    body = """
def child():
    os.read(ready, 1)
    with engine:
        engine.enqueue(SendReceipt(text="hello"))
        engine.wait_idle(20)
    return ran

ready, tell = os.pipe()
engine.start()
forked = threading.Thread(target=lambda: (engine.stop(), os.write(tell, b".")))
real_fork = os.fork
def fork():
    pid = real_fork()
    if pid:
        forked.start()
    return pid
os.fork = fork
print(json.dumps(in_child(child)))
"""
    assert run_script(body, path_of(callboard_database)) == [["hello", False]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_rule_21_a_child_of_an_engine_that_was_only_used_has_connections_of_its_own_too(
    callboard_database: str,
) -> None:
    """A web server's master process migrates or enqueues, then forks its workers."""
    body = """
engine.enqueue(SendReceipt(text="master"))
with engine.transaction():
    before = id(engine._core.store.database)
    answer = in_child(lambda: [id(engine._core.store.database) != before, engine._core.store.in_transaction()])
print(json.dumps(answer + [in_child(lambda: engine.run_due())]))
"""
    assert run_script(body, path_of(callboard_database)) == [True, False, 1]


def test_rule_21_a_call_in_a_transaction_waits_for_no_thread_that_may_wait_for_a_fork(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    """Another thread's look at the tables waits until the fork is over, and the fork until this transaction is."""
    engine = make_engine(Plugin(receipts(Scripted())))
    holds, leave = threading.Event(), threading.Event()

    def look() -> None:
        with engine._core.lock:
            holds.set()
            leave.wait(WAIT_S)

    with ThreadPoolExecutor() as pool:
        with engine.transaction():
            looking = pool.submit(look)
            assert holds.wait(WAIT_S)
            callboard_clock.advance(timedelta(seconds=5))
            engine.enqueue(receipt("hello"))
            assert not looking.done()
        leave.set()
    assert len(engine.tasks()) == 1


# Rule 22


def test_rule_22_a_cancelled_pending_task_moves_to_the_dead_table(make_engine: MakeEngine) -> None:
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    task_id = engine.enqueue(receipt("hello")).task_id
    assert task_id is not None

    assert engine.cancel(task_id) is True
    assert engine.cancel(task_id) is False

    assert engine.tasks() == []
    [dead] = engine.dead_tasks()
    assert (dead.task_id, dead.reason, dead.attempts) == (task_id, DeadReason.CANCELLED, 0)
    assert engine.run_due() == 0


def test_rule_22_a_cancelled_deferred_task_moves_to_the_dead_table(make_engine: MakeEngine) -> None:
    engine = make_engine()
    task_id = engine.enqueue(receipt("hello"), allow_unknown=True).task_id
    assert task_id is not None
    engine.run_due()
    assert engine.tasks()[0].state == TaskState.DEFERRED

    assert engine.cancel(task_id) is True

    assert engine.tasks() == []
    assert engine.dead_tasks()[0].reason == DeadReason.CANCELLED


def test_rule_22_cancelling_what_is_not_there_is_reported(make_engine: MakeEngine) -> None:
    assert make_engine().cancel(7) is False


def test_rule_22_a_running_task_is_told_and_its_outcome_is_dropped(make_engine: MakeEngine) -> None:
    inside, followed = Blocking(RescheduleAt(HOUR)), Scripted()

    def handler(message: Any, ctx: Any) -> Any:
        ctx.enqueue(thread("buffered"))
        return inside(message, ctx)

    engine = make_engine(Plugin(receipts(handler), threads(followed)))
    engine.start()
    task_id = engine.enqueue(receipt("hello")).task_id
    assert task_id is not None
    inside.wait_begun("hello")
    assert not inside.contexts["hello"].cancelled

    assert engine.cancel(task_id) is True

    assert inside.contexts["hello"].cancelled
    inside.let_go()
    assert engine.wait_idle(WAIT_S)
    assert engine.tasks() == []
    assert [dead.reason for dead in engine.dead_tasks()] == [DeadReason.CANCELLED]
    assert followed.played == []


def test_rule_22_its_group_stays_occupied_until_the_handler_returns(make_engine: MakeEngine) -> None:
    """For the group's next task as well as for a new one of the same identity."""
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    task_id = engine.enqueue(receipt("cancelled", b"group")).task_id
    assert task_id is not None
    handler.wait_begun("cancelled")
    engine.enqueue(receipt("next", b"group"))

    engine.cancel(task_id)
    assert engine.enqueue(receipt("cancelled", b"group")).status == EnqueueStatus.RERUN
    pass_by(engine, handler, "passer-by")
    assert handler.begun == ["cancelled", "passer-by"]

    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert sorted(handler.begun) == ["cancelled", "cancelled", "next", "passer-by"]


def test_rule_22_a_cancelled_coroutine_occupies_its_group_until_it_has_cleaned_up(make_engine: MakeEngine) -> None:
    begun, cleaning, clean = threading.Event(), threading.Event(), threading.Event()

    async def handler(message: Any, ctx: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.to_thread(clean.wait, WAIT_S)

    following = Blocking()
    engine = make_engine(Plugin(receipts(handler), threads(following)))
    engine.start()
    task_id = engine.enqueue(receipt("hello", b"group")).task_id
    assert task_id is not None
    assert begun.wait(WAIT_S)
    engine.enqueue(thread("next", b"group"))

    engine.cancel(task_id)
    assert cleaning.wait(WAIT_S)
    following.let_go()
    passer_by = engine.enqueue(thread("passer-by")).task_id
    assert passer_by is not None
    eventually(lambda: engine.task(passer_by) is None)
    assert following.begun == ["passer-by"]

    clean.set()
    assert engine.wait_idle(WAIT_S)
    assert following.begun == ["passer-by", "next"]
    assert engine.tasks() == []


def test_rule_22_a_claimed_task_that_has_not_begun_never_does(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("one", b"group"))
    cancelled = engine.enqueue(receipt("two", b"group")).task_id
    assert cancelled is not None
    engine.enqueue(receipt("three", b"group"))
    handler.wait_begun("one")
    eventually(lambda: {task.state for task in engine.tasks()} == {TaskState.RUNNING})

    engine.cancel(cancelled)
    handler.let_go()

    assert engine.wait_idle(WAIT_S)
    assert handler.begun == ["one", "three"]
    assert engine.tasks() == []
    assert [dead.task_id for dead in engine.dead_tasks()] == [cancelled]


def test_rule_22_a_cancel_that_is_rolled_back_tells_nobody(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    task_id = engine.enqueue(receipt("hello")).task_id
    assert task_id is not None
    handler.wait_begun("hello")

    with pytest.raises(LookupError), engine.transaction():
        engine.cancel(task_id)
        raise LookupError
    assert not handler.contexts["hello"].cancelled
    handler.let_go()

    assert engine.wait_idle(WAIT_S)
    assert engine.health().counters["done"] == 1
    assert engine.dead_tasks() == []
