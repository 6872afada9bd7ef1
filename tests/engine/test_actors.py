"""The moving parts: the pool, the actors that share it, the router, the alarm, and an engine that is idle."""

import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import peewee
import pykka
import pytest
from tests.engine.acting import (
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.rows import payload, write_by_hand

from callboard import NEVER_NS, Clock, SystemClock
from callboard._actors import dispatcher as dispatchers
from callboard._actors import router as routers
from callboard._actors.alarm import Alarm
from callboard._actors.dispatcher import InlineDispatcher, ThreadPool
from callboard._actors.mailbox import SchedulerActor
from callboard._actors.pooled import PooledActor
from callboard._store.sqlite import POLL_INTERVAL_S, SqliteStore
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


# The pool


def meet(together: threading.Barrier) -> None:
    together.wait(WAIT_S)


@pytest.fixture
def pool() -> Any:
    pool = ThreadPool(4, "test")
    yield pool
    pool.close()
    eventually(lambda: pool.size() == 0)
    eventually(lambda: not any(one.name.startswith("test-") for one in threading.enumerate()))


def test_the_pool_grows_while_its_threads_are_blocked(pool: ThreadPool) -> None:
    together = threading.Barrier(5)
    assert pool.size() == 1

    for _ in range(4):
        pool.submit(partial(meet, together))
    together.wait(WAIT_S)

    assert pool.size() == 4


def test_the_pool_grows_no_further_than_its_workers(pool: ThreadPool) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def call() -> None:
        begun.release()
        go_on.wait(WAIT_S)

    for _ in range(8):
        pool.submit(call)
    for _ in range(4):
        assert begun.acquire(timeout=WAIT_S)

    assert pool.size() == 4
    go_on.set()
    for _ in range(4):
        assert begun.acquire(timeout=WAIT_S)


def test_no_call_waits_behind_a_blocked_one_while_a_thread_may_be_added(pool: ThreadPool) -> None:
    """Again and again, because the pool must notice whichever thread takes which call."""
    for _ in range(50):
        go_on, done = threading.Event(), threading.Event()

        def block(go_on: threading.Event = go_on) -> None:
            go_on.wait(WAIT_S)

        pool.submit(block)
        pool.submit(block)
        pool.submit(done.set)
        assert done.wait(WAIT_S)
        go_on.set()


def test_threads_without_work_end_all_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatchers, "_IDLE_S", 0.05)
    together = threading.Barrier(4)
    pool = ThreadPool(4, "test")
    for _ in range(4):
        pool.submit(partial(meet, together))
    eventually(lambda: pool.size() == 4)

    eventually(lambda: pool.size() <= 1)

    done = threading.Event()
    pool.submit(done.set)
    assert done.wait(WAIT_S)
    pool.close()


def test_a_closed_pool_still_runs_what_it_was_given(pool: ThreadPool) -> None:
    ran: list[int] = []
    for number in range(10):
        pool.submit(partial(ran.append, number))

    pool.close()

    eventually(lambda: ran == list(range(10)))


def test_the_inline_dispatcher_runs_calls_in_their_order_on_the_callers_thread() -> None:
    dispatcher = InlineDispatcher()
    ran: list[tuple[int, int]] = []

    def note(number: int) -> None:
        ran.append((number, threading.get_ident()))

    for number in range(3):
        dispatcher.submit(partial(note, number))
    assert ran == []

    assert [dispatcher.run_one() for _ in range(4)] == [True, True, True, False]

    assert ran == [(number, threading.get_ident()) for number in range(3)]


# Pooled actors


class Listener(PooledActor):
    """Keep what it is told, and notice when it is told two things at once."""

    def __init__(self, dispatcher: Any, heard: list[Any]) -> None:
        super().__init__(dispatcher)
        self._alone = threading.Lock()
        self._heard = heard
        self.overlapped = False

    def on_receive(self, message: Any) -> None:
        if not self._alone.acquire(blocking=False):
            self._heard.append("overlapped")
            return
        self._heard.append(message)
        self._alone.release()


def test_no_message_is_lost_or_reordered_under_concurrent_tells(pool: ThreadPool) -> None:
    heard: list[Any] = []
    listener = Listener.start(pool, heard)
    senders, each = 6, 2_000

    def send(sender: int) -> None:
        for number in range(each):
            listener.tell((sender, number))

    sending = [threading.Thread(target=send, args=(sender,)) for sender in range(senders)]
    for one in sending:
        one.start()
    for one in sending:
        one.join(WAIT_S)
    eventually(lambda: len(heard) >= senders * each)

    assert "overlapped" not in heard
    for sender in range(senders):
        assert [number for who, number in heard if who == sender] == list(range(each))


def test_a_message_that_comes_as_the_actor_runs_dry_is_not_lost(pool: ThreadPool) -> None:
    answered = threading.Semaphore(0)

    class Answerer(PooledActor):
        def on_receive(self, message: Any) -> None:
            answered.release()

    answerer = Answerer.start(pool)
    for _ in range(5_000):
        answerer.tell("ping")
        assert answered.acquire(timeout=WAIT_S)


def test_a_busy_actor_lets_others_have_their_slice() -> None:
    dispatcher = InlineDispatcher()
    heard: list[Any] = []
    busy, quick = Listener.start(dispatcher, heard), Listener.start(dispatcher, heard)
    for number in range(1_000):
        busy.tell(number)
    quick.tell("quick")

    while dispatcher.run_one():
        pass

    assert heard.index("quick") < 100
    assert [number for number in heard if number != "quick"] == list(range(1_000))


def test_an_actor_can_be_asked_and_stopped_as_any_of_pykkas(pool: ThreadPool) -> None:
    class Doubler(PooledActor):
        def on_receive(self, message: Any) -> Any:
            return message * 2

    doubler = Doubler.start(pool)

    assert doubler.ask(21, timeout=WAIT_S) == 42
    assert doubler.stop(timeout=WAIT_S)
    assert not doubler.is_alive()
    with pytest.raises(pykka.ActorDeadError):
        doubler.tell(1)


class HostActor(pykka.ThreadingActor):
    """An actor of the host's own, in Pykka's registry."""

    def on_receive(self, message: Any) -> Any:
        return message


@pytest.fixture
def host_actor() -> Any:
    actor = HostActor.start()
    yield actor
    actor.stop(timeout=WAIT_S)


def test_the_engines_actors_stay_out_of_pykkas_registry(
    make_engine: MakeEngine, host_actor: pykka.ActorRef[HostActor]
) -> None:
    with make_engine(Plugin(receipts(Scripted()), event=lambda engine, event: None)) as engine:
        engine.enqueue_many([receipt("hello", b"group %d" % number) for number in range(10)])
        engine.publish("event")
        assert engine.wait_idle(WAIT_S)
        assert engine.health().actors > 0
        assert pykka.ActorRegistry.get_all() == [host_actor]


def test_an_engine_survives_that_the_host_stops_all_actors(make_engine: MakeEngine) -> None:
    handler = Scripted()
    with make_engine(Plugin(receipts(handler))) as engine:
        engine.enqueue(receipt("before", b"group"))
        assert engine.wait_idle(WAIT_S)

        pykka.ActorRegistry.stop_all(timeout=WAIT_S)

        engine.enqueue(receipt("after", b"group"))
        assert engine.wait_idle(WAIT_S)

    assert handler.played == ["before", "after"]


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_an_engine_never_stops_the_hosts_actors(
    error: BaseException, make_engine: MakeEngine, host_actor: pykka.ActorRef[HostActor]
) -> None:
    """Pykka does, when a `BaseException` reaches the loop of any actor."""

    def event(engine: Any, event: object) -> None:
        raise error

    with make_engine(Plugin(receipts(Scripted(error)), event=event)) as engine:
        engine.enqueue_many([receipt("grouped", b"group"), receipt("alone")])
        engine.publish("event")
        assert engine.wait_idle(WAIT_S)

    assert host_actor.ask("hello", timeout=WAIT_S) == "hello"


# The router


def test_idle_group_actors_are_passivated_and_their_groups_activated_again(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routers, "MAX_LIVE_ACTORS", 3)
    groups = [b"group %d" % number for number in range(20)]
    seen: list[tuple[bytes, str | None]] = []

    def handler(message: Any, ctx: Any) -> None:
        seen.append((message.group_id, ctx.group and ctx.group.own_inbox_id))

    with make_engine(Plugin(receipts(handler))) as engine:
        for group in groups:
            engine.group(group).created(f"me in {group.decode()}")
        for text in ("once", "twice"):
            for group in groups:
                engine.enqueue(receipt(text, group))
                assert engine.wait_idle(WAIT_S)
                assert engine.health().actors <= 3

    assert seen == [(group, f"me in {group.decode()}") for group in groups] * 2


def test_a_group_with_work_is_never_passivated(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "MAX_LIVE_ACTORS", 2)
    busy, others = Blocking(), Scripted()
    engine = make_engine(Plugin(receipts(busy), threads(others)))
    engine.start()
    for text in ("one", "two", "three"):
        engine.enqueue(receipt(text, b"busy"))
    busy.wait_begun("one")

    engine.enqueue_many([thread("hello", b"group %d" % number) for number in range(50)])
    eventually(lambda: engine.health().counters["done"] == 50)
    assert busy.begun == ["one"]

    busy.let_go()
    assert engine.wait_idle(WAIT_S)
    assert sorted(busy.begun) == ["one", "three", "two"]


def test_the_actor_that_has_been_idle_for_longest_goes_first(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor remembers its group's rows, so a group that was passivated reads them all again."""
    monkeypatch.setattr(routers, "MAX_LIVE_ACTORS", 2)
    states: list[bytes] = []
    read = SqliteStore.groups.state

    def state(session: Any, group_id: bytes) -> Any:
        states.append(group_id)
        return read(session, group_id)

    def handler(message: Any, ctx: Any) -> None:
        assert ctx.group is not None

    engine = make_engine(Plugin(receipts(handler)))
    for group in (b"a", b"b", b"c"):
        engine.group(group).created("me")
    monkeypatch.setattr(SqliteStore.groups, "state", state)
    engine.start()
    for number, group in enumerate([b"a", b"b", b"a", b"c", b"a", b"b"]):
        engine.enqueue(receipt(str(number), group))
        assert engine.wait_idle(WAIT_S)

    assert states == [b"a", b"b", b"c", b"b"]
    assert engine.health().counters["failed"] == 0


# The alarm


class Rings:
    """What an alarm rings, and how often it did."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)

    def __call__(self) -> None:
        self._rung.release()

    def wait(self) -> bool:
        return self._rung.acquire(timeout=WAIT_S)

    def rang(self) -> bool:
        return self._rung.acquire(blocking=False)


@pytest.fixture
def make_alarm() -> Any:
    made: list[Alarm] = []

    def make(clock: Clock, rings: Rings, interval_s: float = 3_600) -> Alarm:
        alarm = Alarm(clock, rings, interval_s)
        alarm.start()
        made.append(alarm)
        return alarm

    yield make
    for alarm in made:
        alarm.stop()


MakeAlarm = Callable[..., Alarm]


def test_the_alarm_rings_once_at_its_deadline(make_alarm: MakeAlarm, callboard_clock: FakeClock) -> None:
    rings = Rings()
    alarm = make_alarm(callboard_clock, rings)
    alarm.set(callboard_clock.now_ns() + 10**9)

    callboard_clock.advance(timedelta(seconds=0.999))
    assert not rings.rang()
    callboard_clock.advance(timedelta(seconds=0.001))
    assert rings.wait()
    callboard_clock.advance(HOUR)
    alarm.within(0)  # rings for itself, so whatever else was to ring has
    assert rings.wait()
    assert not rings.rang()


def test_setting_the_alarm_again_does_not_restart_the_sleep(make_alarm: MakeAlarm) -> None:
    """A flood of wakes each set the same absolute deadline, on the machine's own clock."""
    rings = Rings()
    clock = SystemClock()
    alarm = make_alarm(clock, rings)
    deadline_ns = clock.now_ns() + 10**8

    while clock.now_ns() < deadline_ns:
        alarm.set(deadline_ns)
    alarm.set(deadline_ns)

    assert rings.wait()


def test_an_earlier_deadline_shortens_the_sleep_and_a_later_one_extends_it(
    make_alarm: MakeAlarm, callboard_clock: FakeClock
) -> None:
    rings = Rings()
    alarm = make_alarm(callboard_clock, rings)
    now_ns = callboard_clock.now_ns()
    alarm.set(now_ns + 10 * 10**9)
    alarm.set(now_ns + 10**9)
    callboard_clock.advance(SECOND)
    assert rings.wait()

    alarm.set(now_ns + 2 * 10**9)
    alarm.set(now_ns + 3 * 10**9)
    callboard_clock.advance(SECOND)
    alarm.within(0)
    assert rings.wait()
    assert not rings.rang()
    callboard_clock.advance(SECOND)
    assert rings.wait()


def test_the_alarm_rings_at_its_interval_without_a_deadline(
    make_alarm: MakeAlarm, callboard_clock: FakeClock
) -> None:
    rings = Rings()
    make_alarm(callboard_clock, rings, interval_s=0.01)

    assert all(rings.wait() for _ in range(3))


def test_the_alarm_is_asked_within_by_the_earliest(make_alarm: MakeAlarm, callboard_clock: FakeClock) -> None:
    rings = Rings()
    alarm = make_alarm(callboard_clock, rings)

    alarm.within(3_600)
    alarm.within(0.001)
    alarm.within(3_600)

    assert rings.wait()


def test_a_stopped_alarm_is_silent(callboard_clock: FakeClock) -> None:
    rings = Rings()
    alarm = Alarm(callboard_clock, rings, 3_600)
    alarm.stop()
    alarm.start()
    alarm.set(0)
    alarm.stop()

    assert not rings.rang()


def test_a_flood_of_wakes_does_not_starve_a_due_task(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), clock=SystemClock())
    engine.start()
    calm = threading.Event()

    def flood() -> None:
        while not calm.is_set():
            engine.wake()

    flooding = threading.Thread(target=flood)
    flooding.start()
    engine.enqueue(receipt("hello"), not_before=timedelta(seconds=0.2))
    handler.wait_begun("hello")
    calm.set()
    flooding.join(WAIT_S)
    handler.let_go()


class UnattendedClock(FakeClock):
    """A clock that moves without telling anybody, as when a laptop was suspended."""

    def seconds_until(self, deadline_ns: int) -> float | None:
        return max(0.0, (deadline_ns - self.now_ns()) / 1e9)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        pass


def test_a_clock_that_jumped_during_the_sleep_is_noticed(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    clock, handler = UnattendedClock(), Blocking()
    engine = make_engine(Plugin(receipts(handler)), clock=clock)
    engine.start()
    engine.enqueue(receipt("hello"), not_before=HOUR)
    assert engine.wait_idle(WAIT_S)

    clock.jump(HOUR)

    handler.wait_begun("hello")
    handler.let_go()


def test_the_engine_looks_at_the_clock_and_at_the_file_once_a_second() -> None:
    """At least every 30 s, says the design; SQLite is asked for changes at most once a second."""
    assert POLL_INTERVAL_S == SqliteStore.poll_interval_s == 1.0


# The scheduler's mailbox


def test_wakes_that_come_before_the_table_is_read_are_one() -> None:
    mailbox = SchedulerActor(*[cast(Any, None)] * 7)

    for _ in range(1_000):
        mailbox.wake()

    assert mailbox.actor_inbox._messages.qsize() == 1  # type: ignore[attr-defined]


class TracedDatabase(peewee.SqliteDatabase):
    """A host's database that notes every statement on any of its connections."""

    def __init__(self, path: Path) -> None:
        self.statements: list[str] = []
        super().__init__(str(path), pragmas={"journal_mode": "wal"})

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = super()._connect()  # type: ignore[misc]
        connection.set_trace_callback(self.statements.append)
        return connection


def test_an_idle_engine_runs_no_query_on_its_tables(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.01)
    database = TracedDatabase(tmp_path / "host.db")
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), database=database)
    engine.start()
    engine.enqueue(receipt("later"), not_before=HOUR)
    engine.enqueue(receipt("done"))
    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    version = "PRAGMA data_version"
    idle_from = len(database.statements)
    eventually(lambda: database.statements[idle_from:].count(version) >= 3)

    idle_from = len(database.statements)
    eventually(lambda: database.statements[idle_from:].count(version) >= 20)

    assert set(database.statements[idle_from:]) == {version}


def test_an_idle_engine_finds_what_another_process_wrote(
    make_engine: MakeEngine, callboard_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.01)
    handler = Blocking()
    kind = receipts(handler)
    engine = make_engine(Plugin(kind))
    engine.start()
    assert engine.wait_idle(WAIT_S)

    write_by_hand(callboard_database, kind.name, payload(receipt("hello")), expires_at_ns=NEVER_NS)

    handler.wait_begun("hello")
    handler.let_go()


def test_an_outcome_is_written_though_no_other_joins_it(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of ten that run has ended, and no regular look at the table is near."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 3_600)
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    answers = engine.enqueue_many([receipt(str(number)) for number in range(10)])
    handler.wait_count(10)

    handler.let_go("3")
    done = answers[3].task_id
    assert done is not None
    eventually(lambda: engine.task(done) is None)

    handler.let_go()
