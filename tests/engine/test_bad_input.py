"""What a host or an operator may get wrong: the engine says so once, clearly, and goes on.

Payloads that are malformed are rule 5's (tests/engine/rules/test_dead_tasks.py); what is wrong with plugins, with
handlers, with connections and with the file has a test module of its own.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    MakeEngine,
    Plugin,
    Scripted,
    logged,
    receipt,
    receipts,
    thread,
)
from tests.engine.messages import SendReceipt, TaggedReceipt
from tests.engine.rows import path_of, payload, write_by_hand

from callboard import (
    CallboardError,
    ConfigurationError,
    Engine,
    EngineStateError,
    InstallationAdded,
    ServiceMissingError,
    TaskContext,
    TaskKind,
    UnknownKindError,
)
from callboard._codec import hash_of

THREAD = "acme.receipts.ReceiptThread"


class Mailer:
    """A service that a host may lack."""


# A hash that is not the payload's


def test_a_hash_that_does_not_match_is_warned_of_with_both_and_the_task_runs(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(sent := Scripted())))
    engine.migrate()
    data = payload(receipt("read"))
    task_id = write_by_hand(callboard_database, RECEIPT, data, data_hash=b"\xab" * 32)

    with logged("WARNING") as log:
        engine.run_due()

    assert sent.played == ["read"]
    assert engine.tasks() == []
    [line] = log
    assert line.startswith(f"WARNING task {task_id} ({RECEIPT})")
    assert "ab" * 32 in line
    assert hash_of(data).hex() in line


# Enqueueing what nobody registered


def test_a_message_that_no_plugin_registered_is_refused_saying_what_to_do(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))

    for refused in (
        lambda: engine.enqueue(thread("nobody's")),
        lambda: engine.enqueue_many([receipt("read"), thread("nobody's")]),
    ):
        with pytest.raises(UnknownKindError, match=rf"'{THREAD}'.*install.*allow_unknown=True"):
            refused()

    assert engine.tasks() == []


def test_a_message_that_no_plugin_registered_is_taken_when_the_host_says_so(make_engine: MakeEngine) -> None:
    engine = make_engine()

    engine.enqueue(thread("one"), allow_unknown=True)
    engine.enqueue_many([thread("two")], allow_unknown=True)

    assert [task.kind for task in engine.tasks()] == [THREAD, THREAD]


def test_a_message_that_could_have_two_identities_is_refused_even_then(make_engine: MakeEngine) -> None:
    with pytest.raises(CallboardError, match="is a map"):
        make_engine().enqueue(TaggedReceipt(), allow_unknown=True)


@pytest.mark.parametrize("message", [None, b"payload", "acme.receipts.SendReceipt", SendReceipt])
def test_something_that_is_no_message_is_refused(make_engine: MakeEngine, message: Any) -> None:
    with pytest.raises(TypeError, match="enqueue takes a protobuf message, not"):
        make_engine().enqueue(message)


# Services


def test_a_kind_without_its_service_is_named_in_the_log_at_start_and_in_health(make_engine: MakeEngine) -> None:
    plugin = Plugin(receipts(sent := Scripted(), requires=(Mailer,)))
    with logged("WARNING") as log, make_engine(plugin) as engine:
        engine.enqueue(receipt("read"))
        assert engine.wait_idle(WAIT_S)
        assert engine.health().missing_services == {RECEIPT: ["Mailer"]}
        assert [task.state for task in engine.tasks()] == ["deferred"]

    assert sent.played == []
    assert RECEIPT in log[0]
    assert "Engine(..., services={Mailer: ...})" in log[0]


def test_a_service_that_the_host_did_not_give_is_a_failed_attempt_that_says_so(make_engine: MakeEngine) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        ctx.service(Mailer)

    engine = make_engine(Plugin(receipts(send)))
    engine.enqueue(receipt("read"))
    engine.run_due()

    [task] = engine.tasks()
    assert task.attempts == 1
    assert "Engine(..., services={Mailer: ...})" in (task.last_error or "")
    with pytest.raises(ServiceMissingError, match="no service of type Mailer"):
        engine.service(Mailer)


# Ids


@pytest.mark.parametrize("group_id", [b"", b"g" * 256, "g", bytearray(b"g"), 7])
def test_a_group_id_that_is_empty_or_too_long_is_a_value_error_at_the_call(
    make_engine: MakeEngine, group_id: Any
) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        with pytest.raises(ValueError, match="group_id must be 1 to 255 bytes"):
            ctx.enqueue(receipt("another"), group_id=group_id)
        tried.append(message.text)

    tried: list[str] = []
    engine = make_engine(Plugin(TaskKind(SendReceipt, send)))
    with engine.transaction() as tx:
        for call in (
            lambda: engine.enqueue(receipt("read"), group_id=group_id),
            lambda: engine.group(group_id),
            lambda: tx.enqueue(receipt("read"), group_id=group_id),
            lambda: tx.group(group_id),
        ):
            with pytest.raises(ValueError, match="group_id must be 1 to 255 bytes"):
                call()
    assert engine.tasks() == []

    engine.enqueue(receipt("read"), group_id=b"g" * 255)
    engine.run_due()
    assert tried == ["read"]
    assert engine.tasks() == []


@pytest.mark.parametrize("inbox_id", ["", None, b"bo", 7])
def test_an_empty_inbox_id_is_a_value_error_at_the_call(make_engine: MakeEngine, inbox_id: Any) -> None:
    engine = make_engine()
    group = engine.group(b"g")
    calls: list[Callable[[], Any]] = [
        lambda: group.created(inbox_id),
        lambda: group.created("ann", members=["bo", inbox_id]),
        lambda: group.created("ann", super_admins=[inbox_id]),
        lambda: group.membership_changed(added=[inbox_id]),
        lambda: group.membership_changed(removed=[inbox_id]),
        lambda: group.membership_changed(promoted=[inbox_id]),
        lambda: group.membership_changed(demoted=[inbox_id]),
        lambda: group.leave_requested(inbox_id, b"message"),
        lambda: group.leave_settled([inbox_id]),
        lambda: InstallationAdded(inbox_id, b"installation"),
    ]

    for call in calls:
        with pytest.raises(ValueError, match="inbox_id must be a non-empty string"):
            call()

    assert group.state() is None


def test_one_inbox_id_where_several_are_meant_is_a_value_error(make_engine: MakeEngine) -> None:
    with pytest.raises(ValueError, match=r"such as \['bo'\]"):
        make_engine().group(b"g").membership_changed(added="bo")


def test_a_consent_that_is_none_is_a_value_error(make_engine: MakeEngine) -> None:
    group = make_engine().group(b"g")

    with pytest.raises(ValueError, match="consent must be"):
        group.consent("maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="consent must be"):
        group.created("ann", consent="maybe")  # type: ignore[arg-type]

    assert group.state() is None


# After stop


CALLS: dict[str, Callable[[Engine], Any]] = {
    "start": lambda engine: engine.start(),
    "with": lambda engine: engine.__enter__(),
    "migrate": lambda engine: engine.migrate(),
    "run_due": lambda engine: engine.run_due(),
    "wait_idle": lambda engine: engine.wait_idle(0),
    "enqueue": lambda engine: engine.enqueue(receipt("read")),
    "enqueue_many": lambda engine: engine.enqueue_many([receipt("read")]),
    "aenqueue": lambda engine: asyncio.run(engine.aenqueue(receipt("read"))),
    "transaction": lambda engine: engine.transaction().__enter__(),
    "leave_requested": lambda engine: engine.group(b"g").leave_requested("bo", b"message"),
    "state": lambda engine: engine.group(b"g").state(),
    "groups": lambda engine: list(engine.groups()),
    "pull_in": lambda engine: engine.pull_in("key", not_later_than_ns=0),
    "cancel": lambda engine: engine.cancel(1),
    "retry_dead": lambda engine: engine.retry_dead(1),
    "publish": lambda engine: engine.publish("something happened"),
    "tasks": lambda engine: engine.tasks(),
    "task": lambda engine: engine.task(1),
    "dead_tasks": lambda engine: engine.dead_tasks(),
}


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_after_stop_says_that_the_engine_has_been_stopped(
    make_engine: MakeEngine, call: str, started: bool
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    if started:
        engine.start()
    else:
        engine.migrate()
    assert engine.stop()

    with pytest.raises(EngineStateError, match="wait_idle is for" if call == "wait_idle" else "has been stopped"):
        CALLS[call](engine)


def test_an_enqueue_on_a_hosts_connection_after_stop_writes_nothing(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.migrate()
    engine.stop()

    with closing(sqlite3.connect(path_of(callboard_database))) as host:
        with pytest.raises(EngineStateError, match="has been stopped"):
            engine.enqueue(receipt("read"), connection=host)
        assert not host.in_transaction


@pytest.mark.parametrize("url", ["postgresql://db/name", "postgres://user:h7nter2Q@db/name"])
def test_a_postgresql_url_without_psycopg_says_what_to_install(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("callboard._store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("callboard._store.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(
        ConfigurationError, match=r"needs psycopg 3: pip install 'callboard\[postgres\]'"
    ) as caught:
        Engine(url)

    assert "h7nter2Q" not in str(caught.value)
