"""Processes that fork, that exit without a stop, and handlers that fork: no task is lost."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.engine.acting import MakeEngine, Plugin, Scripted, eventually, receipts
from tests.engine.rows import sql

from callboard._actors.stacks import stack_of
from callboard._store import forking

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PRELUDE = """
import asyncio, contextlib, os, signal, sys, threading, time
from datetime import timedelta
import loguru
from callboard import Engine, TaskKind, hookimpl
from tests.engine.acting import Plugin, eventually, receipt, receipts, thread, threads
from tests.engine.rows import sql

url = sys.argv[1]
LATER = timedelta(days=1)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def inherited():
    # The database's files that this process has open, where the system tells.
    if sys.platform != "linux":
        return []
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in names if name.startswith(os.path.realpath(url.removeprefix("sqlite:///")))]

def warn():
    loguru.logger.enable("callboard")
    loguru.logger.remove()
    loguru.logger.add(lambda line: say(line.strip()), format="{level} {message}", level="WARNING")
"""


def run_script(body: str, url: str, *, status: int = 0, stderr: str = "") -> list[str]:
    """Run a script in a process of its own; return the lines that it said."""
    script = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + body, url],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert script.returncode == status, script.stderr
    assert (stderr in script.stderr) if stderr else script.stderr == "", script.stderr
    return script.stdout.splitlines()


def what_the_next_process_runs(make_engine: MakeEngine, url: str) -> list[str]:
    sql(url, "UPDATE callboard_task SET next_attempt_at_ns = 0")
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    engine.run_due()
    assert (engine.tasks(), engine.dead_tasks()) == ([], [])
    return handler.played


# Forks


@needs_fork
@pytest.mark.parametrize("started", [False, True], ids=["unstarted", "started"])
def test_a_prefork_server_has_an_engine_in_each_of_its_workers(started: bool, callboard_database: str) -> None:
    """The master uses the engine, or is at work with it; its workers start their copies, and one is killed."""
    body = (
        f"STARTED = {started}\n"
        + """
def handle(message, ctx):
    say("ran", message.text, os.getpid())

engine = Engine(url, plugins=[Plugin(receipts(handle))], lease=timedelta(seconds=60), synchronous="NORMAL")
engine.migrate()
engine.enqueue_many([receipt(f"early {number}") for number in range(50)])
if STARTED:
    engine.start()
pids, go_on = [], os.pipe()
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        os.close(go_on[1])
        assert engine.health().state == "unstarted"
        with engine:
            say("serving")
            os.read(go_on[0], 1)
        os._exit(0)
    pids.append(pid)

def nodes():
    return [pid for (pid,) in sql(url, "SELECT pid FROM callboard_node ORDER BY pid")]

masters = [os.getpid()] if STARTED else []
eventually(lambda: nodes() == sorted(pids + masters))
engine.enqueue_many([receipt(f"late {number}") for number in range(200)])
eventually(lambda: not engine.tasks())
os.kill(pids[0], signal.SIGKILL)
os.waitpid(pids[0], 0)
eventually(lambda: nodes() == sorted(pids[1:] + masters))
engine.enqueue(receipt("after the kill"))
eventually(lambda: not engine.tasks())
os.close(go_on[1])
statuses = [os.waitpid(pid, 0)[1] for pid in pids[1:]]
say("ended", *statuses, engine.stop())
"""
    )
    lines = run_script(body, callboard_database)

    ran = [line.split(" ", 1)[1].rsplit(" ", 1)[0] for line in lines if line.startswith("ran ")]
    texts = [f"early {number}" for number in range(50)] + [f"late {number}" for number in range(200)]
    assert sorted(ran) == sorted([*texts, "after the kill"])
    assert [line.strip() for line in lines if line.startswith("ended")] == ["ended 0 0 0 True"]
    assert sql(callboard_database, "SELECT count(*) FROM callboard_dead_task") == [(0,)]
    assert sql(callboard_database, "PRAGMA integrity_check") == [("ok",)]


@needs_fork
@pytest.mark.parametrize("started", [False, True], ids=["unstarted", "started"])
def test_a_master_that_stops_takes_no_commit_of_its_workers_with_it(
    started: bool, callboard_database: str
) -> None:
    """SQLite deletes the log with the last connection that it knows of, so a child must not inherit any."""
    body = (
        f"STARTED = {started}\n"
        + """
engine = Engine(url, plugins=[Plugin(receipts(lambda message, ctx: None))])
if STARTED:
    engine.start()
engine.enqueue(receipt("master"), not_before=LATER)
ready, go_on = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    engine.enqueue(receipt("before"), not_before=LATER)
    os.write(ready[1], b".")
    os.read(go_on[0], 1)
    engine.enqueue(receipt("after"), not_before=LATER)
    os.kill(os.getpid(), signal.SIGKILL)
os.read(ready[0], 1)
engine.stop()
os.write(go_on[1], b".")
os.waitpid(pid, 0)
say(len(sql(url, "SELECT id FROM callboard_task")))
"""
    )
    assert run_script(body, callboard_database) == ["3"]


@needs_fork
@pytest.mark.parametrize("child", ["enqueues", "starts"])
@pytest.mark.parametrize("forker", ["main", "handlers"])
def test_a_parent_at_work_goes_on_while_it_forks_again_and_again(
    forker: str, child: str, callboard_database: str
) -> None:
    """No child inherits a connection, whichever threads are at the database, or fork at the same time."""
    body = (
        f"BY_HANDLERS, STARTS = {forker == 'handlers'}, {child == 'starts'}\n"
        + """
def fork(name):
    pid = os.fork()
    if pid == 0:
        try:
            found = inherited()
            assert not found, found
            with engine if STARTS else contextlib.nullcontext():
                assert engine.enqueue(receipt(f"child {name}")).status == "inserted"
        except BaseException as error:
            say("child", name, repr(error))
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def handle(message, ctx):
    if message.text.startswith("forks"):
        fork(message.text)
    say("ran", message.text)

warn()
engine = Engine(url, plugins=[Plugin(receipts(handle))], synchronous="NORMAL")
engine.start()
for number in range(10):
    engine.enqueue_many([receipt(f"busy {number} {each}") for each in range(30)])
    if BY_HANDLERS:
        engine.enqueue(receipt(f"forks {number}"))
    else:
        fork(f"forks {number}")
say("idle", engine.wait_idle(50), engine.health().database_error, engine.stop())
"""
    )
    lines = run_script(body, callboard_database)

    numbers = range(10)
    ran = [f"ran busy {number} {each}" for number in numbers for each in range(30)]
    ran += [f"ran child forks {number}" for number in numbers]
    ran += [f"ran forks {number}" for number in numbers] if forker == "handlers" else []
    assert sorted(lines) == sorted([*ran, "idle True None True"])
    assert sql(callboard_database, "SELECT count(*) FROM callboard_task") == [(0,)]
    assert sql(callboard_database, "PRAGMA integrity_check") == [("ok",)]


IN_A_TRANSACTION = """
from callboard._store import forking

warn()
engine = Engine(url, plugins=[Plugin(receipts(lambda message, ctx: None))])
inside, leave = threading.Event(), threading.Event()

def transact():
    with engine.transaction() as tx:
        tx.enqueue(receipt("in a transaction"))
        inside.set()
        leave.wait(20)

def fork():
    pid = os.fork()
    if pid == 0:
        say("child", len(inherited()) > 0 if sys.platform == "linux" else INHERITS)
        os._exit(0)
    os.waitpid(pid, 0)

other = threading.Thread(target=transact)
"""


@needs_fork
def test_a_fork_waits_for_the_transactions_of_other_threads(callboard_database: str) -> None:
    body = """
INHERITS = False
def leave_once_it_waits():
    eventually(lambda: forking._gate._forking is not None)
    leave.set()

other.start()
inside.wait(20)
threading.Thread(target=leave_once_it_waits).start()
fork()
other.join()
say("tasks", len(engine.tasks()))
"""
    assert run_script(IN_A_TRANSACTION + body, callboard_database) == ["child False", "tasks 1"]


@needs_fork
def test_a_fork_waits_no_longer_than_its_patience(callboard_database: str) -> None:
    body = """
INHERITS = True
forking._PATIENCE_S = 0.1
other.start()
inside.wait(20)
fork()
leave.set()
other.join()
say("tasks", len(engine.tasks()))
"""
    assert run_script(IN_A_TRANSACTION + body, callboard_database) == [
        "WARNING the process forks while another thread is in a transaction; the child inherits connections and"
        " must only exec or end",
        "child True",
        "tasks 1",
    ]


@needs_fork
def test_a_fork_inside_a_transaction_waits_for_nobody(callboard_database: str) -> None:
    """Neither for itself nor for another fork, which waits for it."""
    body = """
INHERITS = True
waiting = threading.Thread(target=fork)
with engine.transaction() as tx:
    tx.enqueue(receipt("in a transaction"))
    waiting.start()
    eventually(lambda: forking._gate._forking == waiting.ident)
    fork()
waiting.join()
say("tasks", len(engine.tasks()))
"""
    assert run_script(IN_A_TRANSACTION + body, callboard_database) == [
        "WARNING the process forks inside a transaction; the child inherits connections and must only exec or end",
        "child True",
        "child False",
        "tasks 1",
    ]


def test_threads_that_fork_at_once_take_turns() -> None:
    """The end of the first fork would let connections be opened before the second."""
    gate = forking._Gate()
    second = threading.Thread(target=gate.before)
    gate.before()
    second.start()
    eventually(lambda: not second.is_alive() or "_wait_for_turn" in stack_of(second.ident))
    assert second.is_alive()

    gate.after_in_parent()
    second.join()
    assert gate._forking == second.ident


FORKING = """
loguru.logger.enable("callboard")
loguru.logger.remove()
loguru.logger.add(lambda line: say("log", line.strip()), format="{message}", level="ERROR")

def fork():
    pid = os.fork()
    if pid == 0:
        say("child")
        return
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    say("parent", status)

def wait(ctx):
    if COMPLETE:
        with ctx.complete() as tx:
            tx.enqueue(thread("effect"))

def handle(message, ctx):
    say("begun", message.text)
    if message.text == "forks":
        fork()
        wait(ctx)

async def handle_later(message, ctx):
    handle(message, ctx)

def effect(message, ctx):
    say("effect", os.getpid() == parent)

parent = os.getpid()
engine = Engine(url, plugins=[Plugin(receipts(handle_later if ASYNC else handle), threads(effect))], workers=1)
"""


@needs_fork
@pytest.mark.parametrize("complete", [False, True], ids=["returns", "completes"])
@pytest.mark.parametrize("how", ["started", "run_due", "coroutine"])
def test_a_handler_that_forks_and_returns_twice_ends_its_child(
    how: str, complete: bool, callboard_database: str
) -> None:
    """The child writes no outcome, and runs none of the tasks whose copies it has."""
    body = f"COMPLETE, ASYNC = {complete}, {how == 'coroutine'}\n" + FORKING
    run = "engine.run_due()" if how == "run_due" else "engine.start(); engine.wait_idle(20)"
    body += f"""
engine.enqueue(receipt("forks", b"group"))
engine.enqueue_many([receipt(f"behind {{number}}", b"group") for number in range(5)])
{run}
say("failed", len(engine.tasks()))
engine.stop()
"""
    lines = run_script(body, callboard_database)

    assert sorted(line for line in lines if line.startswith("begun")) == sorted(
        ["begun forks", *(f"begun behind {number}" for number in range(5))]
    )
    assert lines.count("child") == 1
    assert lines.count("parent 70") == 1
    assert lines.count("effect True") == complete
    assert "effect False" not in lines
    assert "failed 0" in lines
    assert [line for line in lines if "a handler forked and came back in the child as well" in line]


@needs_fork
def test_a_hook_that_forks_and_returns_twice_ends_its_child(callboard_database: str) -> None:
    body = "COMPLETE, ASYNC = False, False\n" + FORKING
    body += """
engine = Engine(url, plugins=[Plugin(receipts(handle), reconcile=lambda engine, reason: fork())], workers=1)
engine.enqueue_many([receipt(f"task {number}") for number in range(5)])
engine.start()
engine.wait_idle(20)
say("stopped", engine.stop())
"""
    lines = run_script(body, callboard_database)

    assert sorted(line for line in lines if line.startswith("begun")) == [f"begun task {n}" for n in range(5)]
    assert (lines.count("child"), lines.count("parent 70"), lines.count("stopped True")) == (1, 1, 1)


# Exits


ENDINGS = {
    "end": ("", 0, ""),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "unhandled": ("raise ZeroDivisionError('unhandled')", 1, "ZeroDivisionError: unhandled"),
    "interrupt": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("busy", ["idle", "function", "coroutine"])
@pytest.mark.parametrize("starter", ["main", "thread"])
def test_an_interpreter_that_exits_without_a_stop_leaves_the_tasks_to_the_next(
    starter: str, busy: str, ending: str, make_engine: MakeEngine, callboard_database: str
) -> None:
    """It exits at once, as it would without an engine; what ran then runs again, at once and unsuspected."""
    last, status, stderr = ENDINGS[ending]
    body = f"""
begun = threading.Event()

def handle(message, ctx):
    if message.text == "held":
        begun.set()
        time.sleep(3600)

async def handle_later(message, ctx):
    if message.text == "held":
        begun.set()
        await asyncio.sleep(3600)

handler = handle_later if {busy == "coroutine"} else handle
engine = Engine(url, plugins=[Plugin(receipts(handler))])

def serve():
    engine.start()
    engine.enqueue(receipt("quick"))
    assert engine.wait_idle(20)
    if {busy != "idle"}:
        engine.enqueue(receipt("held", b"group"))
        engine.enqueue(receipt("behind", b"group"))
        assert begun.wait(20)
    engine.enqueue(receipt("later"), not_before=timedelta(hours=1))

if {starter == "thread"}:
    starter = threading.Thread(target=serve)
    starter.start()
    starter.join()
else:
    serve()
say("exits")
{last}
"""
    assert run_script(body, callboard_database, status=status, stderr=stderr) == ["exits"]

    assert sql(callboard_database, "SELECT sum(alone % 2), sum(crashes), sum(attempts) FROM callboard_task") == [
        (0, 0, 0)
    ]
    expected = ["later"] if busy == "idle" else ["behind", "held", "later"]
    assert sorted(what_the_next_process_runs(make_engine, callboard_database)) == expected


def test_a_handler_that_ends_the_interpreter_loses_no_other_task(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    """SIGTERM, which a host leaves to Python, ends the process without any exit handler."""
    body = """
def handle(message, ctx):
    if message.text == "kills":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

engine = Engine(url, plugins=[Plugin(receipts(handle))])
engine.enqueue_many([receipt("kills"), receipt("beside"), receipt("beside too")])
engine.start()
time.sleep(60)
"""
    run_script(body, callboard_database, status=-signal.SIGTERM)

    assert "kills" in what_the_next_process_runs(make_engine, callboard_database)
    assert sql(callboard_database, "SELECT count(*) FROM callboard_task") == [(0,)]
