"""Rows that no engine writes, but plain SQL may: none of them stops the others, and none is lost."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import RECEIPT, MakeEngine, Plugin, Scripted, receipt, receipts
from tests.engine.messages import SendReceipt
from tests.engine.rows import path_of, payload, sql, write_by_hand

from callboard import Engine, EnqueueStatus, RescheduleAt, TaskContext, TaskKind
from callboard._clock import NEVER_NS
from callboard.testing import FakeClock

LEAST, MOST = -(2**63), 2**63 - 1


@pytest.fixture
def sent() -> Scripted:
    return Scripted()


@pytest.fixture
def engine(make_engine: MakeEngine, sent: Scripted) -> Engine:
    engine = make_engine(Plugin(receipts(sent)))
    engine.migrate()
    return engine


def write_bytes(url: str, column: str, text: bytes) -> int:
    """Write a receipt with bytes for a text, as a program may that binds them without a look."""
    task_id = write_by_hand(url, RECEIPT, payload(receipt("odd")))
    sql(url, f"UPDATE callboard_task SET {column} = CAST(? AS TEXT) WHERE id = ?", text, task_id)
    return task_id


@pytest.mark.parametrize("token", [MOST, MOST - 1, LEAST, -1, 2**62])
def test_any_token_can_be_counted_up(engine: Engine, sent: Scripted, callboard_database: str, token: int) -> None:
    write_by_hand(callboard_database, RECEIPT, payload(receipt("odd")), token=token)
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert sorted(sent.played) == ["odd", "read"]


def test_any_token_can_be_counted_up_by_a_rescue(engine: Engine, sent: Scripted, callboard_database: str) -> None:
    write_by_hand(callboard_database, RECEIPT, payload(receipt("odd")), token=MOST, state="running")

    engine.run_due()

    assert sent.played == ["odd"]


def test_any_number_of_requests_can_be_counted_up(engine: Engine, callboard_database: str) -> None:
    task_id = write_by_hand(callboard_database, RECEIPT, payload(receipt("odd")), requests=MOST)

    assert engine.enqueue(receipt("odd")) == (task_id, EnqueueStatus.MERGED)


def test_any_version_of_a_group_can_be_counted_up(engine: Engine, callboard_database: str) -> None:
    sql(callboard_database, "INSERT INTO callboard_group (group_id, version) VALUES (?, ?)", b"g", MOST)

    engine.group(b"g").consent("denied")

    state = engine.group(b"g").state()
    assert state is not None
    assert state.consent == "denied"


def test_attempts_below_0_do_not_put_the_end_off(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    failing = make_engine(Plugin(receipts(Scripted(RuntimeError("boom")))))
    failing.migrate()
    policy = {"max_attempts": 2, "expires_at_ns": NEVER_NS}
    write_by_hand(callboard_database, RECEIPT, payload(receipt("odd")), attempts=LEAST, outages=LEAST, **policy)

    for _ in range(2):
        failing.run_due()
        callboard_clock.advance(timedelta(minutes=1))

    assert [(dead.reason, dead.attempts) for dead in failing.dead_tasks()] == [("exhausted", 2)]


def test_a_recurring_row_that_expires_before_it_was_created_is_renewed(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    def ask_again(message: SendReceipt, ctx: TaskContext) -> RescheduleAt:
        sql(callboard_database, "UPDATE callboard_task SET requests = 7")
        return RescheduleAt(timedelta(hours=1))

    engine = make_engine(Plugin(TaskKind(SendReceipt, ask_again, recurring=True)))
    engine.migrate()
    columns = {"max_attempts": 20, "created_at_ns": MOST, "expires_at_ns": LEAST}
    write_by_hand(callboard_database, RECEIPT, payload(receipt("odd")), requests=6, **columns)

    engine.run_due()

    [task] = engine.tasks()
    assert task.created_at_ns == task.expires_at_ns == callboard_clock.now_ns()


@pytest.mark.parametrize("group_id", [None, b"g"])
def test_a_parked_row_whose_group_nobody_runs_is_found(
    engine: Engine, sent: Scripted, callboard_database: str, group_id: bytes | None
) -> None:
    """A process that ends between the last outcome of a group and its next claim leaves such rows."""
    engine.enqueue(receipt("behind"), group_id=group_id)
    sql(callboard_database, "UPDATE callboard_task SET parked = 1")

    engine.run_due()

    assert sent.played == ["behind"]


# Texts that are not UTF-8, which SQLite takes


@pytest.mark.parametrize("column", ["origin", "last_error"])
def test_a_row_whose_text_is_not_utf_8_runs(
    engine: Engine, sent: Scripted, callboard_database: str, column: str
) -> None:
    write_bytes(callboard_database, column, b"caf\xe9")
    assert getattr(engine.tasks()[0], column) == "caf\\xe9"

    engine.run_due()

    assert sent.played == ["odd"]


@pytest.mark.parametrize("alone", [0, 1])
def test_a_row_whose_kind_is_not_utf_8_is_in_nobodys_way(
    engine: Engine, sent: Scripted, callboard_database: str, alone: int
) -> None:
    task_id = write_bytes(callboard_database, "kind", b"caf\xe9")
    sql(callboard_database, "UPDATE callboard_task SET alone = ?", alone)
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert sent.played == ["read"]
    [task] = engine.tasks()
    assert (task.id, task.kind) == (task_id, "caf\\xe9")
    engine.cancel(task_id)
    assert [dead.kind for dead in engine.dead_tasks()] == ["caf\\xe9"]


def test_a_connection_reads_texts_as_before_after_one_that_is_not_utf_8(
    engine: Engine, callboard_database: str
) -> None:
    write_bytes(callboard_database, "origin", b"caf\xe9")
    with engine.transaction() as tx:
        tx.connection.text_factory = bytes
        tx.enqueue(receipt("odd"))
        assert tx.connection.text_factory is bytes
        tx.connection.text_factory = str
    with closing(sqlite3.connect(path_of(callboard_database))) as connection:
        assert connection.execute("SELECT hex(origin) FROM callboard_task").fetchall() == [("636166E9",)]


# What a kind's own code does with such a row


@pytest.mark.parametrize("error", [RuntimeError("half a pair: \udc80"), SystemExit(3), RecursionError()])
def test_a_kind_whose_group_id_raises_anything_at_all_dead_letters_the_row(
    make_engine: MakeEngine, callboard_database: str, error: BaseException
) -> None:
    def group_id(message: Any) -> bytes | None:
        if message.text == "odd":
            raise error
        return None

    engine = make_engine(Plugin(TaskKind(SendReceipt, sent := Scripted(), group_id=group_id)))
    engine.migrate()
    write_by_hand(callboard_database, RECEIPT, payload(receipt("odd")))
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert sent.played == ["read"]
    [dead] = engine.dead_tasks()
    assert dead.reason == "malformed"
    assert dead.last_error == (str(error).replace("\udc80", "\\udc80") or type(error).__name__)
