"""What the how-to shows is run here: once and again, interrupted, killed, and misused."""

import signal
import sys
from pathlib import Path

import pytest
from tests.shown import BLOCKING_MAILER, REPORT, Page, Processes, processes, said

__all__ = ["processes"]

PAGE = Page("embed-script")


def test_it_runs_as_it_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path)

    sent = [f"sent: receipt of order {order}" for order in (17, 18)]
    assert processes.run("nightly.py", "17", "18") == [*sent, "2 run, 0 left for later, 0 dead"]
    assert processes.run("nightly.py") == ["0 run, 0 left for later, 0 dead"]


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent in another way there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_a_signal_cuts_short_is_done_by_the_next_run(
    number: signal.Signals, processes: Processes, tmp_path: Path
) -> None:
    PAGE.write(tmp_path, mailer=BLOCKING_MAILER)
    script = processes.start("nightly.py", "blocks")
    said(script, "^blocked in ")
    script.send_signal(number)
    assert script.wait(20) == -number

    (tmp_path / "go_on").touch()
    assert processes.run("nightly.py") == ["sent: blocks", "1 run, 0 left for later, 0 dead"]


MISTAKES = """
import receipts
from google.protobuf.wrappers_pb2 import StringValue
from mailer import Mailer
from report import reported
from callboard import Engine

made = lambda: Engine("sqlite:///service.db", plugins=[receipts], services={Mailer: Mailer()})
with made() as engine:
    engine.enqueue(StringValue(value="17"))
    with reported():
        engine.run_due()
    engine.wait_idle(20)
with reported():
    engine.tasks()
engine = made()
with reported(), engine.transaction():
    engine.run_due()
engine.stop()
"""


def test_each_mistake_has_the_error_that_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, mistakes=MISTAKES, report=REPORT)

    lines = processes.run("mistakes.py")

    errors = [line for line in lines if line != "sent: receipt of order 17"]
    assert len(errors) == 3
    assert [error for error in errors if not PAGE.tells_of(error)] == []
