"""`callboard run` as a process: what it serves, and how it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from tests.engine.test_cli.processes import PLUGIN, lines_until, tasks

from callboard import Engine, SystemClock

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX signals and FIFOs"),
]


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "callboard.db")


@pytest.fixture
def fifo(install: Callable[..., None], make_engine: Callable[..., Engine], tmp_path: Path) -> Path:
    """What the handler of the one task waits for."""
    install("acme", PLUGIN, callboard="acme = acme")
    path = tmp_path / "fifo"
    os.mkfifo(path)
    make_engine(clock=SystemClock()).enqueue(StringValue(value=str(path)), allow_unknown=True)
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_exits_0(script: Any, database: str, fifo: Path, number: signal.Signals) -> None:
    process = script.start("run", database)
    lines_until(process, "Ctrl-C stops\n", "handler started\n")
    process.send_signal(number)
    lines_until(process, f"{number.name}: waiting up to 30 s for running tasks; Ctrl-C ends at once\n")
    fifo.write_text("")
    rest, _ = process.communicate()
    assert "handler ended\n" in rest
    assert process.returncode == 0
    assert tasks(script, database) == []


def test_a_task_that_outlives_the_timeout_exits_1_and_stays(script: Any, database: str, fifo: Path) -> None:
    process = script.start("run", database, "--timeout", "0", "--log-level", "ERROR")
    lines_until(process, "Ctrl-C stops\n", "handler started\n")
    process.terminate()
    rest, _ = process.communicate()
    assert process.returncode == 1
    assert [line for line in rest.splitlines() if line.startswith("Error: ")] == [
        "Error: a task was still running after 0 s and runs again at the next start; give it longer with --timeout"
    ]
    assert [task["state"] for task in tasks(script, database)] == ["running"]


def test_a_second_ctrl_c_ends_at_once(script: Any, database: str, fifo: Path) -> None:
    process = script.start("run", database)
    lines_until(process, "Ctrl-C stops\n", "handler started\n")
    process.send_signal(signal.SIGINT)
    lines_until(process, "Ctrl-C ends at once\n")
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" not in rest
    assert len(tasks(script, database)) == 1


def test_the_start_names_what_is_served_what_is_broken_and_which_service_is_missing(
    script: Any, install: Callable[..., None], database: str
) -> None:
    install("acme", PLUGIN, callboard="acme = acme")
    install("broken", "raise RuntimeError('no luck')", callboard="broken = broken")
    process = script.start("run", database)
    said = lines_until(process, "Ctrl-C stops\n")
    process.terminate()
    process.communicate()
    assert process.returncode == 0
    assert "plugin acme: serves google.protobuf.StringValue\n" in said
    assert "plugin broken: import failed: RuntimeError: no luck\n" in said
    assert (
        "left to other nodes, which have acme.Mailer: google.protobuf.BytesValue; to serve them, embed the engine"
        " with Engine(..., services={Mailer: ...})\n" in said
    )
    assert f"serving database {database}; Ctrl-C stops\n" in said


def test_one_database_is_served_by_several_processes(script: Any, database: str) -> None:
    processes = [script.start("run", database) for _ in range(2)]
    for process in processes:
        lines_until(process, "Ctrl-C stops\n")
    for process in processes:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


def test_plugin_kinds_are_listed_with_the_services_that_they_need(
    script: Any, install: Callable[..., None]
) -> None:
    install("acme", PLUGIN, callboard="acme = acme")
    listed = json.loads(script.run("kinds", "--json").stdout)["kinds"]
    assert [entry for entry in listed if entry["plugin"] == "acme"] == [
        {"kind": f"google.protobuf.{name}", "plugin": "acme", "recurring": False, "requires": requires}
        for name, requires in (("BytesValue", ["acme.Mailer"]), ("StringValue", []))
    ]


def test_a_closed_pipe_ends_a_listing_quietly(
    script: Any, make_engine: Callable[..., Engine], database: str
) -> None:
    engine = make_engine(clock=SystemClock())
    engine.enqueue_many([StringValue(value=str(number)) for number in range(500)], allow_unknown=True)
    for flags in ([], ["--json"]):
        process = script.start("tasks", "list", database, "--limit", "500", *flags, stderr=-1)
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(timeout=30)
