"""The recipe installs a plugin from its checkout, beside this engine and no other, and runs its tests on it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from callboard.wire import KpRotation

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parent.parent.parent

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "callboard-acme"
version = "1.0"
dependencies = ["callboard {engine}"]

[project.entry-points.callboard]
acme = "acme"

[tool.setuptools]
py-modules = ["acme"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""

PLUGIN = f"""
from callboard import TaskKind, hookimpl
from callboard.wire import {KpRotation.__name__}

@hookimpl
def callboard_task_kinds():
    return [TaskKind({KpRotation.__name__}, lambda message, ctx: None)]
"""

TESTS = f"""
import acme
from callboard.wire import {KpRotation.__name__}

def test_it_is_found_and_runs(make_engine):
    engine = make_engine("acme")
    engine.enqueue({KpRotation.__name__}())
    assert engine.run_due() == 1

def test_it_is_the_installed_one():
    assert "site-packages" in acme.__file__

def test_it_fails():
    assert False

def test_it_is_left_out():
    pass
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that finds what is installed here, and installs elsewhere."""
    pytest.importorskip("setuptools", "70.1", reason="builds a wheel without the package wheel")
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    [site] = folder.glob("lib/*/site-packages")
    (site / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return folder / "bin" / "python"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "acme"
    (folder / "tests").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(engine="~=0.1"))
    (folder / "acme.py").write_text(PLUGIN)
    (folder / "tests" / "test_acme.py").write_text(TESTS)
    return folder


def downstream(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the recipe; nothing comes from the package index."""
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "tests.downstream", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)


def test_a_plugins_tests_run_on_this_engine(python: Path, checkout: Path) -> None:
    before = sorted(checkout.rglob("*"))

    ran = downstream(python, checkout, "-k", "not left_out")

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "FAILED tests/test_acme.py::test_it_fails" in ran.stdout
    assert "1 failed, 2 passed, 1 deselected" in ran.stdout
    assert sorted(checkout.rglob("*")) == before


def test_a_plugin_for_another_engine_is_refused(python: Path, checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text(PYPROJECT.format(engine=">=9"))

    refused = downstream(python, checkout)

    assert refused.returncode == 1
    assert f"Error: {checkout} cannot be installed beside callboard" in refused.stderr


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    refused = downstream(Path(sys.executable), tmp_path)

    assert refused.returncode == 2
    assert f"{tmp_path} is no checkout of a plugin" in refused.stderr
