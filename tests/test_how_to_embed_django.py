"""What the how-to shows is run here in a real project: views, the command, `on_commit`, tests; and mistakes."""

import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import django
import pytest
from tests.shown import BLOCKING_MAILER, REPORT, Page, Processes, post, processes, said

__all__ = ["processes"]

if django.VERSION < (5, 1):
    pytest.skip("needs Django 5.1, which can have a transaction lock at its begin", allow_module_level=True)

PAGE = Page("embed-django")

# Each of these is what `django-admin` and `manage.py` do with these words, in one process in place of four.
START = """
from django.core.management import execute_from_command_line as run
run(["django-admin", "startproject", "shop", "."])
run(["django-admin", "startapp", "orders"])
"""
MIGRATE = """
import os
from django.core.management import execute_from_command_line as run
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
run(["manage.py", "makemigrations", "orders"])
run(["manage.py", "migrate"])
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project as a reader makes it, migrated."""
    folder = tmp_path_factory.mktemp("project")
    making = Processes(folder)
    making.run("-c", START)
    settings = (folder / "shop" / "settings.py").read_text()
    PAGE.write(folder)
    (folder / "shop" / "settings.py").write_text(settings + PAGE.files["shop/settings.py"])
    making.run("-c", MIGRATE)
    making.close()
    return folder


@pytest.fixture
def shop(project: Path, tmp_path: Path) -> Path:
    """Return a copy of the project, where `processes` starts."""
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    return tmp_path


def query(shop: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(shop / "db.sqlite3")) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is no signal there")
def test_it_runs_and_survives_a_kill_as_it_is_shown(processes: Processes, shop: Path) -> None:
    (shop / "orders" / "mailer.py").write_text(BLOCKING_MAILER)
    web = processes.start("-u", "manage.py", "runserver", "--noreload", "127.0.0.1:0")
    port = int(said(web, r"http://127.0.0.1:(\d+)")[1])
    assert post(port, "/orders/ada") == (202, '{"order": 1}')
    assert post(port, "/orders/blocks") == (202, '{"order": 2}')

    killed = processes.start("manage.py", "run_tasks")
    said(killed, "^blocked in ")
    killed.kill()
    killed.wait()
    (shop / "go_on").touch()
    running = processes.start("manage.py", "run_tasks")
    said(running, "^sent: blocks$")
    running.send_signal(signal.SIGTERM)
    assert running.wait(20) == 0

    orders = query(shop, "SELECT customer, receipt_sent FROM orders_order ORDER BY id")
    assert orders == [("ada", 1), ("blocks", 1)]
    assert query(shop, "SELECT id FROM callboard_task") == []


def test_the_shown_test_passes(processes: Processes, shop: Path) -> None:
    lines = processes.run("manage.py", "test", "--settings", "shop.settings_test")

    assert "sent: receipt to ada" in lines
    assert "Ran 1 test in" in " ".join(lines)


SETUP = """
import os
import django
from django.conf import settings
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
settings.DATABASES["default"]["OPTIONS"]["timeout"] = 0.1
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from google.protobuf.wrappers_pb2 import Int64Value
from orders import elsewhere, receipts
from orders.engine import make_engine, web_engine
from orders.mailer import Mailer
from orders.models import Order
from callboard import Done, Engine, TaskKind, hookimpl
"""

ELSEWHERE = """
from setup import *

elsewhere.take_order("ada")
try:
    with transaction.atomic():
        elsewhere.take_order("nobody")
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
print(len(elsewhere.engine.tasks()))
Order.objects.create(customer="ben")  # the process ended before it enqueued
plugins = [receipts, elsewhere.Reconcile()]
with Engine("sqlite:///tasks.db", plugins=plugins, services={Mailer: Mailer()}) as engine:
    engine.wait_idle(20)
call_command("run_tasks", once=True)
connection.close()
"""


def test_what_is_enqueued_on_commit_follows_the_commit_and_is_healed(processes: Processes, shop: Path) -> None:
    (shop / "setup.py").write_text(SETUP)

    lines = processes.run("-c", ELSEWHERE)

    assert lines[0] == "1"
    assert sorted(lines[1:3]) == ["sent: receipt to ada", "sent: receipt to ben"]
    assert lines[3:] == ["0 run"]


MISTAKES = """
import peewee
from report import reported
from setup import *


class Writes:
    @hookimpl
    def callboard_task_kinds(self):
        return [TaskKind(Int64Value, self.handle)]

    def handle(self, message, ctx):
        with receipts.as_in_a_request(), ctx.complete(Done()):
            Order.objects.create(customer="ben")


database = peewee.SqliteDatabase("db.sqlite3", timeout=0.1)
engine = Engine(database, plugins=[Writes()])
with reported(), transaction.atomic():
    Order.objects.create(customer="ada")
    engine.enqueue(Int64Value(value=1))
engine.enqueue(Int64Value(value=1))
engine.run_due()
print(engine.tasks()[0].last_error.strip().splitlines()[-1])

connection.close()
del connection.settings_dict["OPTIONS"]["transaction_mode"]
with reported(), transaction.atomic():
    Order.objects.count()
    engine.enqueue(Int64Value(value=2))
    Order.objects.create(customer="ada")

for name in ("other.sqlite3", "file:memorydb_default?mode=memory&cache=shared"):
    connection.close()
    connection.settings_dict["NAME"] = name
    with reported(), transaction.atomic():
        (web_engine if name == "other.sqlite3" else make_engine)().enqueue(
            Int64Value(value=3), connection=connection
        )
connection.close()
"""


def test_each_mistake_has_the_error_that_is_shown(processes: Processes, shop: Path) -> None:
    (shop / "setup.py").write_text(SETUP)
    (shop / "report.py").write_text(REPORT)

    lines = processes.run("-c", MISTAKES)

    assert len(lines) == 5
    assert [error for error in lines if not PAGE.tells_of(error)] == []
