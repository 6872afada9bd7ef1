"""`assert_enqueued` and its kin: what matches, and what a failure shows, on SQLite and on PostgreSQL."""

from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import MakeEngine, Plugin, Scripted, receipt, receipts, thread, threads
from tests.engine.either_store import callboard_database
from tests.engine.messages import ReceiptThread, SendReceipt

from callboard import ConfigurationError, Discard, Engine, SystemClock
from callboard.testing import FakeClock, all_enqueued, assert_enqueued, refute_enqueued

__all__ = ["callboard_database"]

HOUR = timedelta(hours=1)


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    """Return one that knows receipts, whose first fails, and threads."""
    failing = Scripted(ZeroDivisionError("oops"), Discard("no use"))
    return make_engine(Plugin(receipts(failing), threads(Scripted())))


CONDITIONS: list[dict[str, Any]] = [
    {"key": "k"},
    {"group_id": b"climbing"},
    {"due": HOUR},
    {"state": "pending"},
    {"origin": "web"},
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: next(iter(condition)))
def test_each_condition_tells(engine: Engine, condition: dict[str, Any]) -> None:
    engine.enqueue(receipt("read"), key="k", group_id=b"climbing", not_before=HOUR, origin="web")
    others: dict[str, Any] = {
        "key": "other",
        "group_id": b"bowling",
        "due": 2 * HOUR,
        "state": "deferred",
        "origin": "cron",
    }
    [(name, _)] = condition.items()

    [task] = assert_enqueued(engine, receipt("read"), **condition)
    refute_enqueued(engine, receipt("read"), **{name: others[name]})
    with pytest.raises(AssertionError, match=f"(?s)no task of kind .*SendReceipt.*{name}=.*differs in: {name}"):
        assert_enqueued(engine, receipt("read"), **{name: others[name]})
    with pytest.raises(AssertionError, match=r"there should be no task of kind .*SendReceipt"):
        refute_enqueued(engine, receipt("read"), **condition)
    assert task == engine.tasks()[0]


def test_a_type_stands_for_any_message_of_it(engine: Engine) -> None:
    engine.enqueue_many([receipt("a"), thread("b"), receipt("c")])

    assert len(assert_enqueued(engine, SendReceipt, count=2)) == 2
    assert all_enqueued(engine, SendReceipt) == [receipt("a"), receipt("c")]
    assert all_enqueued(engine, ReceiptThread, group_id=b"none") == []
    refute_enqueued(engine, receipt("b"))
    with pytest.raises(AssertionError, match=r"not 1 but 2 tasks of kind acme.receipts.SendReceipt"):
        assert_enqueued(engine, SendReceipt, count=1)


def test_what_a_transaction_has_enqueued_is_there_once_it_has_committed(engine: Engine) -> None:
    engine.migrate()
    with engine.transaction() as tx:
        tx.enqueue(receipt("read"))

    assert_enqueued(engine, receipt("read"), count=1)

    with pytest.raises(ZeroDivisionError), engine.transaction() as tx:
        tx.enqueue(receipt("undone"))
        raise ZeroDivisionError
    refute_enqueued(engine, receipt("undone"))


def test_a_failure_says_what_there_is_instead(engine: Engine) -> None:
    with pytest.raises(AssertionError) as nothing:
        assert_enqueued(engine, receipt("read"))
    assert str(nothing.value).splitlines() == [
        'no task of kind acme.receipts.SendReceipt {text: "read"}',
        "there is no task at all: none was committed, or it is done",
    ]

    engine.enqueue(receipt("failed", b"g"))
    engine.run_due()
    engine.enqueue(receipt("discarded"))
    engine.run_due()
    engine.enqueue(thread("another"))

    with pytest.raises(AssertionError) as others:
        assert_enqueued(engine, receipt("read"), due=HOUR)
    [failed] = engine.tasks(kind="acme.receipts.SendReceipt")
    [dead] = engine.dead_tasks()
    assert str(others.value).splitlines() == [
        'no task of kind acme.receipts.SendReceipt {text: "read"} due=datetime.timedelta(seconds=3600)',
        "there are:",
        f'  task {failed.id} pending, due in 2 s, group b\'g\', attempts 1: {{group_id: "g" text: "failed"}}',
        "    failed: ZeroDivisionError: oops",
        "    differs in: message, due",
        f'  dead task {dead.id} discarded: {{text: "discarded"}}',
        "    failed: no use",
        "  1 of kind acme.receipts.ReceiptThread",
    ]


def test_a_failure_shows_no_more_than_one_can_read(engine: Engine) -> None:
    engine.enqueue_many(receipt(f"{number} {'x' * 1000}") for number in range(1_500))

    assert_enqueued(engine, SendReceipt, count=1_500)
    with pytest.raises(AssertionError) as error:
        assert_enqueued(engine, receipt("read"))

    lines = str(error.value).splitlines()
    assert lines[-1] == "  and 1480 more"
    assert max(map(len, lines)) < 300
    assert len(lines) == 2 + 2 * 20 + 1


def test_payloads_that_nobody_here_can_read_are_shown_in_hex(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(name="knows nothing"))
    engine.enqueue(receipt("read"), allow_unknown=True)

    [task] = assert_enqueued(engine, receipt("read"))
    with pytest.raises(AssertionError, match=task.data.hex()):
        refute_enqueued(engine, SendReceipt)


def test_on_a_clock_that_goes_on_by_itself_due_is_about_so(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())), clock=SystemClock())
    engine.enqueue(receipt("read"), not_before=HOUR)
    assert_enqueued(engine, receipt("read"), due=HOUR)
    refute_enqueued(engine, receipt("read"), due=HOUR + timedelta(seconds=5))

    exact = make_engine(Plugin(receipts(Scripted())))
    exact.enqueue(receipt("exact"), not_before=HOUR)
    refute_enqueued(exact, receipt("exact"), due=HOUR + timedelta(microseconds=1))


@pytest.mark.parametrize("wanted", ["SendReceipt", str, None])
def test_what_is_no_message_is_refused(engine: Engine, wanted: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a protobuf message or its type, not"):
        assert_enqueued(engine, wanted)
