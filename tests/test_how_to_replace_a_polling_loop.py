"""What the how-to shows is run here: the change over, a kill, and what both programs ask of SQLite, counted."""

import re
from pathlib import Path

from tests import pages
from tests.shown import BLOCKING_MAILER, REPORT, Page, Processes, processes, said

__all__ = ["processes"]

PAGE = Page("replace-a-polling-loop")

LEAVE = """
import sqlite3
from contextlib import closing
import before

with closing(sqlite3.connect("shop.db")) as connection:
    connection.execute(before.ORDERS)
    for customer in ("ada", "blocks"):
        before.take_order(connection, customer)
"""


def test_what_the_loop_left_is_done_by_the_engine_even_if_that_is_killed(
    processes: Processes, tmp_path: Path
) -> None:
    PAGE.write(tmp_path, mailer=BLOCKING_MAILER)
    processes.run("-c", LEAVE)

    killed = processes.start("after.py")
    said(killed, "^blocked in ")
    killed.kill()
    killed.wait()
    (tmp_path / "go_on").touch()
    said(processes.start("after.py"), "^sent: blocks$")


COUNT = """
import functools, sqlite3, threading
from contextlib import closing
from datetime import timedelta

import callboard
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

LOOK = "PRAGMA data_version"
RECONCILE = "SELECT id FROM orders WHERE receipt_sent = 0"
seen, changed, connect = [], threading.Condition(), sqlite3.connect


def see(statement):
    with changed:
        again = "RETURNING" in statement and seen[-1:] == [statement]  # reported once more for each row
        if not again and not statement.startswith("--"):  # these are the triggers'
            seen.append(statement)
        changed.notify_all()


def traced(*args, **options):
    connection = connect(*args, **options)
    connection.set_trace_callback(see)
    return connection


def wait_for(statement, count):
    with changed:
        assert changed.wait_for(lambda: seen.count(statement) >= count, 20), seen


def look():
    wait_for(LOOK, seen.count(LOOK) + 2)  # the second one began after this


def tell():
    with changed:
        print(sum(statement != LOOK for statement in seen))
        seen.clear()


class Mailer:
    calls, away = 0, False

    def send(self, customer):
        Mailer.calls += 1
        if Mailer.away:
            raise ConnectionError


sqlite3.connect = traced
clock = FakeClock()
callboard.Engine = functools.partial(callboard.Engine, clock=clock)
SqliteStore.poll_interval_s = 0.005  # or it would take a while to see that the engine rests
__import__("mailer").Mailer = Mailer
import before, after, receipts

with closing(sqlite3.connect("shop.db")) as connection:
    connection.execute(before.ORDERS)
    seen.clear()
    for _ in range(24 * 3600 // before.PAUSE_S):
        before.poll(connection, Mailer())
    tell()
    for number in range(100):
        before.take_order(connection, str(number))
        before.poll(connection, Mailer())
    tell()
    before.take_order(connection, "waits")
    Mailer.calls, Mailer.away = 0, True
    for _ in range(3600 // before.PAUSE_S):
        before.poll(connection, Mailer())
    print(Mailer.calls)
    Mailer.away = False
    before.poll(connection, Mailer())

    with after.engine as engine:
        assert engine.wait_idle(20)
        for _ in range(3):  # the first ones find what this very start wrote
            look()
        seen.clear()
        for _ in range(24):
            clock.advance(timedelta(hours=1))
            look()
        wait_for(RECONCILE, 3)  # of the day's four rounds; the start had reconciled just before the first
        look()
        tell()
        for number in range(100):
            after.take_order(connection, str(number))
        assert engine.wait_idle(20)
        tell()

    made = callboard.Engine("sqlite:///shop.db", plugins=[receipts], services={Mailer: Mailer()})
    after.engine = made
    made.run_due()  # it reconciles, and here nothing waits for that yet
    after.take_order(connection, "waits")
    Mailer.calls, Mailer.away = 0, True
    began_ns = clock.now_ns()
    while True:
        made.run_due()
        [task] = made.tasks()
        if task.next_attempt_at_ns >= began_ns + 3600 * 10**9:
            break
        clock.advance(timedelta(microseconds=(task.next_attempt_at_ns - clock.now_ns()) / 1000 + 1))
    print(Mailer.calls)
    made.stop()
"""


def figures() -> list[int]:
    """Return the figures of the page's table, those of the loop before those of Callboard."""
    text = pages.read("docs/how-to/replace-a-polling-loop.md")
    rows = re.findall(r"^\| [a-z].+ \| \D*([\d,]+) \| \D*([\d,]+) \|$", text, re.MULTILINE)
    return [int(row[column].replace(",", "")) for column in (0, 1) for row in rows]


def test_the_queries_are_as_many_as_it_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, count=COUNT)

    counted = [int(line) for line in processes.run("count.py")]

    day, order, attempts, engines_day, engines_order, engines_attempts = figures()
    assert counted[0] == day
    assert counted[1] == 100 * order
    assert counted[2] == attempts
    assert counted[3] < engines_day
    assert counted[4] < 100 * engines_order
    assert counted[5] == engines_attempts


MISTAKES = """
import sqlite3
from contextlib import closing
import before, peewee
from google.protobuf.wrappers_pb2 import Int64Value
from report import reported
from callboard import Done, Engine, TaskKind, hookimpl


class Writes:
    @hookimpl
    def callboard_task_kinds(self):
        return [TaskKind(Int64Value, self.handle)]

    def handle(self, message, ctx):
        with ctx.complete(Done()), closing(sqlite3.connect("shop.db", timeout=0.1)) as connection:
            connection.execute("UPDATE orders SET receipt_sent = 1")


engine = Engine(peewee.SqliteDatabase("shop.db", timeout=0.1), plugins=[Writes()])
engine.migrate()
with closing(sqlite3.connect("shop.db")) as connection:
    connection.execute(before.ORDERS)
    with reported(), connection:
        connection.execute("INSERT INTO orders (customer) VALUES ('ada')")
        engine.enqueue(Int64Value(value=1))
engine.enqueue(Int64Value(value=1))
engine.run_due()
print(engine.tasks()[0].last_error.strip().splitlines()[-1])
"""


def test_each_mistake_has_the_error_that_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, mistakes=MISTAKES, report=REPORT)

    lines = processes.run("mistakes.py")

    assert len(lines) == 2
    assert [error for error in lines if not PAGE.tells_of(error)] == []
