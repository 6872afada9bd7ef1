"""What the how-to shows is run here: it commits both or neither, survives kills, and is misused."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.shown import BLOCKING_MAILER, REPORT, Page, Processes, processes, said

__all__ = ["processes"]

PAGE = Page("embed-sqlalchemy")


def orders(folder: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        return connection.execute("SELECT customer, receipts FROM orders ORDER BY id").fetchall()


def test_it_runs_as_it_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path)

    assert processes.run("shop.py") == ["sent: receipt to ada"]
    assert orders(tmp_path) == [("ada", 1)]


def test_it_runs_as_it_is_shown_with_asyncio(processes: Processes, tmp_path: Path) -> None:
    for needed in ("aiosqlite", "greenlet"):
        pytest.importorskip(needed, reason="needs aiosqlite and greenlet")
    PAGE.write(tmp_path)

    assert processes.run("shop_async.py") == ["sent: receipt to ben"]
    assert orders(tmp_path) == [("ben", 1)]


CRASHES = """
import os, sys, threading
from google.protobuf.wrappers_pb2 import Int64Value
from models import Base, Order, database, new_session
from shop import engine, take_order

if sys.argv[1] == "before the commit":
    Base.metadata.create_all(database)
    engine.migrate()
    with new_session.begin() as session:
        order = Order(customer="nobody")
        session.add(order)
        session.flush()
        engine.enqueue(Int64Value(value=order.id), connection=session)
        os._exit(0)
with engine:
    if sys.argv[1] == "in the handler":
        take_order("blocks")
        threading.Event().wait()
    assert engine.wait_idle(20)
    assert (engine.tasks(), engine.dead_tasks()) == ([], [])
"""


def test_a_crash_leaves_both_or_neither_and_counts_a_receipt_once(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, crashes=CRASHES, mailer=BLOCKING_MAILER)
    processes.run("crashes.py", "before the commit")
    assert orders(tmp_path) == []

    crashing = processes.start("crashes.py", "in the handler")
    said(crashing, "^blocked in ")
    crashing.kill()
    crashing.wait()
    assert orders(tmp_path) == [("blocks", 0)]

    (tmp_path / "go_on").touch()
    assert processes.run("crashes.py", "afterwards") == ["sent: blocks"]
    assert orders(tmp_path) == [("blocks", 1)]


MISTAKES = """
import os
import peewee, receipts, sqlalchemy
from google.protobuf.wrappers_pb2 import Int64Value
from mailer import Mailer
from models import Base, Order, database, new_session
from report import reported
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from callboard import Done, Engine, TaskKind, hookimpl

MESSAGE = Int64Value(value=1)
IMPATIENT = {"connect_args": {"timeout": 0.1}}
Base.metadata.create_all(database)


class WritesInside:
    @hookimpl
    def callboard_task_kinds(self):
        return [TaskKind(Int64Value, self.handle)]

    def handle(self, message, ctx):
        impatient = sqlalchemy.create_engine("sqlite:///shop.db", **IMPATIENT)
        with ctx.complete(Done()), Session(impatient) as session:
            session.add(Order(customer="ada"))
            session.commit()


engine = Engine(
    peewee.SqliteDatabase("shop.db", timeout=0.1, pragmas={"journal_mode": "wal"}), plugins=[WritesInside()]
)
engine.migrate()
with reported(), new_session.begin() as session:
    session.add(Order(customer="ada"))
    session.flush()
    engine.enqueue(MESSAGE)
engine.enqueue(MESSAGE)
engine.run_due()
[task] = engine.tasks()
print([line for line in task.last_error.splitlines() if line.startswith("sqlalchemy.exc.")][0])
with reported(), Session(sqlalchemy.create_engine("sqlite:///other.db")) as session:
    engine.enqueue(MESSAGE, connection=session)
with reported():
    engine.enqueue(MESSAGE, connection=AsyncSession())

with new_session() as session:
    engine.enqueue(Int64Value(value=2), connection=session)
print(len(engine.tasks()))


def read_then_write():
    with database.begin() as connection:
        connection.execute(sqlalchemy.select(Order)).all()
        engine.enqueue(MESSAGE)  # as the engine does all the time, somebody commits
        connection.execute(sqlalchemy.insert(Order), {"customer": "ben", "receipts": 0})


def begins_by_itself(connection, _):
    connection.isolation_level = None


engine.cancel(task.id)
with reported():
    read_then_write()
database.dispose()
sqlalchemy.event.listen(database, "connect", begins_by_itself)
sqlalchemy.event.listen(database, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
try:
    read_then_write()
except sqlalchemy.exc.OperationalError as error:
    print("sqlalchemy.exc.OperationalError:", str(error).splitlines()[0])
"""


def test_each_mistake_has_the_error_that_is_shown(processes: Processes, tmp_path: Path) -> None:
    pytest.importorskip("greenlet", reason="needs greenlet")
    PAGE.write(tmp_path, mistakes=MISTAKES, report=REPORT)

    # That its other connections are left open is one mistake more.
    lines = processes.run("mistakes.py", warnings="error,ignore::ResourceWarning")

    locked, inside, elsewhere, asynchronous, tasks, fine, upgraded = lines
    assert (tasks, fine) == ("1", "no error")
    for error in (locked, inside, elsewhere, asynchronous, upgraded):
        assert PAGE.tells_of(error), error
