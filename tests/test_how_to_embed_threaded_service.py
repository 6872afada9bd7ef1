"""What the how-to shows is run here: a service with threads, stopped, killed, and misused."""

import signal
import sys
from pathlib import Path

import pytest
from tests.shown import BLOCKING_MAILER, REPORT, Page, Processes, post, processes, said

__all__ = ["processes"]

PAGE = Page("embed-threaded-service")
ANY_PORT = PAGE.files["service.py"].replace('("127.0.0.1", 8000)', '("127.0.0.1", 0)')

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is no signal there")


def test_it_runs_and_stops_as_it_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, service=ANY_PORT)
    service = processes.start("service.py")
    port = int(said(service, r"serving on port (\d+)")[1])

    assert post(port, "/orders/17")[0] == 202
    said(service, "^sent: receipt of order 17$")

    service.send_signal(signal.SIGTERM)
    assert service.wait(20) == 0


def test_what_was_accepted_before_a_kill_is_done_after_the_next_start(
    processes: Processes, tmp_path: Path
) -> None:
    PAGE.write(tmp_path, service=ANY_PORT, mailer=BLOCKING_MAILER)
    service = processes.start("service.py")
    port = int(said(service, r"serving on port (\d+)")[1])
    assert post(port, "/orders/blocks")[0] == 202
    said(service, "^blocked in ")
    service.kill()
    service.wait()

    (tmp_path / "go_on").touch()
    said(processes.start("service.py"), "^sent: blocks$")


MISTAKES = """
import sys
import receipts
from google.protobuf.wrappers_pb2 import StringValue
from loguru import logger
from mailer import Mailer
from report import reported
from callboard import Engine

URL, MESSAGE = "sqlite:///service.db", StringValue(value="17")


class StopsItsEngine(Mailer):
    def send(self, order):
        with reported():
            engine.stop()


with Engine(URL, plugins=[receipts], services={Mailer: StopsItsEngine()}) as engine:
    engine.enqueue(MESSAGE)
    engine.wait_idle(20)
with reported():
    engine.enqueue(MESSAGE)

logger.enable("callboard")
logger.remove()
logger.add(sys.stdout, format="{message}", level="WARNING")
with Engine(URL, plugins=[receipts]) as engine:
    print(engine.health().missing_services)

engine = Engine(URL, plugins=[])
with reported():
    engine.enqueue(MESSAGE)
with reported(), engine.transaction():
    engine.start()
engine.stop()
"""


def test_each_mistake_has_the_error_that_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, mistakes=MISTAKES, report=REPORT)

    stop, stopped, warning, missing, unknown, start = processes.run("mistakes.py")

    assert missing == "{'google.protobuf.StringValue': ['Mailer']}"
    for error in (stop, stopped, warning, unknown, start):
        assert PAGE.tells_of(error), error
