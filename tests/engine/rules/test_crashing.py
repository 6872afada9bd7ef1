"""Rule 3: a crash at any instant loses nothing, and effects in the same database happen exactly once."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.engine.acting import (
    RECEIPT,
    MakeEngine,
    Plugin,
    Scripted,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.messages import SendReceipt
from tests.engine.rows import sql, text_of
from tests.engine.rules.crashing_engine import EFFECT_TABLE, Notes, noting

from callboard import (
    Defer,
    Done,
    StaleRunError,
    SystemClock,
    TaskContext,
)
from callboard.testing import CRASH_ENVIRONMENT, CRASH_POINTS

pytestmark = pytest.mark.slow

THREAD = "acme.receipts.ReceiptThread"
ROOT = Path(__file__).parents[3]
DAY = timedelta(days=1)


def crash(url: str, notes: Path, point: str, nth: int) -> None:
    """Have another process accept and run tasks until it is killed at a point."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.engine.rules.crashing_engine", url, notes, "12"],
        env=os.environ | {CRASH_ENVIRONMENT: f"{point}:{nth}"},
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", CRASH_POINTS)
def test_rule_03_a_crash_loses_no_task_and_finishes_none_that_did_not_run(
    make_engine: MakeEngine, callboard_database: str, tmp_path: Path, point: str, nth: int
) -> None:
    notes = Notes(tmp_path / "notes")
    engine = make_engine(noting(notes), clock=SystemClock())
    engine.migrate()
    sql(callboard_database, EFFECT_TABLE)

    crash(callboard_database, tmp_path / "notes", point, nth)

    accepted, sent = notes.read("accepted"), notes.read("sent")
    waiting = [text_of(task.data) for task in engine.tasks(kind=RECEIPT)]
    followed = [text_of(task.data) for task in engine.tasks(kind=THREAD)] + effects(callboard_database)
    assert not set(waiting) & set(followed)
    assert set(accepted) <= set(waiting) | set(followed)
    assert set(followed) <= set(sent)

    engine.run_due()

    assert engine.tasks() == []
    assert engine.dead_tasks() == []
    assert set(notes.read("sent")) == {*waiting, *followed}
    # Exactly once: what `ctx.complete` wrote, and what `ctx.enqueue` asked for.
    assert sorted(effects(callboard_database)) == sorted({*waiting, *followed})


def effects(url: str) -> list[str]:
    return [text for (text,) in sql(url, "SELECT text FROM effect")]


def test_rule_03_complete_commits_effects_follow_ups_and_completion_together(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        ctx.enqueue(thread("buffered before"))
        with ctx.complete(Done()) as tx:
            tx.connection.execute("INSERT INTO effect VALUES ('sent')")
            tx.enqueue(thread("enqueued within"))
            tx.group(b"g").consent("allowed")
            seen.append((effects(callboard_database), states(callboard_database)))
        seen.append((effects(callboard_database), states(callboard_database)))

    seen: list[Any] = []
    engine = make_engine(Plugin(receipts(send), threads(Scripted(Defer(DAY)))))
    engine.migrate()
    sql(callboard_database, EFFECT_TABLE)
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert seen == [([], [(RECEIPT, "running")]), (["sent"], [(THREAD, "pending"), (THREAD, "pending")])]


def states(url: str) -> list[tuple[str, str]]:
    return sql(url, "SELECT kind, state FROM callboard_task ORDER BY id")


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), SystemExit(3)])
def test_rule_03_complete_commits_nothing_when_its_body_raises(
    make_engine: MakeEngine, callboard_database: str, error: BaseException
) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        with ctx.complete(Done()) as tx:
            tx.connection.execute("INSERT INTO effect VALUES ('sent')")
            tx.enqueue(thread("enqueued within"))
            raise error

    engine = make_engine(Plugin(receipts(send), threads(Scripted())))
    engine.migrate()
    sql(callboard_database, EFFECT_TABLE)
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert effects(callboard_database) == []
    assert [(task.kind, task.attempts) for task in engine.tasks()] == [(RECEIPT, 1)]


def test_rule_03_complete_refuses_a_run_that_no_longer_holds_its_row(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    def send(message: SendReceipt, ctx: TaskContext) -> None:
        assert ctx.engine.cancel(ctx.task.id)
        with pytest.raises(StaleRunError), ctx.complete(Done()) as tx:
            tx.connection.execute("INSERT INTO effect VALUES ('sent')")
        cancelled.append(ctx.cancelled)

    cancelled: list[bool] = []
    engine = make_engine(Plugin(receipts(send)))
    engine.migrate()
    sql(callboard_database, EFFECT_TABLE)
    engine.enqueue(receipt("read"))

    engine.run_due()

    assert cancelled == [True]
    assert effects(callboard_database) == []
    assert [dead.reason for dead in engine.dead_tasks()] == ["cancelled"]


def test_rule_03_what_an_engine_that_died_left_running_runs_again_uncounted(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(Plugin(receipts(handler := Scripted(Defer(DAY)))))
    engine.enqueue(receipt("read"))
    sql(callboard_database, "UPDATE callboard_task SET state = 'running', owner = 7, token = 5")

    engine.run_due()

    assert handler.played == ["read"]
    [task] = engine.tasks()
    assert (task.state, task.attempts) == ("pending", 0)
    assert task.token == 7  # one for the rescue, one for the claim: a late outcome of the first run is dropped
