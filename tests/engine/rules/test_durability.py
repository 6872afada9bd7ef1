"""Rules 1 and 2: what was accepted is in the database, in the transaction of whoever enqueued it."""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
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
    receipt,
    receipts,
    thread,
)
from tests.engine.rows import path_of, payload, sql, write_by_hand

from callboard import (
    DatabaseUnavailableError,
    Engine,
    EnqueueStatus,
    UnknownKindError,
)
from callboard._codec import hash_of

IDS = "SELECT id FROM callboard_task ORDER BY id"


# Rule 1


def test_rule_01_enqueue_returns_after_the_row_is_committed(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    answer = engine.enqueue(receipt("read"))

    assert answer.status == EnqueueStatus.INSERTED
    assert sql(callboard_database, "SELECT id, data FROM callboard_task") == [
        (answer.task_id, payload(receipt("read")))
    ]


def test_rule_01_aenqueue_returns_after_the_row_is_committed(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    answer = asyncio.run(engine.aenqueue(receipt("read")))

    assert sql(callboard_database, IDS) == [(answer.task_id,)]


def test_rule_01_enqueue_joins_the_threads_transaction(make_engine: MakeEngine, callboard_database: str) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    with engine.transaction() as tx:
        tx.enqueue(receipt("by the transaction"))
        engine.enqueue(receipt("by the engine"))
        engine.enqueue_many([receipt("one of many"), receipt("another")])
        engine.group(b"g").leave_requested("bo", b"message")
        assert sql(callboard_database, IDS) == []
        assert sql(callboard_database, "SELECT * FROM callboard_pending_remove") == []

    assert len(sql(callboard_database, IDS)) == 4
    assert len(sql(callboard_database, "SELECT * FROM callboard_pending_remove")) == 1


def test_rule_01_a_transaction_that_raises_leaves_nothing(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    with pytest.raises(ZeroDivisionError), engine.transaction() as tx:
        tx.enqueue(receipt("read"))
        engine.enqueue(receipt("seen"))
        tx.group(b"g").created("ann", members=["bo"])
        raise ZeroDivisionError

    assert sql(callboard_database, IDS) == []
    assert engine.group(b"g").state() is None


def test_rule_01_an_inner_transaction_that_raises_takes_only_its_own_along(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())))

    with engine.transaction():
        engine.enqueue(receipt("outer"))
        with pytest.raises(ZeroDivisionError), engine.transaction():
            engine.enqueue(receipt("inner"))
            raise ZeroDivisionError

    engine.run_due()
    assert sent.played == ["outer"]


def test_rule_01_enqueue_joins_a_transaction_of_the_hosts_own_database(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    host = peewee.SqliteDatabase(path_of(callboard_database))
    engine = make_engine(Plugin(receipts(Scripted())), database=host)
    engine.migrate()

    with host.atomic() as transaction:
        engine.enqueue(receipt("read"))
        assert sql(callboard_database, IDS) == []
        transaction.rollback()
    assert sql(callboard_database, IDS) == []
    with host.atomic():
        engine.enqueue(receipt("read"))
    assert len(sql(callboard_database, IDS)) == 1
    host.close()


def test_rule_01_the_transaction_of_another_thread_is_not_joined(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    seen: list[Any] = []
    other = threading.Thread(target=lambda: seen.append(engine.tasks()))

    with engine.transaction():
        engine.enqueue(receipt("read"))
        other.start()
        other.join(WAIT_S)

    assert seen == [[]]
    assert len(engine.tasks()) == 1


def test_rule_01_what_one_engine_accepted_another_one_runs(make_engine: MakeEngine) -> None:
    plugin = Plugin(receipts(sent := Scripted()))
    make_engine(plugin, execute=False).enqueue(receipt("read"))

    make_engine(plugin).run_due()

    assert sent.played == ["read"]


def test_rule_01_constructing_an_engine_connects_to_nothing(tmp_path: Path) -> None:
    Engine(f"sqlite:///{tmp_path / 'callboard.db'}", plugins=[])
    Engine(f"sqlite:///{tmp_path / 'no such folder' / 'callboard.db'}", plugins=[])

    assert list(tmp_path.iterdir()) == []


# Rule 2 (tests/engine/test_host_connections.py has each library's transactions)


@pytest.fixture
def host(make_engine: MakeEngine, callboard_database: str) -> Iterator[sqlite3.Connection]:
    """Return a connection of the host's own, which does not wait for locks, to a migrated database."""
    make_engine().migrate()
    with closing(sqlite3.connect(path_of(callboard_database), timeout=0)) as connection:
        connection.execute("CREATE TABLE note (text TEXT)")
        yield connection


def test_rule_02_a_task_on_the_hosts_connection_appears_if_the_host_commits(
    make_engine: MakeEngine, callboard_database: str, host: sqlite3.Connection
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    host.execute("INSERT INTO note VALUES ('the host was here')")
    engine.enqueue(receipt("read"), connection=host)
    assert sql(callboard_database, IDS) == []
    host.commit()

    assert len(sql(callboard_database, IDS)) == 1


def test_rule_02_a_task_on_the_hosts_connection_does_not_appear_if_the_host_rolls_back(
    make_engine: MakeEngine, callboard_database: str, host: sqlite3.Connection
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    host.execute("INSERT INTO note VALUES ('the host was here')")
    engine.enqueue_many([receipt("read"), receipt("seen")], connection=host)
    host.rollback()

    assert sql(callboard_database, IDS) == []


def test_rule_02_a_started_engine_finds_a_task_that_nobody_woke_it_for(
    make_engine: MakeEngine, host: sqlite3.Connection
) -> None:
    handler = Blocking()
    with make_engine(Plugin(receipts(handler))) as engine:
        assert engine.wait_idle(WAIT_S)
        engine.enqueue(receipt("read"), connection=host)
        host.commit()
        handler.wait_begun("read")  # by the poll: SQLite's own driver has no commit hook
        handler.let_go()


def test_rule_02_the_host_may_wake_the_engine_itself(make_engine: MakeEngine, host: sqlite3.Connection) -> None:
    with make_engine(Plugin(receipts(sent := Scripted()))) as engine:
        engine.enqueue(receipt("read"), connection=host)
        host.commit()
        engine.wake()
        assert engine.wait_idle(WAIT_S)

    assert sent.played == ["read"]


@pytest.mark.parametrize("isolation_level", ["", "DEFERRED", "IMMEDIATE", None])
def test_rule_02_an_enqueue_raises_no_constraint_error_whoever_comes_between(
    make_engine: MakeEngine, callboard_database: str, host: sqlite3.Connection, isolation_level: Any
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    host.isolation_level = isolation_level
    data = payload(receipt("b"))
    tries: list[str] = []

    with closing(sqlite3.connect(path_of(callboard_database), timeout=0)) as rival:

        def come_between(statement: str) -> None:
            if statement.startswith("INSERT INTO callboard_task"):
                tries.append(statement)
                with suppress(sqlite3.OperationalError), rival:  # locked: the rival comes too late
                    rival.execute(
                        "INSERT INTO callboard_task (kind, identity, data, data_hash) VALUES (?, ?, ?, ?)",
                        (RECEIPT, hash_of(data), data, hash_of(data)),
                    )

        host.set_trace_callback(come_between)
        answers = engine.enqueue_many([receipt("a"), receipt("b"), receipt("c")], connection=host)
        host.commit()
        host.set_trace_callback(None)

    assert tries
    rows = sql(callboard_database, "SELECT id, data FROM callboard_task")
    assert {answer.task_id: payload(receipt(text)) for answer, text in zip(answers, "abc", strict=True)} == dict(
        rows
    )


def test_rule_02_one_enqueue_raises_no_constraint_error_either(
    make_engine: MakeEngine, callboard_database: str, host: sqlite3.Connection
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    rivals: list[int] = []

    def come_between(statement: str) -> None:
        if statement.startswith("INSERT INTO callboard_task"):
            rivals.append(write_by_hand(callboard_database, RECEIPT, payload(receipt("read"))))

    host.set_trace_callback(come_between)
    answer = engine.enqueue(receipt("read"), connection=host)
    host.commit()

    assert answer == (rivals[0], EnqueueStatus.MERGED)


def test_rule_02_a_refused_enqueue_leaves_the_hosts_transaction_as_it_was(
    make_engine: MakeEngine, callboard_database: str, host: sqlite3.Connection
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    host.execute("INSERT INTO note VALUES ('before')")
    with pytest.raises(UnknownKindError):
        engine.enqueue(thread("nobody's"), connection=host)
    with pytest.raises(UnknownKindError):
        engine.enqueue_many([receipt("read"), thread("nobody's")], connection=host)
    host.execute("INSERT INTO note VALUES ('after')")
    host.commit()

    assert sql(callboard_database, "SELECT text FROM note") == [("before",), ("after",)]
    assert sql(callboard_database, IDS) == []


def test_rule_02_a_merge_or_a_conflict_leaves_the_hosts_transaction_as_it_was(
    make_engine: MakeEngine, callboard_database: str, host: sqlite3.Connection
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    live = engine.enqueue(receipt("read"), key="k")

    host.execute("INSERT INTO note VALUES ('before')")
    assert engine.enqueue(receipt("read"), key="k", connection=host) == (live.task_id, EnqueueStatus.MERGED)
    assert engine.enqueue(receipt("seen"), key="k", connection=host) == (live.task_id, EnqueueStatus.CONFLICT)
    host.commit()

    assert sql(callboard_database, "SELECT text FROM note") == [("before",)]
    assert sql(callboard_database, "SELECT data FROM callboard_task") == [(payload(receipt("read")),)]


def test_rule_02_an_enqueue_waits_for_the_write_lock_no_longer_than_the_hosts_connection_does(
    make_engine: MakeEngine, callboard_database: str, host: sqlite3.Connection
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    host.isolation_level = None
    host.execute("BEGIN")
    with closing(sqlite3.connect(path_of(callboard_database), isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailableError, match="the database of connection= is locked"):
            engine.enqueue(receipt("read"), connection=host)
        rival.execute("ROLLBACK")

    assert host.in_transaction
    engine.enqueue(receipt("read"), connection=host)
    host.execute("COMMIT")
    assert len(sql(callboard_database, IDS)) == 1


def test_rule_02_two_bulk_enqueues_of_the_same_tasks_in_opposite_order_do_not_deadlock(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.migrate()
    messages = [receipt(str(number)) for number in range(1_200)]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(engine.enqueue_many, [messages, messages[::-1]]))

    statuses = Counter(answer.status for batch in answers for answer in batch)
    assert statuses == {EnqueueStatus.INSERTED: 1_200, EnqueueStatus.MERGED: 1_200}


def test_rule_02_bulk_enqueues_are_written_in_their_order(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    texts = [str(number) for number in range(1_200)]  # more than one statement takes

    answers = engine.enqueue_many([receipt(text) for text in texts])

    rows = sql(callboard_database, "SELECT id, data FROM callboard_task ORDER BY id")
    assert rows == [(answer.task_id, payload(receipt(text))) for answer, text in zip(answers, texts, strict=True)]
