"""`run_until_crash`: a process of its own, and an end that shows whether it was the one asked for."""

import threading
from pathlib import Path

import pytest
from tests.engine.acting import MakeEngine, Plugin, Scripted, receipt, receipts

from callboard import ConfigurationError, Engine, TaskContext
from callboard.testing import CRASH_POINTS, FakeClock, crash_point, run_until_crash


def work(url: str, notes: Path) -> None:
    """Accept a receipt, and send it in the same database, where the effect happens once."""

    def send(message: object, ctx: TaskContext) -> None:
        with notes.open("a") as file:
            file.write("sent\n")
        crash_point("acme.sent")
        with ctx.complete():
            pass

    engine = Engine(url, plugins=[Plugin(receipts(send))], clock=FakeClock())
    engine.enqueue(receipt("read"))
    engine.run_due()


@pytest.mark.parametrize("point", [*CRASH_POINTS, "acme.sent"])
def test_the_process_is_killed_at_the_point_and_the_task_runs_on(
    make_engine: MakeEngine, callboard_database: str, tmp_path: Path, point: str
) -> None:
    run_until_crash(work, callboard_database, tmp_path / "notes", at=point)

    engine = make_engine(Plugin(receipts(sent := Scripted())))
    engine.run_due()
    ended_before = point in CRASH_POINTS[1:4] or point == "callboard.complete.committed"
    assert sent.played == ([] if ended_before else ["read"])
    assert (tmp_path / "notes").exists() == (point != "callboard.claim.committed")


def count(upto: int) -> None:
    for number in range(upto):
        print("counted", number, flush=True)
        crash_point("acme.counted")


def test_one_of_several_times_may_be_meant() -> None:
    run_until_crash(count, 3, at="acme.counted", nth=3)

    with pytest.raises(AssertionError) as error:
        run_until_crash(count, 3, at="acme.counted", nth=4)
    message = str(error.value)
    assert message.startswith("count ended with status 0 and was not killed at acme.counted (time 4);")
    assert all(point in message for point in CRASH_POINTS)
    assert message.endswith("counted 0\ncounted 1\ncounted 2")


def fail() -> None:
    raise ZeroDivisionError("oops")


def hang() -> None:
    threading.Event().wait()


def test_a_process_that_fails_or_hangs_shows_what_it_printed() -> None:
    with pytest.raises(AssertionError, match=r"(?s)fail ended with status 1 .*ZeroDivisionError: oops"):
        run_until_crash(fail, at="acme.never")
    with pytest.raises(AssertionError, match=r"hang had not reached acme.never after 0.2 s"):
        run_until_crash(hang, at="acme.never", timeout=0.2)


def test_a_function_that_another_process_cannot_find_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at the top level of a file"):
        run_until_crash(lambda: None, at="acme.never")
