"""Several nodes on PostgreSQL, where they wait for nobody's locks, and where a change is only known if it is told.

The regular look, which would find what nobody told, is put off beyond each test's end.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import peewee
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
    thread,
    threads,
)
from tests.engine.messages import SendReceipt
from tests.engine.rows import payload, sql, write_by_hand
from tests.engine.rules.test_nodes import AT_ONCE_S, Serving, column
from tests.postgres import new_database, psycopg

from callboard import Engine, RescheduleAt, SystemClock, Task, TaskContext
from callboard._actors.node import Node
from callboard._actors.workload import SHARED_CLAIM_AHEAD
from callboard._clock import nanoseconds
from callboard._store import postgres, postgres_tasks
from callboard._store.interface import Session
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)
THREAD = "acme.receipts.ReceiptThread"
ELSEWHERE = 99
"""A node of another machine, of which no lock here tells."""


@pytest.fixture
def callboard_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(postgres, "_READ_ANYWAY_S", 3_600.0)
    with new_database() as url:
        yield url


@pytest.fixture
def make_node(make_engine: MakeEngine) -> MakeEngine:
    def make(*plugins: Any, **options: Any) -> Engine:
        engine = make_engine(*plugins, clock=SystemClock(), **options)
        engine._core.store._next_look_s = float("inf")  # type: ignore[attr-defined]
        return engine

    return make


@pytest.fixture
def host(make_node: MakeEngine) -> Engine:
    """An engine that executes nothing, to enqueue and look with."""
    engine = make_node(Plugin(receipts(Scripted()), threads(Scripted())), execute=False)
    engine.migrate()
    return engine


def add_node(url: str, *, lease: timedelta = HOUR) -> None:
    """Write the row of a node elsewhere, which gives no sign of life."""
    sql(
        url,
        "INSERT INTO callboard_node VALUES (?, 'elsewhere', 1, '1', '', ?, 0, ?)",
        *(ELSEWHERE, nanoseconds(lease), SystemClock().now_ns()),
    )


@contextmanager
def looking(members: Node) -> Iterator[list[bool]]:
    """Collect what a node's looks at the others answer."""
    looks: list[bool] = []
    look = members.look

    def counted(*, changed: bool) -> bool:
        looks.append(look(changed=changed))
        return looks[-1]

    members.look = counted  # type: ignore[method-assign]
    yield looks
    members.look = look  # type: ignore[method-assign]


def wait_told(node: Engine, task_id: int | None) -> None:
    """Wait until a node knows of a task that is not due."""
    task = node.task(task_id or 0)
    assert task is not None
    assert node._core.running is not None
    scheduler = node._core.running.scheduler
    eventually(lambda: scheduler.deadline_ns == task.next_attempt_at_ns)


@contextmanager
def holding(url: str, statement: str, *params: Any) -> Iterator[None]:
    """Keep what a statement has locked."""
    with psycopg.connect(url) as connection:
        connection.execute(statement, params)
        yield
        connection.rollback()


# Sharing the work


class Recorder:
    """A handler that notices when two of a group run at once, and does every other task by `ctx.complete`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: Counter[bytes] = Counter()
        self.overlaps: list[bytes] = []
        self.ran: list[str] = []

    def of_node(self, number: int) -> Any:
        def handler(message: SendReceipt, ctx: TaskContext) -> None:
            with self._lock:
                self._inside[message.group_id] += 1
                if self._inside[message.group_id] > 1:
                    self.overlaps.append(message.group_id)
            try:
                if int(message.text) % 2:
                    with ctx.complete() as tx:
                        tx.connection.execute("INSERT INTO effect VALUES (%s, %s)", (message.text, number))
            finally:
                with self._lock:
                    self._inside[message.group_id] -= 1
                    self.ran.append(message.text)

        return handler


def test_rule_07_several_engines_drain_few_groups_and_never_overlap(
    make_node: MakeEngine, host: Engine, callboard_database: str
) -> None:
    sql(callboard_database, "CREATE TABLE effect (text TEXT, node INTEGER)")
    recorder = Recorder()
    nodes = [make_node(Plugin(receipts(recorder.of_node(number))), workers=4) for number in range(4)]
    for node in nodes:
        node.start()
    texts = [str(number) for number in range(600)]
    for first in range(0, len(texts), 20):
        host.enqueue_many(receipt(text, b"group %d" % (int(text) % 3)) for text in texts[first : first + 20])

    eventually(lambda: not host.tasks(limit=1))

    assert all(node.wait_idle(WAIT_S) for node in nodes)
    assert recorder.overlaps == []
    assert sorted(recorder.ran, key=int) == texts
    effects = sql(callboard_database, "SELECT text FROM effect")
    assert sorted(int(text) for (text,) in effects) == list(range(1, len(texts), 2))
    assert sum(node.health().counters["done"] for node in nodes) == len(texts)


class Gated:
    """A session whose choice of rows waits at a gate when it has begun, and so sees only what was before."""

    LOCK = "SELECT pg_advisory_xact_lock(1)"
    CHOICE = ") AS found"

    def __init__(self, session: Session) -> None:
        self._session = session

    def rows(self, statement: str, params: Any = ()) -> Any:
        return self._session.rows(statement.replace(self.CHOICE, f"{self.CHOICE}, ({self.LOCK}) AS gate"), params)


@pytest.mark.parametrize("ended", [True, False])
def test_rule_07_a_claim_sees_what_another_node_claims_at_the_same_time(
    ended: bool, host: Engine, callboard_database: str
) -> None:
    host.enqueue_many(receipt(text, b"group") for text in ("one", "two"))
    first, second, keeper = (postgres.open_postgres(callboard_database) for _ in range(3))
    now_ns = host.clock.now_ns()
    chosen: list[list[Task]] = []

    def choose() -> None:
        with second.transaction() as session:
            gated: Any = Gated(session)
            chosen.append(second.tasks.due(gated, [RECEIPT], 2, now_ns, 10, grouped_only=False))

    chooser = threading.Thread(target=choose)
    with ExitStack() as stack:
        with keeper.transaction() as gate:
            gate.rows(Gated.LOCK)
            chooser.start()
            eventually(lambda: sql(callboard_database, "SELECT 1 FROM pg_locks WHERE NOT granted"))
            session = stack.enter_context(first.transaction())
            [task] = first.tasks.due(session, [RECEIPT], 1, now_ns, 1, grouped_only=False)
            first.tasks.start(session, [task.id], now_ns, 1)
            if ended:
                stack.close()
        chooser.join(WAIT_S)
        assert chosen == [[]]
    for store in (first, second, keeper):
        store.close()


def test_engines_in_two_schemas_of_a_database_are_strangers(
    make_node: MakeEngine, callboard_database: str
) -> None:
    handlers = {name: Scripted() for name in ("one", "two")}
    engines = {}
    for name, handler in handlers.items():
        sql(callboard_database, f"CREATE SCHEMA {name}")
        url = f"{callboard_database}&options=-csearch_path%3D{name}"
        engines[name] = make_node(Plugin(receipts(handler)), database=url)
        engines[name].start()
        engines[name].enqueue(receipt(name), group_id=b"the same")

    for name, engine in engines.items():
        assert engine.wait_idle(WAIT_S)
        assert handlers[name].played == [name]
        assert [node.id for node in engine.nodes()] == [1]
        assert not engine._core.store.nodes.has_ended(engine.nodes()[0])

    engines["one"].stop()
    [left] = engines["two"].nodes()
    assert not engines["two"]._core.store.nodes.has_ended(left)


def test_a_node_that_joins_takes_a_share_of_a_long_backlog(make_node: MakeEngine, host: Engine) -> None:
    joined = threading.Event()
    ran: Counter[str] = Counter()

    def first(message: SendReceipt, ctx: TaskContext) -> None:
        joined.wait(0.02)  # slowly until somebody helps
        ran["first"] += 1

    def second(message: SendReceipt, ctx: TaskContext) -> None:
        joined.set()
        ran["second"] += 1

    host.enqueue_many(receipt(str(number), b"group %d" % (number % 100)) for number in range(15_000))
    with make_node(Plugin(receipts(first))):
        eventually(lambda: host.tasks(state="running", limit=1))
        with make_node(Plugin(receipts(second))):
            eventually(lambda: not host.tasks(limit=1))

    assert ran.total() == 15_000
    assert min(ran.values()) > 500


def test_a_node_beside_others_locks_no_more_rows_than_it_has_room_for(
    make_node: MakeEngine, host: Engine, callboard_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_node(callboard_database)
    host.enqueue_many(receipt(str(number), b"group %d" % (number % 50)) for number in range(200))
    handler = Scripted()
    node = make_node(Plugin(receipts(handler)), workers=1)
    limits: list[int] = []
    due = node._core.store.tasks.due

    def noting(session: Any, kinds: Any, node_id: int, now_ns: int, limit: int, **options: Any) -> Any:
        limits.append(limit)
        return due(session, kinds, node_id, now_ns, limit, **options)

    monkeypatch.setattr(node._core.store.tasks, "due", noting)
    with node:
        assert node.wait_idle(WAIT_S)

    assert len(handler.played) == 200
    assert max(limits) == 2 * SHARED_CLAIM_AHEAD + 2, "two groups, and two tasks without one"


def test_due_rows_in_a_group_that_another_node_runs_are_looked_at_again(
    make_node: MakeEngine, host: Engine, callboard_database: str
) -> None:
    """The end of the other's run is an update or a delete, of which nothing tells."""
    add_node(callboard_database)
    columns = {"group_id": b"group", "max_attempts": 20}
    held = write_by_hand(
        callboard_database, RECEIPT, payload(receipt("held")), state="running", owner=ELSEWHERE, **columns
    )
    write_by_hand(callboard_database, RECEIPT, payload(receipt("waits")), **columns)
    handler = Scripted()
    with make_node(Plugin(receipts(handler))) as node:
        assert node.wait_idle(WAIT_S)
        assert handler.played == []

        sql(callboard_database, "DELETE FROM callboard_task WHERE id = ?", held)

        eventually(lambda: handler.played == ["waits"])


def test_rows_that_were_skipped_because_another_node_was_claiming_are_looked_at_again(
    make_node: MakeEngine, host: Engine, callboard_database: str
) -> None:
    handler = Scripted()
    space = postgres_tasks._CLAIM_SPACE
    lock = "SELECT pg_advisory_xact_lock(%s, hashtext(encode(%s, 'hex')))"
    with make_node(Plugin(receipts(handler))) as node:
        with holding(callboard_database, lock, space, b"group"):
            host.enqueue_many([receipt("skipped", b"group"), receipt("taken", b"other group")])
            eventually(lambda: handler.played == ["taken"])
            assert node.wait_idle(WAIT_S)

        eventually(lambda: handler.played == ["taken", "skipped"])


# What other nodes are told of


def test_a_cancel_on_another_node_is_told(make_node: MakeEngine, host: Engine) -> None:
    handler = Blocking()
    with make_node(Plugin(receipts(handler))):
        task_id = host.enqueue(receipt("held")).task_id
        assert task_id is not None
        handler.wait_begun("held")

        assert host.cancel(task_id)

        eventually(lambda: handler.contexts["held"].cancelled)
        handler.let_go()


def test_a_pull_in_on_another_node_is_told(make_node: MakeEngine, host: Engine) -> None:
    handler = Scripted()
    with make_node(Plugin(receipts(handler))) as node:
        later = host.enqueue(receipt("later"), not_before=HOUR).task_id
        wait_told(node, later)

        assert host.pull_in(receipt("later"), not_later_than_ns=0)

        eventually(lambda: handler.played == ["later"])


def test_rule_17_what_another_node_sets_aside_is_told(make_node: MakeEngine, host: Engine) -> None:
    handler = Scripted()
    with make_node(Plugin(threads(handler))) as node:
        wait_told(node, host.enqueue(thread("later"), not_before=HOUR).task_id)

        tomorrow_ns = host.clock.now_ns() + 24 * nanoseconds(HOUR)
        store = make_node()._core.store  # another node, with another clock and without this kind
        with store.transaction() as session:
            assert len(store.tasks.set_aside(session, THREAD, tomorrow_ns, 2 * tomorrow_ns, 10)) == 1

        eventually(lambda: handler.played == ["later"])


def test_rule_16_a_row_that_comes_while_others_are_set_aside_is_set_aside_next(
    make_node: MakeEngine, host: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside = postgres_tasks.PostgresTasks.set_aside
    late = [thread("late")]

    def then_comes_another(tasks: Any, session: Session, *args: Any) -> list[int]:
        ids = set_aside(tasks, session, *args)
        while late:
            host.enqueue(late.pop(), not_before=host.clock.now_ns() - nanoseconds(HOUR))
        return ids

    monkeypatch.setattr(postgres_tasks.PostgresTasks, "set_aside", then_comes_another)
    host.enqueue(thread("first"))

    with make_node(Plugin(receipts(Scripted()))) as node:
        assert node.wait_idle(WAIT_S)

    assert host.dead_tasks() == []
    assert [task.state for task in host.tasks()] == ["deferred", "deferred"]
    assert host.dead_tasks() == []


def test_rule_17_nodes_with_different_plugins_do_their_own(make_node: MakeEngine, host: Engine) -> None:
    of_receipts, of_threads = Scripted(), Scripted(RescheduleAt(HOUR))
    host.enqueue_many([receipt("0", b"group"), thread("0", b"group")])
    with make_node(Plugin(receipts(of_receipts))) as knows_receipts:
        eventually(lambda: [task.state for task in host.tasks()] == ["deferred"])
        with make_node(Plugin(threads(of_threads))):
            eventually(lambda: of_threads.played == ["0"])
            for number in range(1, 30):
                host.enqueue_many([receipt(str(number), b"group"), thread(str(number), b"group")])
            eventually(lambda: len(of_threads.played) == 30 or host.dead_tasks())
            eventually(lambda: len(of_receipts.played) == 30 or host.dead_tasks())
            assert host.dead_tasks() == []
            assert knows_receipts.health().counters["failed"] == 0
    assert sorted(of_receipts.played) == sorted(of_threads.played)


def test_run_due_works_beside_a_started_engine(make_node: MakeEngine, host: Engine) -> None:
    held, ran = Blocking(), Scripted()
    inline = make_node(Plugin(threads(ran)))
    with make_node(Plugin(receipts(held))):
        host.enqueue(receipt("held", b"group"))
        held.wait_begun("held")
        host.enqueue_many([thread("behind it", b"group"), thread("free")])
        eventually(lambda: [task.state for task in host.tasks()] == ["running", "deferred", "deferred"])

        assert inline.run_due() == 1
        assert ran.played == ["free"]

        held.let_go()
        eventually(lambda: len(host.tasks()) == 1)
        assert inline.run_due() == 1
    assert ran.played == ["free", "behind it"]


def test_a_node_that_stops_hands_over_at_once(make_node: MakeEngine, host: Engine) -> None:
    leaving, staying = Blocking(), Blocking()
    staying.let_go()
    first, second = (make_node(Plugin(receipts(handler)), workers=1) for handler in (leaving, staying))
    first.start()
    texts = ["runs", "behind it", "also behind"]
    host.enqueue_many([*(receipt(text, b"group") for text in texts), receipt("free"), receipt("unstarted")])
    leaving.wait_count(1)
    eventually(lambda: len(host.tasks(state="running")) >= 2)
    [begun] = leaving.begun
    second.start()
    assert second.wait_idle(WAIT_S)

    stopping = threading.Thread(target=first.stop)
    stopping.start()
    eventually(lambda: first._core.running is None or first._core.running.scheduler.stopping)
    leaving.let_go()
    stopping.join(WAIT_S)

    eventually(lambda: not host.tasks())
    assert leaving.begun == [begun]
    assert sorted(staying.begun) == sorted({*texts, "free", "unstarted"} - {begun})


# Nodes that are gone


def test_a_killed_process_of_another_machine_is_followed_when_its_lease_is_over(
    host: Engine, callboard_database: str
) -> None:
    """Without the file of its lock it is as if on another machine."""
    killed = Serving(callboard_database, lease=0.5)
    following = None
    try:
        host.enqueue(receipt("hold it"))
        killed.wait("begun", "hold it")
        [node] = host.nodes()
        os.unlink(host._core.store.nodes._lock_path(node.id))  # type: ignore[attr-defined]
        following = Serving(callboard_database, lease=0.5)
        following.wait("serving")
        killed.kill()
        following.wait("begun", "hold it", seconds=AT_ONCE_S)
        following.tell("end", "hold it")
        eventually(lambda: not host.tasks())
        assert host.dead_tasks() == []
    finally:
        for serving in (killed, following):
            if serving is not None:
                serving.close()


def test_a_task_that_somebody_has_locked_is_taken_over_when_it_is_free(
    make_node: MakeEngine, host: Engine, callboard_database: str
) -> None:
    """Such as by the `ctx.complete` of a node that is frozen in the middle. Others do not wait for it."""
    handler = Scripted()
    add_node(callboard_database, lease=timedelta(milliseconds=200))
    columns = {"state": "running", "owner": ELSEWHERE, "max_attempts": 20}
    locked = write_by_hand(callboard_database, RECEIPT, payload(receipt("locked")), **columns)
    write_by_hand(callboard_database, RECEIPT, payload(receipt("free")), **columns)
    lock = "SELECT 1 FROM callboard_task WHERE id = %s FOR UPDATE"
    with make_node(Plugin(receipts(handler))) as node:
        with holding(callboard_database, lock, locked):
            eventually(lambda: handler.played == ["free"])
            assert node.wait_idle(WAIT_S)
            assert column(callboard_database, "state") == ["running"]

        eventually(lambda: handler.played == ["free", "locked"])


def test_what_others_kept_silent_while_the_database_was_away_is_not_counted(
    make_engine: MakeEngine,
    host: Engine,
    callboard_database: str,
    callboard_clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long the last attempt to connect took: nobody else could reach it either."""
    add_node(callboard_database, lease=timedelta(seconds=15))
    columns = {"state": "running", "owner": ELSEWHERE, "max_attempts": 20}
    write_by_hand(callboard_database, RECEIPT, payload(receipt("its")), **columns)
    handler = Scripted()
    connect: Callable[..., Any] = peewee.Psycopg3Adapter.connect

    def connect_late(*given: Any, **options: Any) -> Any:
        connection = connect(*given, **options)
        if threading.current_thread().name == "callboard-scheduler":
            callboard_clock.advance(timedelta(minutes=1))
        return connection

    with make_engine(Plugin(receipts(handler))) as node:
        assert node.wait_idle(WAIT_S)
        monkeypatch.setattr(peewee.Psycopg3Adapter, "connect", connect_late)
        pid = node._core.store._own_pid  # type: ignore[attr-defined]
        sql(callboard_database, "SELECT pg_terminate_backend(?)", pid)
        node.wake()
        eventually(lambda: node._core.store._own_pid != pid)  # type: ignore[attr-defined]
        assert node.wait_idle(WAIT_S)
        assert sql(callboard_database, "SELECT owner FROM callboard_task") == [(ELSEWHERE,)]
        assert handler.played == []

        callboard_clock.advance(timedelta(minutes=1))  # from now on it is counted

        eventually(lambda: handler.played == ["its"])


def test_a_node_that_fell_idle_unnoticed_is_not_taken_for_gone(
    make_engine: MakeEngine, host: Engine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    """Nothing tells of the ends of its runs, and a node that holds nothing gives no sign of life."""
    add_node(callboard_database, lease=timedelta(seconds=15))
    columns = {"state": "running", "owner": ELSEWHERE, "max_attempts": 20}
    write_by_hand(callboard_database, RECEIPT, payload(receipt("its")), **columns)
    node = make_engine(Plugin(receipts(Scripted())))
    node._core.store._next_look_s = float("inf")  # type: ignore[attr-defined]
    with logged("WARNING") as warnings, node:
        assert node.wait_idle(WAIT_S)
        sql(callboard_database, "DELETE FROM callboard_task")
        assert node._core.running is not None
        members = node._core.running.node
        with looking(members) as looks:
            callboard_clock.advance(timedelta(minutes=1))
            eventually(lambda: len(looks) >= 2)

        assert warnings == []
        assert (ELSEWHERE,) in sql(callboard_database, "SELECT id FROM callboard_node")


def test_nobody_waits_for_a_node_that_is_frozen_in_its_heartbeat(
    make_node: MakeEngine, host: Engine, callboard_database: str
) -> None:
    """It is gone when the server has ended its transaction."""
    handler = Scripted()
    add_node(callboard_database, lease=timedelta(milliseconds=200))
    columns = {"state": "running", "owner": ELSEWHERE, "max_attempts": 20}
    write_by_hand(callboard_database, RECEIPT, payload(receipt("its")), **columns)
    lock = "SELECT 1 FROM callboard_node WHERE id = %s FOR UPDATE"
    with make_node(Plugin(receipts(handler))) as node:
        assert node._core.running is not None
        members = node._core.running.node
        with holding(callboard_database, lock, ELSEWHERE):
            host.enqueue(receipt("other"))
            eventually(lambda: handler.played == ["other"])
            with looking(members) as looks:
                eventually(lambda: len(looks) >= 2)  # so its lease is over

        eventually(lambda: handler.played == ["other", "its"])


def test_a_heartbeat_that_stands_still_is_ended_by_the_server(host: Engine, callboard_database: str) -> None:
    """So that a node which is frozen in it can be found gone."""
    add_node(callboard_database)
    store = host._core.store
    with store.transaction() as session:
        assert store.nodes.renew(session, ELSEWHERE, 1)
        assert session.rows("SHOW idle_in_transaction_session_timeout") == [("1min",)]
    with store.transaction() as session:
        assert session.rows("SHOW idle_in_transaction_session_timeout") == [("0",)]
