"""The log is silent until the host asks, quiet when all goes well, and never tells what tasks are about."""

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from loguru import logger
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    logged,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.rows import payload, sql, write_by_hand

from callboard import NEVER_NS, Engine, RescheduleAt, RetryPolicy, TaskContext
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)
SECRET = "the secret payload"
GROUP = b"the secret group"

SCRIPT = """
import sys
from callboard import Engine, TaskKind, hookimpl
from callboard.wire import KpRotation

class Broken:
    @hookimpl
    def callboard_task_kinds(self):
        return [TaskKind(KpRotation, self.fail)]

    def fail(self, message, ctx):
        raise ValueError("no")

    @hookimpl
    def callboard_startup(self, engine):
        raise ValueError("no")

with Engine("sqlite:///" + sys.argv[1], plugins=[Broken()]) as engine:
    engine.enqueue(KpRotation())
    assert engine.wait_idle(20)
    assert engine.tasks()[0].attempts == 1
"""


def test_an_embedding_service_hears_nothing_that_it_did_not_ask_for(tmp_path: Any) -> None:
    """Though loguru prints everything to stderr by default, and there is much to complain of."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "service.db")], capture_output=True, text=True, timeout=60
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_nothing_is_logged_above_debug_when_all_goes_well(make_engine: MakeEngine) -> None:
    async def coroutine(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            tx.enqueue(receipt("child", GROUP))

    plugin = Plugin(
        receipts(Scripted(RescheduleAt(HOUR), None)),
        threads(coroutine),
        startup=lambda engine: None,
        reconcile=lambda engine, reason: None,
        event=lambda engine, event: None,
        group_event=lambda tx, event: None,
        tasks_finished=lambda engine, finished: None,
    )
    with logged("INFO") as messages:
        for _ in range(2):
            with make_engine(plugin) as engine:
                engine.group(GROUP).created("alice", super_admins=["alice"])
                engine.group(GROUP).leave_requested("bob", b"message")
                engine.publish("event")
                engine.enqueue_many([receipt(SECRET), receipt(SECRET, GROUP), thread(SECRET, GROUP)])
                cancelled = engine.enqueue(receipt("cancelled"), not_before=HOUR).task_id
                assert cancelled is not None
                engine.cancel(cancelled)
                assert engine.wait_idle(WAIT_S)

    assert messages == []


def test_failed_attempts_and_deaths_are_a_line_for_each_batch_and_kind(make_engine: MakeEngine) -> None:
    once = receipts(Scripted(ValueError(SECRET)), retry=RetryPolicy(max_attempts=1), pause_after=None)
    engine = make_engine(Plugin(once, threads(Scripted(ValueError(SECRET)))))
    engine.enqueue_many([receipt(str(number)) for number in range(200)])
    engine.enqueue(thread("one"))
    with logged("INFO") as messages:
        engine.run_due()

    assert sorted(message.strip() for message in messages) == [
        "INFO 1 attempt(s) of kind acme.receipts.ReceiptThread failed with ValueError (tasks 201)",
        f"INFO 200 attempt(s) of kind {RECEIPT} failed with ValueError (tasks 1, 2, 3, 4, 5, …)",
        f"WARNING 200 task(s) of kind {RECEIPT} are dead: exhausted (tasks 1, 2, 3, 4, 5, …);"
        " `callboard dead list` tells more",
    ]


def assert_keeps_secrets(messages: list[Any]) -> None:
    for message in messages:
        for secret in (SECRET, SECRET.encode().hex(), GROUP.decode(), GROUP.hex()):
            assert secret not in message


def test_no_complaint_tells_a_payload_or_a_group(
    make_engine: MakeEngine, callboard_clock: FakeClock, callboard_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the message, nor the values that loguru shows beside a traceback unless it is told not to."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    overdue = Blocking()

    def handler(message: Any, ctx: TaskContext) -> Any:
        match message.text[len(SECRET) :]:
            case "completes":
                with ctx.complete():
                    pass
                raise ValueError("after all")
            case "overdue":
                return overdue(message, ctx)
            case "fails":
                raise ValueError("no")

    def event(engine: Engine, event: Any) -> None:
        raise ValueError("no event")

    def group_event(tx: Any, event: Any) -> None:
        raise ValueError("no group event")

    def tasks_finished(engine: Engine, finished: Any) -> None:
        raise ValueError("no finished tasks")

    plugin = Plugin(
        receipts(handler, timeout=timedelta(minutes=1)),
        event=event,
        group_event=group_event,
        tasks_finished=tasks_finished,
    )
    kind = receipts(handler).name
    engine = make_engine(plugin)
    with logged("INFO") as messages:
        engine.start()
        engine.group(GROUP).created("alice")
        engine.publish(receipt(SECRET, GROUP))
        engine.enqueue_many([receipt(SECRET + ending, GROUP) for ending in ("completes", "fails", "")])
        engine.enqueue(thread(SECRET, GROUP), allow_unknown=True)
        engine.enqueue(receipt(SECRET + "overdue", GROUP + b"2"))
        data = payload(receipt(SECRET + "wrong hash", GROUP))
        write_by_hand(callboard_database, kind, data, expires_at_ns=NEVER_NS, data_hash=b"\0" * 32)
        overdue.wait_begun(SECRET + "overdue")
        callboard_clock.advance(timedelta(minutes=2))
        while not overdue.contexts[SECRET + "overdue"].cancelled:
            engine.wake()
        overdue.let_go()
        assert engine.wait_idle(WAIT_S)
        engine.stop()

    text = "\n".join(messages)
    for complaint in (
        "callboard_event failed",
        "callboard_group_event failed",
        "callboard_tasks_finished failed",
        "raised after ctx.complete",
        "over its timeout",
        "deferred for an hour",
        "data hashes to",
    ):
        assert complaint in text, complaint
    assert_keeps_secrets(messages)


def test_a_pass_that_fails_tells_no_payload_either(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong inside the engine is logged with its traceback, but without the values in it."""
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    start = SqliteStore.tasks.start
    failures = iter([RuntimeError("a bug of ours")])

    def failing(session: Any, ids: Any, now_ns: int, owner: int) -> None:
        for failure in failures:
            raise failure
        start(session, ids, now_ns, owner)

    monkeypatch.setattr(SqliteStore.tasks, "start", failing)
    with logged("INFO") as messages, engine:
        engine.enqueue(receipt(SECRET, GROUP))
        assert engine.wait_idle(WAIT_S)

    assert handler.played == [SECRET]
    assert "a bug of ours" in "\n".join(messages)
    assert_keeps_secrets(messages)


def test_a_malformed_row_is_logged_in_hex_with_its_id(make_engine: MakeEngine, callboard_database: str) -> None:
    kind = receipts(Scripted())
    engine = make_engine(Plugin(kind))
    engine.migrate()
    task_id = write_by_hand(callboard_database, kind.name, b"\xff\xfe" + SECRET.encode(), expires_at_ns=NEVER_NS)

    with logged("WARNING") as messages:
        engine.run_due()

    [message] = messages
    assert f"task {task_id}" in message
    assert (b"\xff\xfe" + SECRET.encode()).hex() in message
    assert sql(callboard_database, "SELECT reason FROM callboard_dead_task") == [("malformed",)]


def test_a_handlers_logger_is_bound_to_its_task(make_engine: MakeEngine) -> None:
    records: list[Any] = []
    sink = logger.add(
        lambda message: records.append(message.record), filter=lambda record: "task_id" in record["extra"]
    )

    def handler(message: Any, ctx: TaskContext) -> None:
        ctx.logger.info("on my way")

    engine = make_engine(Plugin(receipts(handler)))
    task_id = engine.enqueue(receipt("hello")).task_id
    try:
        engine.run_due()
    finally:
        logger.remove(sink)

    [record] = records
    assert record["message"] == "on my way"
    assert record["extra"] == {"task_id": task_id, "kind": "acme.receipts.SendReceipt"}
