"""What the how-to shows is run here, on gunicorn with two workers: one is killed, all stop; and mistakes."""

import os
import signal
import sqlite3
import tomllib
from contextlib import closing, suppress
from pathlib import Path
from subprocess import Popen

import pytest
from tests.engine.acting import eventually
from tests.installed import describe
from tests.shown import BLOCKING_MAILER, Page, Processes, post, processes, said

__all__ = ["processes"]

pytest.importorskip("gunicorn", reason="needs gunicorn")

PAGE = Page("embed-gunicorn")
CONFIG, WEB_CONFIG = (
    PAGE.files[name].replace("127.0.0.1:8000", "127.0.0.1:0") for name in ("gunicorn.conf.py", "web.conf.py")
)
CALLBOARD = ("-c", "from callboard.cli import main; main()")


def serve(processes: Processes, *arguments: str) -> tuple[Popen[str], int]:
    """Start gunicorn; return it and its port. From Python 3.12 on its own threads make its forks warn."""
    server = processes.start("-m", "gunicorn", *arguments, warnings="default")
    return server, int(said(server, r"Listening at: http://127.0.0.1:(\d+)")[1])


def query(folder: Path, statement: str) -> list[int]:
    """Return one column; nothing as long as there are no tables."""
    with closing(sqlite3.connect(folder / "service.db")) as connection, suppress(sqlite3.OperationalError):
        return [value for (value,) in connection.execute(statement)]
    return []


def nodes(folder: Path) -> list[int]:
    """Return the process ids of the engines that run tasks."""
    return query(folder, "SELECT pid FROM callboard_node ORDER BY pid")


def install(folder: Path, module: str) -> None:
    """Have processes in the folder find the distribution that the page shows, as if it were installed."""
    shown = tomllib.loads(PAGE.files["pyproject.toml"])["project"]
    [(name, target)] = shown["entry-points"]["callboard"].items()
    assert (target, shown["version"]) == ("receipts_alone", "1.0")
    describe(folder, shown["name"], callboard=f"{name} = {module}")


def test_a_killed_worker_loses_nothing_and_all_stop_as_it_is_shown(processes: Processes, tmp_path: Path) -> None:
    PAGE.write(tmp_path, gunicorn__conf=CONFIG, mailer=BLOCKING_MAILER)
    server, port = serve(processes)
    eventually(lambda: len(nodes(tmp_path)) == 2)
    workers = nodes(tmp_path)
    assert server.pid not in workers

    assert post(port, "/orders/blocks") == (202, "inserted\n")
    victim = int(said(server, r"^blocked in (\d+)")[1])
    assert victim in workers
    (tmp_path / "go_on").touch()
    os.kill(victim, signal.SIGKILL)
    said(server, "^sent: blocks$")

    eventually(lambda: len(nodes(tmp_path)) == 2)
    assert victim not in nodes(tmp_path)
    orders = [str(number) for number in range(10)]
    assert [post(port, f"/orders/{order}")[0] for order in orders] == [202] * 10
    assert sorted(said(server, r"^sent: (\d+)$")[1] for _ in orders) == orders
    server.send_signal(signal.SIGTERM)
    assert server.wait(40) == 0
    assert nodes(tmp_path) == []
    assert query(tmp_path, "SELECT id FROM callboard_task UNION ALL SELECT id FROM callboard_dead_task") == []


def test_workers_that_only_enqueue_leave_the_tasks_to_another_process(
    processes: Processes, tmp_path: Path
) -> None:
    PAGE.write(tmp_path, web__conf=WEB_CONFIG)
    install(tmp_path, "receipts_alone")
    _, port = serve(processes, "-c", "web.conf.py")
    assert post(port, "/orders/17") == (202, "inserted\n")
    assert nodes(tmp_path) == []

    worker = processes.start("worker.py")
    said(worker, "^sent: receipt of order 17$")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0

    assert post(port, "/orders/18") == (202, "inserted\n")
    said(processes.start(*CALLBOARD, "run", "service.db"), "^sent: receipt of order 18$")


def test_an_engine_that_is_started_before_the_fork_runs_in_the_master(
    processes: Processes, tmp_path: Path
) -> None:
    hookless = CONFIG.partition("def post_worker_init")[0]
    PAGE.write(tmp_path, gunicorn__conf=hookless, app=PAGE.files["app.py"] + "\nengine.start()\n")
    server, port = serve(processes)

    assert post(port, "/orders/17")[0] == 202
    said(server, "^sent: receipt of order 17$")
    assert nodes(tmp_path) == [server.pid]


def test_each_mistake_has_the_error_that_is_shown(processes: Processes, tmp_path: Path) -> None:
    stops = "\ndef pre_fork(server, worker):\n    from app import engine\n    engine.stop()\n"
    PAGE.write(tmp_path, gunicorn__conf=CONFIG + stops)
    install(tmp_path, "receipts")
    server, _ = serve(processes)
    stopped = said(server, r"callboard\.errors\.(EngineStateError: .+)")[1]
    assert server.wait(20) != 0
    running = processes.start(*CALLBOARD, "run", "service.db")
    left = said(running, "^left to other nodes, which have mailer.*")[0]

    assert PAGE.tells_of(stopped), stopped
    assert PAGE.tells_of(left), left
