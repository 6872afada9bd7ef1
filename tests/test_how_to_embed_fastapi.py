"""What the how-to shows is run here: by a TestClient, by uvicorn, which is stopped and killed; and mistakes."""

import signal
import sys
from pathlib import Path

import pytest
from tests.shown import REPORT, Page, Processes, post, processes, said

__all__ = ["processes"]

for needed in ("fastapi", "httpx2", "uvicorn"):
    pytest.importorskip(needed, reason="needs fastapi, httpx2 and uvicorn")

PAGE = Page("embed-fastapi")
SERVER = ("-m", "uvicorn", "--port", "0")
PORT = r"Uvicorn running on http://127.0.0.1:(\d+)"

BLOCKING_MAILER = """
import asyncio, os, pathlib


class Mailer:
    async def send(self, order):
        if order == "blocks" and not pathlib.Path("go_on").exists():
            print(f"blocked in {os.getpid()}", flush=True)
            await asyncio.Event().wait()
        print(f"sent: {order}", flush=True)
"""

TALK = """
import sys
from starlette.testclient import TestClient
import app, app_starlette

for application in (app.app, app.app, app_starlette.app):  # one of them twice, as tests do
    with TestClient(application) as client:
        answer = client.post("/orders/17")
        client.app_state["engine"].wait_idle(20)
        print(answer.status_code, answer.json())
        if application is app.app:
            print(client.get("/health").json())
"""


def test_both_applications_run_as_they_are_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, talk=TALK)

    lines = processes.run("talk.py")

    accepted, receipt = "202 {'receipt': 'inserted'}", "sent: receipt of order 17"
    healthy = "{'state': 'running', 'database': 'ok', 'running': 0}"
    assert sorted(lines) == sorted([accepted, receipt] * 3 + [healthy] * 2)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is no signal there")
def test_a_killed_server_loses_nothing_and_a_stopped_one_hands_back(processes: Processes, tmp_path: Path) -> None:
    """The coroutine in the middle is killed with its process, and then cancelled by a stop without patience."""
    impatient = PAGE.files["app.py"].replace(
        'yield {"engine": engine}', 'yield {"engine": engine}\n        await asyncio.to_thread(engine.stop, 0.1)'
    )
    PAGE.write(tmp_path, app="import asyncio\n" + impatient, mailer=BLOCKING_MAILER)
    killed = processes.start(*SERVER, "app:app")
    port = int(said(killed, PORT)[1])
    assert post(port, "/orders/blocks")[0] == 202
    said(killed, "^blocked in ")
    killed.kill()
    killed.wait()

    stopped = processes.start(*SERVER, "app:app")
    said(stopped, "^blocked in ")
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(20) in (0, -signal.SIGTERM)

    (tmp_path / "go_on").touch()
    worker = processes.start("worker.py")
    said(worker, "^sent: blocks$")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0


MISTAKES = """
import contextlib
import app, receipts
from fastapi import FastAPI
from google.protobuf.wrappers_pb2 import StringValue
from mailer import Mailer
from report import reported
from starlette.testclient import TestClient
from callboard import Done, Engine, TaskKind, hookimpl

with reported():
    TestClient(app.app).post("/orders/17")

shared = Engine("sqlite:///service.db", plugins=[receipts], services={Mailer: Mailer()})

@contextlib.asynccontextmanager
async def lifespan(app):
    async with shared:
        yield

application = FastAPI(lifespan=lifespan)
with TestClient(application):
    pass
with reported(), TestClient(application):
    pass


async def awaits(message, ctx):
    with ctx.complete(Done()):
        await ctx.service(Mailer).send(message.value)
        await __import__("asyncio").sleep(0)


class Awaiting:
    @hookimpl
    def callboard_task_kinds(self):
        return [TaskKind(StringValue, awaits)]


with Engine("sqlite:///awaiting.db", plugins=[Awaiting()], services={Mailer: Mailer()}) as engine:
    engine.enqueue(StringValue(value="17"))
    engine.wait_idle(20)
    print([task.last_error for task in engine.tasks()][0].strip().splitlines()[-1])
"""


def test_each_mistake_has_the_error_that_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, mistakes=MISTAKES, report=REPORT)

    lines = processes.run("mistakes.py")

    no_lifespan, stopped, _, awaited = lines
    for error in (no_lifespan, stopped, awaited.removeprefix("callboard.errors.")):
        assert PAGE.tells_of(error), error
