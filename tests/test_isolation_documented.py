"""The snippets of `docs/reference/isolation.md` run, and say of defaults what is true."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests import pages
from tests.engine.messages import SendReceipt
from tests.engine.test_cli.conftest import Script, install, site
from tests.engine.test_cli.processes import PLUGIN, lines_until

import callboard
from callboard import TaskKind
from callboard._actors.throttle import FIRST_PAUSE_NS, LONGEST_PAUSE_NS
from callboard._actors.workload import CLAIM_AHEAD
from callboard._engine import DEFAULT_WORKERS
from callboard.stores import LOOK

__all__ = ["install", "site"]

NAME = "docs/reference/isolation.md"
PAGE = pages.read(NAME)
PYTHON = [shown.source for shown in pages.snippets(NAME, "python")]
[COMMAND] = [shown.source for shown in pages.snippets(NAME, "sh")]


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in PYTHON:
        exec(compile(snippet, "isolation.md", "exec"), names)

    assert names["callboard_api"] == callboard.API_VERSION
    assert names["kind"].concurrency == 2
    names["engine"].load_plugins()
    assert "acme_receipts" not in [plugin.name for plugin in names["engine"].health().plugins if plugin.loaded]


def test_the_command_runs_an_engine_without_what_it_blocks(
    install: Callable[..., None], site: Path, tmp_path: Path
) -> None:
    install("acme_receipts", PLUGIN, callboard="acme_receipts = acme_receipts")
    variable, *command = shlex.split(COMMAND)
    name, _, blocked = variable.partition("=")
    assert command == ["callboard", "run", "service.db"]
    script = Script({**os.environ, "PYTHONPATH": str(site), name: blocked})
    try:
        process = script.start("run", str(tmp_path / "service.db"))
        said = lines_until(process, "Ctrl-C stops")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        script.close()
    assert "no plugin 'acme_reports' is installed" in said
    assert "plugin acme_receipts" not in said
    assert "google.protobuf.StringValue" not in said


def test_the_numbers_are_the_engines() -> None:
    flat = " ".join(PAGE.split())
    kind: TaskKind[Any] = TaskKind(SendReceipt, lambda message, ctx: None)
    assert f"after {kind.pause_after} different groups" in flat
    assert f"After {FIRST_PAUSE_NS // 10**9} s one task is tried" in flat
    assert LONGEST_PAUSE_NS == 60 * 10**9
    assert "from then on once a minute" in flat
    assert f"at most {CLAIM_AHEAD}, and then" in flat
    assert f"the first {LOOK:,} due tasks" in flat
    assert f"`Engine(workers={DEFAULT_WORKERS})`" in flat
    assert kind.timeout == timedelta(minutes=5)
    assert "(5 minutes by default)" in flat
