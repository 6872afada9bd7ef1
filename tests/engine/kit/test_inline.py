"""`InlineEngine`: what is enqueued has run when the call returns, and all that happens is real."""

import asyncio
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import peewee
import pytest
from tests.engine.acting import WAIT_S, MakeEngine, Plugin, Scripted, receipt, receipts, text_of, thread, threads
from tests.engine.either_store import callboard_database

from callboard import Discard, Engine, EngineStateError, RescheduleAt, TaskContext
from callboard.testing import InlineEngine, assert_enqueued, run_due

__all__ = ["callboard_database"]


def test_it_has_run_when_enqueue_returns(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())), inline=True)
    assert isinstance(engine, InlineEngine)

    answer = engine.enqueue(receipt("one"))

    assert (answer.status, sent.played, engine.tasks()) == ("inserted", ["one"], [])
    engine.enqueue_many([receipt("two"), receipt("three")])
    assert sent.played == ["one", "two", "three"]


def test_in_a_transaction_it_runs_after_the_commit_and_never_after_a_rollback(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())), inline=True)

    with engine.transaction() as tx:
        tx.enqueue(receipt("one"))
        with engine.transaction():
            engine.enqueue(receipt("two"))
        engine.wake()
        assert sent.played == []
    assert sorted(sent.played) == ["one", "two"]

    with pytest.raises(ZeroDivisionError), engine.transaction() as tx:
        tx.enqueue(receipt("undone"))
        raise ZeroDivisionError
    engine.wake()
    assert sorted(sent.played) == ["one", "two"]


def test_its_outcomes_are_the_real_ones(make_engine: MakeEngine) -> None:
    lines = Scripted(ZeroDivisionError("oops"), RescheduleAt(timedelta(hours=1)), Discard("no use"))
    engine = make_engine(Plugin(receipts(lines)), inline=True)

    engine.enqueue(receipt("read"))

    [failed] = assert_enqueued(engine, receipt("read"), due=timedelta(seconds=2))
    assert failed.attempts == 1 and failed.last_error is not None and "oops" in failed.last_error
    assert run_due(engine, until=timedelta(seconds=2)) == 1
    assert_enqueued(engine, receipt("read"), due=timedelta(hours=1))
    assert run_due(engine, until=timedelta(hours=1)) == 1
    assert [dead.reason for dead in engine.dead_tasks()] == ["discarded"]


def test_what_a_handler_enqueues_runs_after_it(make_engine: MakeEngine) -> None:
    def send(message: Any, ctx: TaskContext) -> None:
        order.append("begin")
        ctx.engine.enqueue(thread("now"))
        assert ctx.engine.run_due() == 0
        ctx.enqueue(thread("with the outcome"))
        order.append("end")

    order: list[str] = []
    engine = make_engine(
        Plugin(receipts(send), threads(lambda message, ctx: order.append(text_of(message)))), inline=True
    )

    engine.enqueue(receipt("read"))

    assert order == ["begin", "end", "now", "with the outcome"]


def test_a_handler_may_wait_for_a_thread_that_enqueues(make_engine: MakeEngine) -> None:
    def send(message: Any, ctx: TaskContext) -> None:
        another = threading.Thread(target=ctx.engine.enqueue, args=[thread("meanwhile")])
        another.start()
        another.join(WAIT_S)
        assert not another.is_alive()

    engine = make_engine(Plugin(receipts(send), threads(followed := Scripted())), inline=True)

    engine.enqueue(receipt("read"))

    assert followed.played == ["meanwhile"]


def test_what_is_enqueued_at_the_very_end_of_a_pass_is_run(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_and_hear_of_another(engine: Engine) -> int:
        called = run(engine)
        if not late.ident:
            late.start()
            late.join(WAIT_S)
        return called

    engine = make_engine(Plugin(receipts(sent := Scripted())), inline=True)
    late = threading.Thread(target=engine.enqueue, args=[receipt("late")])
    run = Engine.run_due
    monkeypatch.setattr(Engine, "run_due", run_and_hear_of_another)

    engine.enqueue(receipt("first"))

    assert sent.played == ["first", "late"]


def test_a_host_may_start_it_and_wait_for_it(make_engine: MakeEngine) -> None:
    reasons: list[str] = []

    def reconcile(engine: Any, reason: str) -> None:
        reasons.append(reason)
        engine.enqueue(receipt("lost"))

    plugin = Plugin(receipts(sent := Scripted()), reconcile=reconcile)
    before = threading.active_count()
    with make_engine(plugin, inline=True) as engine:
        assert sent.played == ["lost"]
        engine.enqueue(receipt("read"))
        assert engine.wait_idle(timeout=5)
        assert threading.active_count() == before
    assert (sent.played, reasons) == (["lost", "read"], ["start"])
    with pytest.raises(EngineStateError, match="stopped"):
        engine.enqueue(receipt("too late"))


def test_coroutines_run_as_well(make_engine: MakeEngine) -> None:
    async def send(message: Any, ctx: TaskContext) -> None:
        await asyncio.sleep(0)
        sent.append(message.text)
        if message.text == "one":
            ctx.engine.enqueue(receipt("two"))

    async def host() -> None:
        async with make_engine(Plugin(receipts(send)), inline=True) as engine:
            await engine.aenqueue(receipt("one"))
            assert sent == ["one", "two"]

    sent: list[str] = []
    asyncio.run(host())


def test_one_that_does_not_execute_runs_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())), inline=True, execute=False)
    with engine:
        engine.enqueue(receipt("read"))
    assert sent.played == []


def test_on_a_hosts_own_connection_it_runs_after_the_hosts_commit(tmp_path: Path) -> None:
    database = peewee.SqliteDatabase(str(tmp_path / "host.db"))
    engine = InlineEngine(f"sqlite:///{tmp_path / 'host.db'}", plugins=[Plugin(receipts(sent := Scripted()))])
    engine.migrate()

    with database.atomic():
        engine.enqueue(receipt("by peewee"), connection=database)
        assert sent.played == []
    assert sent.played == ["by peewee"]
    database.close()

    connection = sqlite3.connect(tmp_path / "host.db")
    connection.execute("BEGIN")
    engine.enqueue(receipt("by sqlite3"), connection=connection)
    connection.commit()
    connection.close()
    assert sent.played == ["by peewee"]
    engine.wake()
    assert sent.played == ["by peewee", "by sqlite3"]
    engine.stop()
