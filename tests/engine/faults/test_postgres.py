"""Connections that are ended, servers that are gone, and others' locks: nothing is lost, nothing has failed."""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import peewee
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
)
from tests.engine.messages import SendReceipt
from tests.engine.rows import sql
from tests.postgres import OwnServer, new_database, own_server, psycopg

from callboard import DatabaseUnavailableError, Engine, RetryPolicy, SystemClock, TaskContext
from callboard._store.postgres_nodes import PostgresNodes
from callboard.testing import FakeClock

__all__ = ["own_server"]

ONCE = RetryPolicy(max_attempts=1)
"""So that a task whose attempt is counted is dead."""

GONE_S = 30.0
"""How long a server is gone in the one test that has nothing to wait for but time."""

LEASE_S = 2.0
"""Far less than that, so that both nodes' leases run out meanwhile."""


@pytest.fixture
def callboard_database(request: pytest.FixtureRequest) -> Iterator[str]:
    if "own_server" in request.fixturenames:
        yield request.getfixturevalue("own_server").url
        return
    with new_database() as url:
        yield url


@pytest.fixture
def reasons() -> list[str]:
    """Why plugins were told to reconcile."""
    return []


@pytest.fixture
def start(make_engine: MakeEngine, reasons: list[str]) -> Callable[..., Engine]:
    """Return how to start an engine whose tasks die of their first failure."""

    def start(handler: Callable[..., Any], **options: Any) -> Engine:
        kind = receipts(handler, retry=ONCE)
        plugin = Plugin(kind, reconcile=lambda engine, reason: reasons.append(reason))
        engine = make_engine(plugin, clock=SystemClock(), **options)
        engine.start()
        assert engine.wait_idle(WAIT_S)
        return engine

    return start


def end(url: str, condition: str, *params: Any) -> int:
    """End the connections to this database of which the condition holds; return how many there were.

    They have ended when this returns.
    """
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return len(sql(url, f"SELECT pg_terminate_backend(pid, 20000) {others} AND {condition}", *params))


def scheduler_pid(engine: Engine) -> int:
    pid: int = engine._core.store._own_pid  # type: ignore[attr-defined]
    return pid


# Connections


@pytest.mark.parametrize("whose", ["scheduler", "listener", "all"])
def test_a_connection_that_is_ended_is_replaced(
    whose: str, start: Callable[..., Engine], reasons: list[str], callboard_database: str
) -> None:
    handler = Blocking()
    engine = start(handler)
    eventually(lambda: sql(callboard_database, "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"))
    engine.enqueue(receipt("runs"))
    handler.wait_begun("runs")

    conditions = {"scheduler": f"pid = {scheduler_pid(engine)}", "listener": "query LIKE 'LISTEN%'", "all": "TRUE"}
    with logged("ERROR") as errors:
        assert end(callboard_database, conditions[whose]) >= 1
        handler.let_go()
        engine.enqueue(receipt("next"))

        eventually(lambda: not engine.tasks())
        eventually(lambda: reasons == ["start", "reconnect"])
        assert engine.wait_idle(WAIT_S)
    assert len(errors) == 1
    assert handler.begun == ["runs", "next"]
    assert engine.health().counters == {"done": 2, "dead": 0, "failed": 0, "stale": 0}
    assert engine.health().database_error is None
    # And it is heard again what others enqueue.
    with psycopg.connect(callboard_database) as connection:
        engine.enqueue(receipt("of a host"), connection=connection)
    eventually(lambda: "of a host" in handler.begun)


def test_a_connection_that_is_ended_inside_complete_is_no_failed_attempt(
    start: Callable[..., Engine], callboard_database: str
) -> None:
    sql(callboard_database, "CREATE TABLE effect (text TEXT)")
    refusals: list[BaseException] = []

    def complete(message: SendReceipt, ctx: TaskContext) -> None:
        try:
            with ctx.complete() as tx:
                tx.connection.execute("INSERT INTO effect VALUES (%s)", (message.text,))
                if not refusals:
                    assert end(callboard_database, "pid = ?", tx.connection.info.backend_pid) == 1
        except DatabaseUnavailableError as error:
            refusals.append(error)
            raise

    engine = start(complete)
    task_id = engine.enqueue(receipt("effect")).task_id
    eventually(lambda: refusals)
    eventually(lambda: engine.tasks()[0].state == "pending")
    [task] = engine.tasks()
    assert (task.id, task.attempts, task.outages) == (task_id, 0, 1)
    assert sql(callboard_database, "SELECT * FROM effect") == []

    assert engine.pull_in(receipt("effect"), not_later_than_ns=0)
    eventually(lambda: not engine.tasks())
    assert sql(callboard_database, "SELECT * FROM effect") == [("effect",)]
    assert engine.dead_tasks() == []


def test_a_heartbeat_whose_connection_is_ended_is_followed_by_another(
    start: Callable[..., Engine], callboard_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew = PostgresNodes.renew
    beats: list[bool] = []

    def renew_on_a_connection_that_ends(nodes: PostgresNodes, session: Any, node_id: int, now_ns: int) -> bool:
        if threading.current_thread().name != "callboard-heartbeat":
            return renew(nodes, session, node_id, now_ns)
        if not beats:
            assert end(callboard_database, "pid = ?", session.connection.info.backend_pid) == 1
        beats.append(False)
        beats[-1] = renew(nodes, session, node_id, now_ns)
        return beats[-1]

    monkeypatch.setattr(PostgresNodes, "renew", renew_on_a_connection_that_ends)
    handler = Blocking()
    with logged("WARNING") as warnings:
        engine = start(handler, heartbeat=timedelta(milliseconds=20))
        engine.enqueue(receipt("runs"))
        handler.wait_begun("runs")
        eventually(lambda: beats[-2:] == [True, True])
        handler.let_go()
        assert engine.wait_idle(WAIT_S)
    assert beats[0] is False
    assert "a heartbeat failed" in warnings[0]
    assert engine.health().counters == {"done": 1, "dead": 0, "failed": 0, "stale": 0}


def test_a_connection_that_was_ended_in_the_pool_is_not_used(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())), clock=SystemClock(), execute=False)
    engine.migrate()
    barrier = threading.Barrier(3)

    def use() -> None:
        with engine.transaction():
            barrier.wait(WAIT_S)

    for thread in (threads := [threading.Thread(target=use) for _ in range(3)]):
        thread.start()
    for thread in threads:
        thread.join()
    assert end(callboard_database, "TRUE") == 3

    for number in range(3):
        engine.enqueue(receipt(str(number)))
    assert len(engine.tasks()) == 3


# The server


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_is_restarted_loses_nothing(
    mode: str, start: Callable[..., Engine], reasons: list[str], own_server: OwnServer
) -> None:
    sql(own_server.url, "CREATE TABLE effect (text TEXT)")
    handler = Blocking()

    def complete(message: SendReceipt, ctx: TaskContext) -> None:
        handler(message, ctx)
        with ctx.complete() as tx:
            tx.connection.execute("INSERT INTO effect VALUES (%s)", (message.text,))

    engine = start(complete)
    texts = [f"{number}" for number in range(8)]
    engine.enqueue_many(receipt(text, b"group %d" % (int(text) % 4)) for text in texts)
    handler.wait_count(4)

    own_server.stop(mode)
    handler.let_go("0", "1")  # while it is gone
    own_server.start()
    handler.let_go()

    eventually(lambda: len(reasons) > 1)  # "service", if a handler has noticed it, too
    engine.enqueue(receipt("afterwards"))
    eventually(lambda: [engine.pull_in(task.identity, not_later_than_ns=0) for task in engine.tasks()] == [])
    assert engine.dead_tasks() == []
    assert sorted(sql(own_server.url, "SELECT text FROM effect")) == [(text,) for text in [*texts, "afterwards"]]
    assert engine.health().database_error is None


def test_a_server_that_is_gone_is_waited_for(
    start: Callable[..., Engine], reasons: list[str], own_server: OwnServer
) -> None:
    sql(own_server.url, "CREATE ROLE dancer LOGIN SUPERUSER PASSWORD 'sesame'")
    handler = Blocking()
    with logged() as messages:
        engine = start(handler, database=own_server.url.replace("postgres:@", "dancer:sesame@"))
        engine.enqueue(receipt("runs"))
        handler.wait_begun("runs")

        own_server.stop()
        handler.let_go()
        with pytest.raises(DatabaseUnavailableError, match="out of reach; check that the server runs") as refused:
            engine.enqueue(receipt("refused"))
        eventually(lambda: engine.health().database_error)
        texts = [str(engine.health()), str(refused.value)]

        own_server.start()
        eventually(lambda: engine.health().database_error is None)
        engine.enqueue(receipt("accepted"))
        assert engine.wait_idle(WAIT_S)
    assert handler.begun == ["runs", "accepted"]
    assert engine.health().counters == {"done": 2, "dead": 0, "failed": 0, "stale": 0}
    assert reasons == ["start", "reconnect"]
    assert "database postgres at" in texts[0]
    assert "sesame" not in "".join([*texts, *messages])


@pytest.fixture
def connecting(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the engines' attempts to connect, by their threads' names."""
    attempts: Counter[str] = Counter()
    connect: Callable[..., Any] = peewee.Psycopg3Adapter.connect

    def counting(*given: Any, **options: Any) -> Any:
        attempts[threading.current_thread().name] += 1
        return connect(*given, **options)

    monkeypatch.setattr(peewee.Psycopg3Adapter, "connect", counting)
    return attempts


@pytest.mark.campaign
def test_a_server_that_is_gone_for_half_a_minute_costs_two_nodes_no_task_and_no_peace(
    start: Callable[..., Engine], reasons: list[str], own_server: OwnServer, connecting: Counter[str]
) -> None:
    """The gap is the scenario, so it is waited out."""
    sql(own_server.url, "CREATE TABLE effect (text TEXT)")
    handler = Blocking(patience_s=2 * GONE_S)

    def run(message: SendReceipt, ctx: TaskContext) -> None:
        handler(message, ctx)
        if message.text.startswith("effect"):
            with ctx.complete() as tx:
                tx.connection.execute("INSERT INTO effect VALUES (%s)", (message.text,))

    nodes = [start(run, lease=timedelta(seconds=LEASE_S)) for _ in range(2)]
    engine = nodes[0]
    ending, lasting = ["ends", "effect that ends", "in turn 1"], ["lasts", "effect that lasts"]
    engine.enqueue_many(receipt(text) for text in [*ending[:2], *lasting])
    engine.enqueue_many(receipt(f"in turn {number}", b"group") for number in (1, 2, 3))
    engine.enqueue(receipt("due meanwhile"), not_before=engine.clock.now_ns() + int(GONE_S / 2 * 1e9))
    handler.wait_begun(*ending, *lasting)

    with logged() as messages:
        own_server.stop()
        connecting.clear()
        gone_s = time.monotonic()
        handler.let_go(*ending, "in turn 2", "in turn 3", "due meanwhile")
        for part in range(1, 4):
            began_s = time.monotonic()
            with pytest.raises(DatabaseUnavailableError, match="out of reach; check that the server runs"):
                engine.enqueue(receipt("refused"))
            assert time.monotonic() - began_s < 1  # nobody's request waits for the server
            time.sleep(max(0.0, gone_s + part * GONE_S / 3 - time.monotonic()))
        assert all(node.health().database_error for node in nodes)
        attempts, said = connecting.copy(), len(messages)
        own_server.start()
        eventually(lambda: not any(node.health().database_error for node in nodes))
        handler.let_go()

        eventually(lambda: not engine.tasks())
        assert all(node.wait_idle(WAIT_S) for node in nodes)

    begun = Counter(handler.begun)
    assert begun.pop("effect that ends") == 2  # its transaction was refused, so it began anew
    texts = [*ending, *lasting, "in turn 2", "in turn 3", "due meanwhile"]
    assert begun == dict.fromkeys(set(texts) - {"effect that ends"}, 1)
    turns = [text for text in handler.begun if text.startswith("in turn")]
    assert turns == ["in turn 1", "in turn 2", "in turn 3"]
    effects = sql(own_server.url, "SELECT text FROM effect ORDER BY text")
    assert effects == [("effect that ends",), ("effect that lasts",)]
    assert not any(context.cancelled for context in handler.contexts.values())
    assert engine.dead_tasks() == []
    counters = Counter[str]()
    for node in nodes:
        counters.update(node.health().counters)
    assert counters == {"done": len(texts), "dead": 0, "failed": 1, "stale": 0}
    assert Counter(reasons)["reconnect"] == 2
    # Neither takes the other for gone, and neither is restless.
    errors = [message for message in messages if message.record["level"].name == "ERROR"]
    assert len(errors) == 2
    assert [message for message in messages if "is gone" in message or "joins anew" in message] == []
    beats = 2 * (GONE_S * 3 / LEASE_S + 1)
    assert attempts["callboard-scheduler"] <= 2 * (GONE_S / 4 + 10)  # each within 0.1 s at first, then within 4 s
    assert attempts["callboard-listener"] <= 2 * (GONE_S + 1)
    assert attempts["callboard-heartbeat"] <= beats
    assert said <= beats + 10


def test_a_handler_is_told_of_its_timeout_while_the_server_is_gone(
    make_engine: MakeEngine, callboard_clock: FakeClock, own_server: OwnServer
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler, timeout=timedelta(minutes=1))))
    engine.start()
    engine.enqueue(receipt("runs"))
    handler.wait_begun("runs")

    own_server.stop()
    callboard_clock.advance(timedelta(minutes=2))

    eventually(lambda: handler.contexts["runs"].cancelled)
    own_server.start()
    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert engine.tasks() == []


def test_a_server_with_no_connection_left_says_so(
    make_engine: MakeEngine, start: Callable[..., Engine], callboard_database: str
) -> None:
    """The limit of a role answers as that of the server does, which no superuser has to heed."""
    role = f"callboard_few_{os.getpid()}"
    sql(callboard_database, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 3")
    sql(callboard_database, f"GRANT CREATE ON SCHEMA public TO {role}")
    url = re.sub("//[^@/]*@?/", f"//{role}@/", callboard_database)
    handler = Scripted()
    engine = start(handler, database=url)
    try:
        with psycopg.connect(url), pytest.raises(DatabaseUnavailableError, match="has no connection left for us"):
            engine.enqueue(receipt("refused"))
        eventually(
            lambda: (
                sql(callboard_database, "SELECT count(*) FROM pg_stat_activity WHERE usename = ?", role)[0][0] < 3
            )
        )
        engine.enqueue(receipt("accepted"))
        assert engine.wait_idle(WAIT_S)
        assert handler.played == ["accepted"]
    finally:
        engine.stop()
        sql(callboard_database, f"DROP OWNED BY {role}")
        sql(callboard_database, f"DROP ROLE {role}")


# Others' transactions


def test_a_lock_on_one_row_holds_up_no_other(
    start: Callable[..., Engine], callboard_database: str, reasons: list[str]
) -> None:
    handler = Blocking()
    engine = start(handler, workers=300)
    engine.enqueue_many(receipt(str(number)) for number in range(256))
    handler.wait_count(256)
    [locked] = [task for task in engine.tasks(limit=256) if task.state == "running"][:1]
    with psycopg.connect(callboard_database) as host:
        host.execute("SELECT 1 FROM callboard_task WHERE id = %s FOR UPDATE", (locked.id,))
        handler.let_go()
        eventually(lambda: [task.id for task in engine.tasks(limit=256)] == [locked.id])
        engine.enqueue(receipt("next"))
        eventually(lambda: [task.id for task in engine.tasks(limit=256)] == [locked.id])
        assert engine.health().database_error is None
        host.rollback()
    assert engine.wait_idle(WAIT_S)
    assert engine.health().counters == {"done": 257, "dead": 0, "failed": 0, "stale": 0}
    assert reasons == ["start"]


@contextmanager
def raising(url: str, condition: str, event: str, when: str) -> Iterator[None]:
    """Have the server end transactions that do this."""
    sql(url, f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE {condition}; END $$")
    how = f"FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse()"
    sql(url, f"CREATE TRIGGER refuse BEFORE {event} ON callboard_task {how}")
    yield
    sql(url, "DROP TRIGGER refuse ON callboard_task")


@pytest.mark.parametrize("condition", ["deadlock_detected", "serialization_failure"])
@pytest.mark.parametrize("step", ["claim", "settle"])
def test_a_transaction_that_is_ended_for_anothers_is_repeated(
    condition: str, step: str, start: Callable[..., Engine], callboard_database: str
) -> None:
    handler = Blocking()
    engine = start(handler)
    if step == "settle":
        engine.enqueue(receipt("read"))
        handler.wait_begun("read")
    event, when = ("UPDATE", "NEW.state = 'running'") if step == "claim" else ("DELETE", "TRUE")
    with raising(callboard_database, condition, event, when):
        handler.let_go()
        engine.enqueue(receipt("read" if step == "claim" else "other"))
        eventually(lambda: engine.health().database_error)
        assert "ended this transaction for another's; try again" in str(engine.health().database_error)
    assert engine.wait_idle(WAIT_S)
    assert handler.begun.count("read") == 1
    assert engine.health().counters["failed"] == engine.health().counters["dead"] == 0
    assert engine.health().database_error is None


def test_a_handler_whose_transaction_is_ended_for_anothers_runs_again(
    start: Callable[..., Engine], callboard_database: str
) -> None:
    """By a real deadlock."""
    sql(callboard_database, "CREATE TABLE effect AS SELECT * FROM (VALUES (1, 0), (2, 0)) AS rows (id, done)")
    ours, theirs = threading.Event(), threading.Event()
    refusals: list[str] = []

    def complete(message: SendReceipt, ctx: TaskContext) -> None:
        try:
            with ctx.complete() as tx:
                tx.connection.execute("UPDATE effect SET done = done + 1 WHERE id = 1")
                ours.set()
                assert theirs.wait(WAIT_S)
                tx.connection.execute("UPDATE effect SET done = done + 1 WHERE id = 2")
        except DatabaseUnavailableError as error:
            refusals.append(str(error))
            raise

    engine = start(complete)
    with psycopg.connect(callboard_database) as rival:
        rival.execute("SET deadlock_timeout = '1h'")  # so that it is not the one to notice
        rival.execute("UPDATE effect SET done = 10 WHERE id = 2")
        engine.enqueue(receipt("effect"))
        assert ours.wait(WAIT_S)
        theirs.set()
        rival.execute("UPDATE effect SET done = 10 WHERE id = 1")
    eventually(lambda: refusals)
    assert "ended this transaction for another's; try again (deadlock detected)" in refusals[0]
    eventually(lambda: engine.tasks()[0].state == "pending")
    assert engine.pull_in(receipt("effect"), not_later_than_ns=0)
    eventually(lambda: not engine.tasks())
    assert engine.dead_tasks() == []
    assert sql(callboard_database, "SELECT done FROM effect ORDER BY id") == [(11,), (11,)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_no_default_of_the_server_makes_our_transactions_fail(
    level: str, make_engine: MakeEngine, callboard_database: str
) -> None:
    [(name,)] = sql(callboard_database, "SELECT current_database()")
    sql(callboard_database, f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
    engines = [make_engine(Plugin(receipts(Scripted(), retry=ONCE)), clock=SystemClock()) for _ in range(3)]
    with logged("WARNING") as warnings:
        for engine in engines:
            engine.start()
        for first in range(0, 300, 30):
            for number in range(first, first + 30, 10):
                group = b"group %d" % (number % 7)
                engines[first % 3].enqueue_many(receipt(str(number + each), group) for each in range(10))
        eventually(lambda: not engines[0].tasks(limit=1))
        assert all(engine.wait_idle(WAIT_S) for engine in engines)
    assert warnings == []
    assert sum(engine.health().counters["done"] for engine in engines) == 300
