"""Section 5: a newer build migrates the tables while this one is at work on them."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.engine.acting import (
    RECEIPT,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    receipt,
    receipts,
)
from tests.engine.rows import payload, sql, write_by_hand

from callboard import Engine, SchemaError
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

NEWER = r"was written by a newer Callboard \(tables 999, this build knows \d+\); upgrade"


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the file fifty times in a second, not once."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)


def migrated(url: str, number: int = 999, *, compatible_with: int) -> None:
    """Do to the tables what a newer build's migration does, and record it."""
    sql(url, f"ALTER TABLE callboard_task ADD COLUMN added_by_{number} INTEGER")
    sql(
        url,
        "INSERT INTO callboard_migration (name, number, title, compatible_with, applied_at_ns)"
        " VALUES ('callboard', ?, 'what is to come', ?, 1)",
        number,
        compatible_with,
    )


def is_stuck(engine: Engine) -> Callable[[], bool]:
    return lambda: engine.health().stuck


def test_section_5_a_running_engine_claims_nothing_more_from_tables_that_it_cannot_use_any_more(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    with logged("ERROR") as log, make_engine(Plugin(receipts(sent := Scripted()))) as engine:
        engine.enqueue(receipt("before"))
        assert engine.wait_idle(20)
        migrated(callboard_database, compatible_with=999)
        eventually(is_stuck(engine))
        write_by_hand(callboard_database, RECEIPT, payload(receipt("after")))
        engine.wake()
        runtime = engine._core.running
        assert runtime is not None
        failures = runtime.actor._failures
        eventually(lambda: runtime.actor._failures >= failures + 3)  # each on a new connection

        assert sent.played == ["before"]
        assert "was written by a newer Callboard" in (engine.health().database_error or "")
        assert len(log) == 1
    [row] = sql(callboard_database, "SELECT state, attempts, token FROM callboard_task")
    assert row == ("pending", 0, 0)


def test_section_5_an_outcome_is_not_written_to_such_tables_and_the_stop_does_not_wait_for_it(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    blocking = Blocking()
    engine = make_engine(Plugin(receipts(blocking)))
    engine.start()
    engine.enqueue(receipt("held"))
    blocking.wait_begun("held")
    migrated(callboard_database, compatible_with=999)
    eventually(is_stuck(engine))
    blocking.let_go()

    engine.stop(timeout=None)

    assert sql(callboard_database, "SELECT state, attempts FROM callboard_task") == [
        ("running", 0)
    ]  # and runs again


def test_section_5_a_running_engine_goes_on_with_tables_that_say_it_can(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock
) -> None:
    with make_engine(Plugin(receipts(sent := Scripted()))) as engine:
        engine.enqueue(receipt("before"))
        assert engine.wait_idle(20)
        migrated(callboard_database, compatible_with=1)
        write_by_hand(callboard_database, RECEIPT, payload(receipt("after")))
        eventually(lambda: len(sent.played) == 2)
        callboard_clock.advance(timedelta(seconds=1))
        engine.enqueue(receipt("later"))
        assert engine.wait_idle(20)

        assert sent.played == ["before", "after", "later"]
        assert engine.health().database_error is None


@pytest.mark.parametrize("in_transaction", [False, True])
def test_section_5_an_engine_that_only_enqueues_is_refused_within_a_second(
    make_engine: MakeEngine, callboard_database: str, callboard_clock: FakeClock, in_transaction: bool
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())), execute=False)
    engine.enqueue(receipt("before"))
    migrated(callboard_database, compatible_with=999)
    callboard_clock.advance(timedelta(seconds=1))

    with pytest.raises(SchemaError, match=NEWER):
        if in_transaction:
            with engine.transaction() as tx:
                tx.enqueue(receipt("after"))
        else:
            engine.enqueue(receipt("after"))

    assert sql(callboard_database, "SELECT count(*) FROM callboard_task") == [(1,)]


def test_section_5_a_later_compatible_migration_does_not_hide_one_that_is_not(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    make_engine().migrate()
    migrated(callboard_database, 998, compatible_with=998)
    migrated(callboard_database, 999, compatible_with=1)

    with pytest.raises(SchemaError, match=NEWER):
        make_engine().migrate()


def test_section_5_tables_that_were_made_in_a_transaction_that_is_rolled_back_are_made_again(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    with pytest.raises(ZeroDivisionError), engine._core.store.transaction():
        engine.enqueue(receipt("lost"))
        callboard_clock.advance(timedelta(seconds=1))
        engine.enqueue(receipt("lost, too"))
        1 / 0  # noqa: B018

    engine.enqueue(receipt("kept"))

    assert len(engine.tasks()) == 1
