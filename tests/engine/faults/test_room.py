"""The disk is full: nothing accepted is lost, and everything goes on when there is room."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from tests.engine.acting import (
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    receipt,
    receipts,
)
from tests.engine.faults.disks import fill

from callboard import DatabaseUnavailableError, SystemClock
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)
SAYS = "callboard.db has no room to grow; free some disk space"


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the database fifty times in a second, not once."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)


def test_a_full_disk_loses_nothing_that_was_accepted(make_engine: MakeEngine, small_disk: Path) -> None:
    """Enqueues, claims, outcomes and heartbeats need room, and each goes on when there is some."""
    handler = Blocking()
    engine = make_engine(
        Plugin(receipts(handler)),
        database=f"sqlite:///{small_disk}/callboard.db",
        lease=timedelta(seconds=0.5),
        heartbeat=timedelta(seconds=0.05),
        clock=SystemClock(),
    )
    engine.start()
    engine.enqueue(receipt("running"))
    handler.wait_begun("running")
    accepted = ["running"]

    with logged("WARNING") as lines:
        filler = fill(small_disk)
        for size in (50_000, 1):
            for number in range(1_000):
                text = f"{number} ".ljust(size, ".")
                try:
                    engine.enqueue(receipt(text))
                except DatabaseUnavailableError as error:
                    assert SAYS in str(error)
                    break
                accepted.append(text)
        handler.let_go()
        eventually(lambda: engine.health().database_error)
        assert SAYS in str(engine.health().database_error)
        assert not engine.health().stuck
        eventually(lambda: any("a heartbeat failed" in line for line in lines))

        filler.unlink()
        assert engine.wait_idle(WAIT_S)

    assert Counter(handler.begun) == Counter(accepted)
    assert engine.health().counters == {"done": len(accepted), "dead": 0, "failed": 0, "stale": 0}
    assert engine.health().database_error is None
    assert sum(line.startswith("ERROR no task is claimed or finished until") for line in lines) == 1
    assert engine.stop()


def test_a_claim_that_finds_no_room_is_not_run(
    make_engine: MakeEngine, small_disk: Path, callboard_clock: FakeClock
) -> None:
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)), database=f"sqlite:///{small_disk}/callboard.db")
    engine.start()
    engine.enqueue(receipt("later"), not_before=HOUR)
    assert engine.wait_idle(WAIT_S)
    filler = fill(small_disk)

    callboard_clock.advance(HOUR)
    eventually(lambda: engine.health().database_error)
    assert handler.played == []
    assert [(task.state, task.attempts) for task in engine.tasks()] == [("pending", 0)]

    filler.unlink()
    assert engine.wait_idle(WAIT_S)
    assert handler.played == ["later"]
    assert engine.stop()


def test_a_start_on_a_full_disk_says_so_and_can_be_tried_again(make_engine: MakeEngine, small_disk: Path) -> None:
    filler = fill(small_disk)
    engine = make_engine(Plugin(receipts(Scripted())), database=f"sqlite:///{small_disk}/callboard.db")

    with pytest.raises(DatabaseUnavailableError, match=SAYS):
        engine.start()

    filler.unlink()
    engine.start()
    engine.enqueue(receipt("read"))
    assert engine.wait_idle(WAIT_S)
    assert engine.stop()
