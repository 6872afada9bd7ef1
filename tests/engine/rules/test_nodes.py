"""Several engines on one database: they share its work, and take over what one that is gone has left.

On SQLite and on PostgreSQL, but for the few tests that are about a file.
"""

import glob
import itertools
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
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
    eventually,
    logged,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.either_store import callboard_database
from tests.engine.messages import SendReceipt
from tests.engine.rows import is_postgres, path_of, payload, sql, write_by_hand
from tests.engine.rules.serving_engine import AT_ONCE, EFFECT_TABLE

from callboard import (
    ConfigurationError,
    DeadReason,
    Engine,
    RescheduleAt,
    StoreError,
    SystemClock,
    TaskContext,
)
from callboard._actors.node import Node
from callboard._actors.rounds import Rounds
from callboard._clock import nanoseconds
from callboard._engine import DEFAULT_LEASE
from callboard._store.interface import Session
from callboard._store.policy import TaskPolicy
from callboard._store.sqlite import SqliteStore
from callboard._task import EnqueueStatus
from callboard.errors import DatabaseUnavailableError
from callboard.testing import FakeClock

__all__ = ["callboard_database"]

ROOT = Path(__file__).parents[3]

on_sqlite = pytest.mark.parametrize("callboard_database", ["sqlite"], indirect=True)

AT_ONCE_S = 8.0
"""Far above what a takeover takes that waits for no lease, far below the lease of a minute."""

LONG = timedelta(minutes=1)


class Serving:
    """A process that serves the database."""

    module = "serving_engine"

    def __init__(self, url: str, **options: Any) -> None:
        self.lines: list[list[str]] = []
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.engine.rules.{self.module}", url, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                words = line.split()
                self.lines.append(words)
                self._counts.update({tuple(words[:1]), tuple(words[:2])})  # 20,000 lines are too many to read anew
                self._changed.notify_all()

    def said(self, what: str) -> list[str]:
        """Return the texts of which it said this."""
        with self._changed:
            return [line[1].replace("_", " ") for line in self.lines if line[0] == what]

    def wait(self, what: str, text: str = "", *, count: int = 1, seconds: float = WAIT_S) -> None:
        """Wait until it has said this."""
        wanted = (what, text.replace(" ", "_")) if text else (what,)
        with self._changed:
            said = self._changed.wait_for(lambda: self._counts[wanted] >= count, seconds)
            assert said, (wanted, self._counts[wanted], self.lines)

    def tell(self, order: str, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order} {text}\n")

    def stop(self) -> None:
        """Stop it in an orderly way."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(WAIT_S) == 0
        self._reader.join()

    def kill(self) -> None:
        self.process.kill()
        self.wait_gone()

    def wait_gone(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join()
        return code

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


Serve = Callable[..., Serving]


@pytest.fixture
def serve(callboard_database: str) -> Iterator[Serve]:
    started: list[Serving] = []

    def start(**options: Any) -> Serving:
        started.append(Serving(callboard_database, **options))
        return started[-1]

    yield start
    for serving in started:
        serving.close()


@pytest.fixture
def host(make_engine: MakeEngine) -> Engine:
    """An engine of this process that executes nothing, to enqueue and look with."""
    plugin = Plugin(receipts(Scripted(), retry=AT_ONCE), threads(Scripted(), retry=AT_ONCE, recurring=True))
    engine = make_engine(plugin, clock=SystemClock(), execute=False)
    engine.migrate()
    return engine


@pytest.fixture
def wait_look(callboard_database: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine], None]:
    """Have engines look at each other all the time; return how to wait until one has done so from now on."""
    counts: Counter[int] = Counter()
    look = Node.look

    def counted(node: Node, *, changed: bool) -> bool:
        gone = look(node, changed=changed)
        counts[id(node)] += 1
        return gone

    def wait(engine: Engine) -> None:
        assert engine._core.running is not None
        node = id(engine._core.running.node)
        before = counts[node]
        eventually(lambda: counts[node] >= before + 2)

    monkeypatch.setattr(Node, "look", counted)
    poll_each(0.01, callboard_database, monkeypatch)
    return wait


def poll_each(seconds: float, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines ask after others' commits so often, and on PostgreSQL doubt each time that they were told."""
    if not is_postgres(url):
        monkeypatch.setattr(SqliteStore, "poll_interval_s", seconds)
        return
    from callboard._store import postgres

    monkeypatch.setattr(postgres.PostgresStore, "poll_interval_s", seconds)
    monkeypatch.setattr(postgres, "_READ_ANYWAY_S", seconds)


def lock_files(url: str) -> list[str]:
    if not is_postgres(url):
        return glob.glob(f"{glob.escape(path_of(url))}-callboard-node-*")
    from callboard._store.postgres import open_postgres

    store = open_postgres(url)
    with store.reading() as session:
        store.nodes.others(session, 0)  # by which it learns where they are
    store.close()
    return glob.glob(f"{glob.escape(store.nodes._path)}-callboard-node-*")


def column(url: str, name: str) -> list[Any]:
    return [value for (value,) in sql(url, f"SELECT {name} FROM callboard_task ORDER BY id")]


# Sharing the work


def test_four_processes_drain_a_file_once_and_never_overlap_in_a_group(host: Engine, serve: Serve) -> None:
    texts = [f"quick {number}" for number in range(2_000)]
    nodes = [serve() for _ in range(4)]
    for node in nodes:
        node.wait("serving")

    done = 0
    for node in nodes:
        while not node.said("begun"):  # an idle node finds what it has enqueued itself before others look
            node.tell("many", f"{done} {done + 40}")
            done += 40
            wait_ended(nodes, done)
    share = (len(texts) - done) // len(nodes)
    for first, node in zip(range(done, len(texts), share), nodes, strict=False):
        node.tell("many", f"{first} {first + share}")
    wait_ended(nodes, len(texts))
    eventually(lambda: not host.tasks(limit=1))
    for node in nodes:
        node.stop()

    eventually(lambda: sum(len(node.said("ended")) for node in nodes) >= len(texts))
    assert sorted(text for node in nodes for text in node.said("ended")) == sorted(texts)
    assert host.dead_tasks() == []
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for node in nodes:
        ends = {line[1]: int(line[3]) for line in node.lines if line[0] == "ended"}
        for what, text, group, begun_ns in (line for line in node.lines if len(line) == 4):
            if what == "begun":
                spans[group].append((int(begun_ns), ends[text]))
    assert len(spans) == 50
    for runs in spans.values():
        runs.sort()
        assert all(ended_ns <= begun_ns for (_, ended_ns), (begun_ns, _) in itertools.pairwise(runs))


def wait_ended(nodes: list[Serving], count: int) -> None:
    eventually(lambda: sum(len(node.said("ended")) for node in nodes) >= count)


def test_two_engines_of_one_process_share_a_database(make_engine: MakeEngine) -> None:
    handlers = [Blocking(), Blocking()]
    first, second = (
        make_engine(Plugin(receipts(handler)), workers=1, clock=SystemClock()) for handler in handlers
    )
    first.start()
    first.enqueue(receipt("one", b"group"))
    handlers[0].wait_begun("one")
    second.start()
    second.enqueue(receipt("two", b"group"))
    numbers = itertools.count()
    eventually(lambda: handlers[1].begun or not second.enqueue(receipt(f"other {next(numbers)}")))
    assert "two" not in handlers[1].begun  # the group is the first one's
    for handler in handlers:
        handler.let_go()
    assert first.wait_idle(WAIT_S)
    eventually(lambda: not first.tasks())

    others = [f"other {number}" for number in range(next(numbers))]
    assert sorted(handlers[0].begun + handlers[1].begun) == sorted(["one", "two", *others])


def test_an_idle_engine_notices_what_others_enqueue(host: Engine, serve: Serve, callboard_database: str) -> None:
    """Another process, and an operator by plain SQL."""
    node = serve()
    node.wait("serving")

    host.enqueue(receipt("quick from a process"))
    node.wait("ended", "quick from a process")
    write_by_hand(callboard_database, RECEIPT, payload(receipt("quick by hand")))

    node.wait("ended", "quick by hand")


def test_wait_idle_does_not_wait_for_what_another_node_holds(make_engine: MakeEngine, host: Engine) -> None:
    handlers = [Blocking(), Blocking()]
    first, second = (make_engine(Plugin(receipts(handler)), clock=SystemClock()) for handler in handlers)
    with first, second:
        first.enqueue(receipt("held", b"group"))
        eventually(lambda: handlers[0].begun or handlers[1].begun)
        holder, other = (first, second) if handlers[0].begun else (second, first)
        other.enqueue(receipt("behind it", b"group"))

        assert other.wait_idle(WAIT_S)
        assert not holder.wait_idle(0.1)

        for handler in handlers:
            handler.let_go()
        assert holder.wait_idle(WAIT_S)
        eventually(lambda: not host.tasks())


@on_sqlite  # where the other can be kept from setting aside at the same moment
def test_run_due_works_beside_a_started_engine(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 3_600.0)  # or it would set the other's kind aside
    held, ran = Blocking(), Scripted()
    started = make_engine(Plugin(receipts(held)))
    inline = make_engine(Plugin(threads(ran)))
    with started:
        started.enqueue(receipt("held", b"group"))
        held.wait_begun("held")
        inline.enqueue_many([thread("behind it", b"group"), thread("free")])

        assert inline.run_due() == 1
        assert ran.played == ["free"]

        held.let_go()
        assert started.wait_idle(WAIT_S)
        assert inline.run_due() == 1
    assert ran.played == ["free", "behind it"]


# Nodes that are gone


def test_what_a_killed_process_had_claimed_is_taken_over_at_once(
    host: Engine, serve: Serve, callboard_database: str
) -> None:
    killed, left = serve(lease=60), serve(lease=60)
    killed.wait("serving")
    host.enqueue(receipt("hold 0", b"group"))
    eventually(lambda: killed.said("begun") or left.said("begun"))
    if left.said("begun"):
        killed, left = left, killed
    host.enqueue_many([receipt(f"quick {number}", b"group") for number in range(20)])
    eventually(lambda: "running" in column(callboard_database, "state")[1:])
    left.wait("serving")

    killed.kill()

    left.wait("begun", "hold 0", seconds=AT_ONCE_S)
    left.tell("end", "hold 0")
    eventually(lambda: not host.tasks(limit=1))
    assert host.dead_tasks() == []
    texts = ["hold 0", "quick after hold 0", *(f"quick {number}" for number in range(20))]
    eventually(lambda: len(left.said("ended")) >= len(texts))
    assert Counter(left.said("ended")) == Counter(texts)
    eventually(lambda: len(lock_files(callboard_database)) == 1)
    assert len(sql(callboard_database, "SELECT id FROM callboard_node")) == 1


def test_a_takeover_that_the_database_refused_is_made_later(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would look again for what a node had claimed whose row is gone already."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.01)
    monkeypatch.setattr(Node, "heartbeat", lambda node: None)
    monkeypatch.setattr(Rounds, "make", lambda rounds: None)  # which give a sign of life, too, at some moment
    handler, other = Blocking(), Scripted()
    late, looking = make_engine(Plugin(receipts(handler))), make_engine(Plugin(receipts(other)))
    late.start()
    late.enqueue(receipt("held"))
    handler.wait_begun("held")
    looking.start()
    assert looking.wait_idle(WAIT_S)

    def refuse(*arguments: Any) -> Any:
        raise DatabaseUnavailableError("the disk is full")

    with logged() as messages, monkeypatch.context() as full:
        full.setattr(TaskPolicy, "rescue", refuse)
        callboard_clock.advance(LONG)
        eventually(lambda: any("the database answers again" in message for message in messages))
    callboard_clock.advance(LONG)
    eventually(lambda: other.played == ["held"])
    handler.let_go()


IDLE_IN_TRANSACTION = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
)


def halt(node: Serving, url: str) -> None:
    """Halt a process outside its transactions, where it would keep others from writing."""
    if is_postgres(url):
        node.process.send_signal(signal.SIGSTOP)
        while sql(url, IDLE_IN_TRANSACTION):
            node.process.send_signal(signal.SIGCONT)
            node.process.send_signal(signal.SIGSTOP)
        return
    with closing(sqlite3.connect(path_of(url), isolation_level=None, timeout=WAIT_S)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        node.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, node.process.pid, os.WSTOPPED | os.WNOWAIT)
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("ending", ["end", "complete"])
def test_the_outcome_of_a_node_that_slept_through_its_lease_is_refused(
    ending: str, host: Engine, serve: Serve, callboard_database: str
) -> None:
    sql(callboard_database, EFFECT_TABLE)
    sleeper = serve(lease=0.5)
    host.enqueue(receipt("hold it"))
    sleeper.wait("begun", "hold it")
    other = serve(lease=60)
    other.wait("serving")

    halt(sleeper, callboard_database)
    other.wait("begun", "hold it")
    sleeper.process.send_signal(signal.SIGCONT)
    sleeper.tell(ending, "hold it")
    sleeper.wait("ended", "hold it")
    if ending == "complete":
        sleeper.wait("stale", "hold it")

    # It is a node anew and works on; the other one runs what it took over alone, so claims nothing else.
    sleeper.tell("enqueue", "quick marker")
    sleeper.wait("ended", "quick marker")
    eventually(lambda: len(host.tasks()) == 1)
    assert column(callboard_database, "state") == ["running"]
    assert sql(callboard_database, "SELECT text FROM effect") == []

    other.tell(ending, "hold it")
    eventually(lambda: not host.tasks())
    assert sql(callboard_database, "SELECT text FROM effect") == [("hold it",)] * (ending == "complete")
    either = [0, 1], [1, 0]
    eventually(lambda: [node.said("begun").count("quick after hold it") for node in (sleeper, other)] in either)
    assert host.dead_tasks() == []


def test_a_heartbeat_goes_on_while_handlers_hold_all_workers(
    make_engine: MakeEngine, callboard_database: str, wait_look: Callable[[Engine], None]
) -> None:
    """Others see it move for several leases, and take nothing over."""
    handler, other = Blocking(), Blocking()
    busy_lease = timedelta(seconds=0.5)
    busy = make_engine(Plugin(receipts(handler)), workers=2, lease=busy_lease, clock=SystemClock())
    busy.start()
    for text in ("one", "two"):
        busy.enqueue(receipt(text))
    handler.wait_begun("one", "two")
    looking = make_engine(Plugin(receipts(other)), clock=SystemClock())
    with looking:
        first = heartbeat(callboard_database)
        eventually(lambda: heartbeat(callboard_database) > first + nanoseconds(3 * busy_lease))
        wait_look(looking)
        assert other.begun == []
        assert not any(context.cancelled for context in handler.contexts.values())
        handler.let_go()
        assert busy.wait_idle(WAIT_S)
    assert busy.health().counters["stale"] == 0


def heartbeat(url: str) -> int:
    """Return when the eldest node has last given a sign of life."""
    return int(sql(url, "SELECT heartbeat_at_ns FROM callboard_node ORDER BY id LIMIT 1")[0][0])


def test_setting_the_clock_ends_no_lease(
    make_engine: MakeEngine, callboard_clock: FakeClock, wait_look: Callable[[Engine], None]
) -> None:
    handler, other = Blocking(), Blocking()
    holder, looking = make_engine(Plugin(receipts(handler))), make_engine(Plugin(receipts(other)))
    holder.start()
    holder.enqueue(receipt("held"), expires_after=timedelta(days=1_000))
    handler.wait_begun("held")
    with looking:
        for duration in (timedelta(days=400), timedelta(days=-800)):
            callboard_clock.jump(duration)
            wait_look(looking)
        assert other.begun == []

        handler.let_go()
        assert holder.wait_idle(WAIT_S)
    assert holder.health().counters["stale"] == 0


def test_a_node_that_is_late_starts_nothing_that_it_had_claimed(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that wait behind a handler longer than the lease lasts are not begun before it was renewed."""
    monkeypatch.setattr(Node, "heartbeat", lambda node: None)
    handler, other = Blocking(), Blocking()
    late, following = make_engine(Plugin(receipts(handler))), make_engine(Plugin(receipts(other)))
    late.start()
    late.enqueue_many([receipt("first", b"group"), receipt("second", b"group")])
    handler.wait_begun("first")
    with following:
        callboard_clock.advance(LONG)
        other.wait_begun("first")
        handler.let_go("first")
        assert late.wait_idle(WAIT_S)
        assert handler.begun == ["first"]
        assert late.health().counters["stale"] >= 1
        other.let_go()
        assert following.wait_idle(WAIT_S)
    handler.let_go()
    assert sorted(handler.begun + other.begun) == ["first", "first", "second"]


def test_a_coroutine_whose_loop_came_to_it_after_the_lease_is_not_begun(
    make_engine: MakeEngine, callboard_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that blocks its loop holds up the others on it, for longer than the lease lasts."""
    monkeypatch.setattr(Node, "heartbeat", lambda node: None)
    handler, other = Blocking(), Blocking()

    async def blocking(message: SendReceipt, ctx: TaskContext) -> Any:
        return handler(message, ctx)

    late, following = make_engine(Plugin(receipts(blocking))), make_engine(Plugin(receipts(other)))
    late.start()
    late.enqueue(receipt("first"))
    handler.wait_begun("first")
    second = late.enqueue(receipt("second")).task_id or 0
    runs = late._core.running.workload.runs  # type: ignore[union-attr]
    eventually(lambda: second in runs and runs[second].cancel_coroutine)  # the loop has it
    with following:
        callboard_clock.advance(LONG)
        other.let_go()
        other.wait_begun("first", "second")
        assert following.wait_idle(WAIT_S)
    handler.let_go()
    assert late.wait_idle(WAIT_S)
    assert handler.begun == ["first"]


def test_lock_files_go_with_their_nodes(make_engine: MakeEngine, callboard_database: str) -> None:
    with make_engine(Plugin(receipts(Scripted()))):
        assert len(lock_files(callboard_database)) == 1
        make_engine(Plugin(receipts(Scripted()))).run_due()
        assert len(lock_files(callboard_database)) == 1

    assert lock_files(callboard_database) == []
    assert sql(callboard_database, "SELECT * FROM callboard_node") == []


@on_sqlite
def test_an_engine_that_knows_the_file_by_another_name_sees_the_same_nodes(
    make_engine: MakeEngine, callboard_database: str, tmp_path: Path, wait_look: Callable[[Engine], None]
) -> None:
    handler, other = Blocking(), Blocking()
    holder = make_engine(Plugin(receipts(handler)))
    holder.start()
    holder.enqueue(receipt("held"))
    handler.wait_begun("held")
    link = tmp_path / "link" / "other.db"
    link.parent.mkdir()
    link.symlink_to(path_of(callboard_database))

    with make_engine(Plugin(receipts(other)), database=f"sqlite:///{link}") as looking:
        wait_look(looking)
        assert other.begun == []
        assert len(lock_files(callboard_database)) == 2
        assert [path.name for path in link.parent.iterdir()] == [link.name]
        handler.let_go()
        assert holder.wait_idle(WAIT_S)


# Who holds what


def test_a_caller_is_told_which_node_holds_a_task_and_its_group(make_engine: MakeEngine) -> None:
    handler = Blocking(RescheduleAt(timedelta(hours=1)))
    holder = make_engine(Plugin(receipts(handler)))
    other = make_engine(Plugin(receipts(Scripted())), execute=False)
    holder.start()
    task_id = holder.enqueue(receipt("held", b"group")).task_id
    assert task_id is not None
    handler.wait_begun("held")

    [node] = other.nodes()
    assert (node.host, node.pid, node.holds) == (socket.gethostname(), os.getpid(), True)
    assert [task.owner for task in other.tasks(group_id=b"group", state="running")] == [node.id]
    assert handler.contexts["held"].task.owner == node.id

    handler.let_go()
    assert holder.wait_idle(WAIT_S)
    task = other.task(task_id)
    assert task is not None
    assert (task.state, task.owner) == ("pending", None)
    holder.stop()
    assert other.nodes() == []


# A database that nobody can write to


@on_sqlite
@pytest.mark.parametrize("looker_waits", [False, True])
def test_nothing_is_taken_over_because_nobody_could_give_a_sign_of_life(
    make_engine: MakeEngine,
    callboard_database: str,
    callboard_clock: FakeClock,
    wait_look: Callable[[Engine], None],
    monkeypatch: pytest.MonkeyPatch,
    looker_waits: bool,
) -> None:
    """The database is locked for longer than a lease; whoever looks is refused, or waits until it is free."""
    handler, other = Blocking(), Scripted()
    holder = make_engine(Plugin(receipts(handler)))
    holder.start()
    holder.enqueue(receipt("held"))
    handler.wait_begun("held")
    impatient = peewee.SqliteDatabase(path_of(callboard_database), timeout=0.05)
    looking = make_engine(Plugin(receipts(other)), database=impatient)
    looking.start()
    wait_look(looking)
    if looker_waits:
        store = looking._core.store
        opened = store.transaction

        @contextmanager
        def late() -> Iterator[Session]:
            with opened() as session:
                callboard_clock.advance(timedelta(seconds=1))
                yield session

        monkeypatch.setattr(store, "transaction", late)
        callboard_clock.advance(LONG)
    else:
        with closing(sqlite3.connect(path_of(callboard_database), isolation_level=None)) as rival:
            rival.execute("BEGIN IMMEDIATE")
            callboard_clock.advance(LONG)
            eventually(lambda: looking.health().database_error)
            rival.execute("ROLLBACK")
        eventually(lambda: not looking.health().database_error)
    wait_look(looking)

    assert other.played == []
    handler.let_go()
    assert holder.wait_idle(WAIT_S)
    assert holder.health().counters == {"done": 1, "dead": 0, "failed": 0, "stale": 0}
    looking.stop()
    impatient.close()


# Nodes that hold nothing


A_ROUND = timedelta(hours=7)


def test_the_row_of_a_silent_node_that_holds_nothing_is_removed(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    """Another machine's, of which no lock tells; not one that was heard of today, nor one that holds a task."""
    with make_engine(Plugin(receipts(Scripted()))) as engine:
        assert engine.wait_idle(WAIT_S)
        day_ns = nanoseconds(timedelta(days=1))
        for node_id, pid, age_ns in ((50, 1, day_ns), (51, 2, day_ns // 2), (52, 3, day_ns)):
            sql(
                callboard_database,
                "INSERT INTO callboard_node VALUES (?, 'elsewhere', ?, '1', '', ?, 0, ?)",
                *(node_id, pid, nanoseconds(timedelta(days=9)), callboard_clock.now_ns() - age_ns),
            )
        write_by_hand(callboard_database, RECEIPT, payload(receipt("held")), state="running", owner=52)

        callboard_clock.advance(A_ROUND)
        eventually(lambda: 50 not in node_ids(callboard_database))

        own = engine._core.running
        assert own is not None
        assert node_ids(callboard_database) == [own.node.id, 51, 52]
        # However idle it is, it has given a sign of life itself.
        assert heartbeat(callboard_database) == callboard_clock.now_ns()


def node_ids(url: str) -> list[int]:
    return [node_id for (node_id,) in sql(url, "SELECT id FROM callboard_node ORDER BY id")]


def test_a_node_whose_row_was_removed_while_it_was_idle_joins_anew(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    handler = Scripted()
    with logged("WARNING") as warnings, make_engine(Plugin(receipts(handler))) as engine:
        assert engine.wait_idle(WAIT_S)
        [before] = node_ids(callboard_database)
        sql(callboard_database, "DELETE FROM callboard_node")
        callboard_clock.advance(LONG)

        engine.enqueue(receipt("read"))
        assert engine.wait_idle(WAIT_S)

        assert handler.played == ["read"]
        [after] = node_ids(callboard_database)
        assert after > before
        assert [file.rpartition("-")[2] for file in lock_files(callboard_database)] == [str(after)]
    assert warnings == []
    assert lock_files(callboard_database) == []


@contextmanager
def refusing(url: str, event: str, when: str = "TRUE") -> Iterator[None]:
    """Have the database refuse writes of tasks as if its disk were full."""
    if is_postgres(url):
        sql(url, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$")
        how = "FOR EACH ROW WHEN ({}) EXECUTE FUNCTION refuse()"
    else:
        how = "WHEN {} BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    sql(url, f"CREATE TRIGGER refuse BEFORE {event} ON callboard_task {how.format(when)}")
    yield
    sql(url, f"DROP TRIGGER refuse {'ON callboard_task' * is_postgres(url)}")


def test_a_number_that_was_rolled_back_is_free_for_another_node(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    """A node that joins anew together with a claim does not keep the number, and its lock, if that fails."""
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    assert engine.wait_idle(WAIT_S)
    sql(callboard_database, "DELETE FROM callboard_node")
    with ExitStack() as stack:
        with refusing(callboard_database, "UPDATE OF state", "NEW.state = 'running'"):
            callboard_clock.advance(LONG)
            engine.enqueue(receipt("read"))
            eventually(lambda: engine.health().database_error)
            stack.enter_context(make_engine())
        assert engine.wait_idle(WAIT_S)
        numbers = node_ids(callboard_database)
        assert len(numbers) == 2
        assert sorted(int(file.rpartition("-")[2]) for file in lock_files(callboard_database)) == numbers
    engine.stop()
    assert handler.played == ["read"]
    assert (node_ids(callboard_database), lock_files(callboard_database)) == ([], [])


def test_a_start_that_fails_leaves_no_row_and_no_lock(make_engine: MakeEngine, callboard_database: str) -> None:
    make_engine().migrate()
    write_by_hand(callboard_database, RECEIPT, payload(receipt("orphan")), state="running", owner=99)

    with (
        refusing(callboard_database, "UPDATE OF state", "NEW.state = 'pending'"),
        pytest.raises(StoreError, match="full"),
    ):
        make_engine(Plugin(receipts(Scripted()))).start()

    assert (node_ids(callboard_database), lock_files(callboard_database)) == ([], [])


# Tasks that take their process down


@pytest.mark.parametrize("order", ["enqueue", "recur"])
def test_a_task_that_ends_its_process_is_dead_after_so_many_crashes_alone(
    order: str, host: Engine, serve: Serve, callboard_database: str
) -> None:
    """Those beside it are innocent: they are done, and nothing counts against them."""
    message = receipt("die now") if order == "enqueue" else thread("die now")
    # A first process claims them together, so that nobody can tell which of them ended it.
    host.enqueue_many([receipt("hold a"), receipt("hold b")])
    first = serve(max_crashes=2)
    first.wait("begun", count=2)
    host.enqueue(message)
    assert first.wait_gone() == 3
    assert set(column(callboard_database, "crashes")) == {0}

    crashes = []
    for _ in range(6):
        node = serve(max_crashes=2)
        for text in ("hold a", "hold b"):
            node.tell("end", text)
        if not ended_before_all_was_done(node, host):
            break
        assert node.wait_gone() == 3
        rows = sql(callboard_database, "SELECT kind, crashes FROM callboard_task WHERE alone = 1 OR crashes > 0")
        crashes.append(dict(rows))
    assert host.tasks() == []
    [dead] = host.dead_tasks()
    assert (dead.reason, dead.data, dead.attempts) == (DeadReason.CRASHED, payload(message), 0)
    assert dead.last_error is not None
    assert "2 times in a row while it ran alone" in dead.last_error
    assert len(crashes) == 2


def ended_before_all_was_done(node: Serving, host: Engine) -> bool:
    eventually(lambda: node.process.poll() is not None or not host.tasks())
    return node.process.poll() is not None


def test_only_the_crash_of_a_task_alone_counts_and_a_success_forgets_them(
    host: Engine, serve: Serve, callboard_database: str
) -> None:
    columns = "SELECT alone, crashes FROM callboard_task ORDER BY id LIMIT 1"
    host.enqueue(receipt("hold it"))
    seen = []
    for _ in range(3):
        node = serve(max_crashes=3)
        node.wait("begun", "hold it")
        seen += sql(callboard_database, columns)
        node.kill()

    node = serve(max_crashes=3)
    node.wait("begun", "hold it")
    seen += sql(callboard_database, columns)
    node.tell("again", "hold it")
    node.wait("begun", "hold it", count=2)
    seen += sql(callboard_database, columns)

    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (0, 0)]
    node.tell("end", "hold it")
    eventually(lambda: not host.tasks())


def test_a_task_alone_has_nothing_beside_it_and_lets_other_work_pass_in_turn(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue_many([receipt("suspect"), receipt("another suspect")])
    sql(callboard_database, "UPDATE callboard_task SET state = 'running', owner = 99")
    engine.start()
    handler.wait_count(1)
    alone = handler.begun[0]

    other = engine.enqueue(receipt("innocent")).task_id
    assert other is not None
    eventually(lambda: not engine.wait_idle(0))
    assert handler.begun == [alone]

    handler.let_go(alone)
    handler.wait_begun("innocent")
    assert handler.begun == [alone, "innocent"]
    handler.let_go()
    assert engine.wait_idle(WAIT_S)
    assert sorted(handler.begun) == ["another suspect", "innocent", "suspect"]
    assert engine.dead_tasks() == []


def test_a_task_that_outlived_an_orderly_stop_is_no_suspect(
    make_engine: MakeEngine,
    callboard_database: str,
    wait_look: Callable[[Engine], None],
    callboard_clock: FakeClock,
) -> None:
    """It runs again beside others; one that was a suspect before stays one, and no crash is counted."""
    stubborn, following = Blocking(), Blocking()
    engine = make_engine(Plugin(receipts(stubborn)))
    engine.enqueue_many([receipt("stubborn"), receipt("other")])
    engine.start()
    stubborn.wait_begun("stubborn", "other")
    eventually(lambda: column(callboard_database, "state") == ["running"] * 2)
    sql(callboard_database, "UPDATE callboard_task SET alone = 1, crashes = 4 WHERE id = 2")
    assert not engine.stop(timeout=0)

    with make_engine(Plugin(receipts(following))) as successor:
        wait_look(successor)
        callboard_clock.advance(DEFAULT_LEASE + timedelta(seconds=1))
        wait_look(successor)
        assert sql(callboard_database, "SELECT alone, crashes FROM callboard_task ORDER BY id") == [(0, 0), (1, 4)]
        following.let_go()
        callboard_clock.advance(timedelta(minutes=1))  # the suspect is in backoff for the crashes it had
        eventually(lambda: not successor.tasks())
        assert successor.dead_tasks() == []
    stubborn.let_go()


def test_a_task_alone_stays_alone_when_its_outcome_cannot_be_written(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    task_id = engine.enqueue(receipt("suspect")).task_id
    sql(callboard_database, "UPDATE callboard_task SET state = 'running', owner = 99")
    engine.start()
    handler.wait_begun("suspect")
    with refusing(callboard_database, "DELETE"):
        handler.let_go()
        eventually(lambda: engine.health().database_error)

        assert engine._core.running is not None
        assert engine._core.running.workload.alone == task_id
    assert engine.wait_idle(WAIT_S)
    assert engine._core.running.workload.alone is None


# Cancelling from another node


def test_a_cancel_from_another_process_reaches_the_run_and_its_group_waits(
    host: Engine, make_engine: MakeEngine, serve: Serve, callboard_database: str
) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), clock=SystemClock())
    engine.start()
    task_id = host.enqueue(receipt("hold it", b"group")).task_id
    assert task_id is not None
    handler.wait_begun("hold it")
    node = serve()
    node.wait("serving")
    host.enqueue(receipt("quick next", b"group"))

    assert host.cancel(task_id)

    eventually(lambda: handler.contexts["hold it"].cancelled)
    host.enqueue(receipt("quick passer-by"))
    eventually(lambda: "quick passer-by" in node.said("ended") or "quick passer-by" in handler.begun)
    assert "quick next" not in node.said("begun") + handler.begun
    assert column(callboard_database, "state")[0] == "running"
    assert host.dead_tasks() == []

    handler.let_go("hold it")
    eventually(lambda: host.task(task_id) is None)
    handler.let_go()
    eventually(lambda: "quick next" in node.said("ended") or "quick next" in handler.begun)
    assert [(dead.task_id, dead.reason) for dead in host.dead_tasks()] == [(task_id, DeadReason.CANCELLED)]


def test_a_request_after_a_cancel_is_a_new_life(host: Engine, serve: Serve) -> None:
    node = serve()
    task_id = host.enqueue(receipt("hold it")).task_id
    assert task_id is not None
    node.wait("begun", "hold it")

    assert host.cancel(task_id)
    assert host.enqueue(receipt("hold it")).status == EnqueueStatus.RERUN
    node.tell("end", "hold it")

    node.wait("begun", "hold it", count=2)
    [dead] = host.dead_tasks()
    [task] = host.tasks()
    assert (dead.task_id, dead.reason) == (task_id, DeadReason.CANCELLED)
    assert task.id != task_id
    node.tell("end", "hold it")
    eventually(lambda: not host.tasks())
    assert len(host.dead_tasks()) == 1


def test_a_cancelled_task_whose_process_ended_is_buried_and_not_run(host: Engine, serve: Serve) -> None:
    node = serve()
    cancelled = host.enqueue(receipt("hold it")).task_id
    assert cancelled is not None
    node.wait("begun", "hold it")
    assert host.cancel(cancelled)

    node.kill()
    following = serve()

    eventually(lambda: not host.tasks())
    assert [(dead.task_id, dead.reason) for dead in host.dead_tasks()] == [(cancelled, DeadReason.CANCELLED)]
    assert following.said("begun") == []


def test_stop_buries_a_claimed_task_that_another_node_has_cancelled(
    host: Engine, make_engine: MakeEngine, callboard_database: str
) -> None:
    """It had not begun, and its engine did not know of the cancel yet when it handed its rows back."""
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("first", b"group"))
    second = engine.enqueue(receipt("second", b"group")).task_id
    assert second is not None
    handler.wait_begun("first")
    eventually(lambda: set(column(callboard_database, "state")) == {"running"})

    assert host.cancel(second)
    assert engine.stop(timeout=0) is False

    assert [dead.task_id for dead in host.dead_tasks()] == [second]
    assert column(callboard_database, "state") == ["running"]
    handler.let_go()


# Arguments


@pytest.mark.parametrize("lease", [timedelta(0), timedelta(seconds=-1), timedelta(hours=2)])
def test_a_lease_that_cannot_work_is_refused(lease: timedelta, make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        make_engine(lease=lease)


@pytest.mark.parametrize("lease", [5, None, "15 s"])
def test_a_lease_that_is_no_timedelta_is_refused(lease: Any, make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        make_engine(lease=lease)


@pytest.mark.parametrize("heartbeat", [timedelta(0), timedelta(seconds=-1), timedelta(seconds=5.1), 2, "1 s"])
def test_a_lease_has_room_for_two_heartbeats(heartbeat: Any, make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"heartbeat must be .* at least twice into the lease of 0:00:10"):
        make_engine(lease=timedelta(seconds=10), heartbeat=heartbeat)


def test_a_heartbeat_comes_as_often_as_asked(make_engine: MakeEngine, callboard_database: str) -> None:
    handler = Blocking()
    often = timedelta(milliseconds=20)
    engine = make_engine(Plugin(receipts(handler)), lease=timedelta(hours=1), heartbeat=often, clock=SystemClock())
    engine.start()
    engine.enqueue(receipt("running"))
    handler.wait_begun("running")
    first = heartbeat(callboard_database)
    eventually(lambda: heartbeat(callboard_database) > first)
    handler.let_go()
    assert engine.wait_idle(WAIT_S)


@pytest.mark.parametrize("max_crashes", [0, -1, True, 2.5, None])
def test_a_number_of_crashes_that_cannot_work_is_refused(max_crashes: Any, make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigurationError, match="max_crashes"):
        make_engine(max_crashes=max_crashes)
