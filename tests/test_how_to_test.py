"""What the how-tos on testing show is run here, with the README's plugin; the reference has every name."""

import inspect
import re
import subprocess
import sys

import pytest
from tests import pages

from callboard import testing
from callboard.testing import pytest_plugin

PAGES = {"plugin": "docs/how-to/test-a-plugin.md", "host": "docs/how-to/test-a-host.md"}
REFERENCE = pages.read("docs/reference/testing.md")


FAILING = """
from datetime import timedelta

from callboard.testing import assert_enqueued
from google.protobuf.wrappers_pb2 import StringValue


def test_it(engine, mailer):
    mailer.send = lambda text: 1 / 0
    engine.enqueue(StringValue(value="thanks"))
    engine.run_due()
    assert_enqueued(engine, StringValue(value="thanks"), due=timedelta(days=1))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run what both pages show, each in a folder of its own, and a test that fails; return what pytest says."""
    folder = tmp_path_factory.mktemp("shown")
    for name, page in PAGES.items():
        (folder / name).mkdir()
        for file, source in pages.files("README.md", page).items():
            (folder / name / file).write_text(source, encoding="utf-8")
    (folder / "plugin" / "test_failing.py").write_text(FAILING, encoding="utf-8")
    command = [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-rA", *PAGES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    return done.stdout + done.stderr


def test_each_test_passes_as_it_is_shown(report: str) -> None:
    for name, page in PAGES.items():
        for file, source in pages.files(page).items():
            for test in re.findall(r"^def (test_\w+)", source, re.MULTILINE):
                assert f"PASSED {name}/{file}::{test}" in report
    assert re.findall(r"=+ (.+) in ", report)[-1] == "1 failed, 12 passed"


def test_a_failure_looks_as_it_is_shown(report: str) -> None:
    [shown] = [block.source.rstrip() for block in pages.snippets(PAGES["plugin"], "text")]

    reported = "\n".join(line.removeprefix("E").strip() for line in report.splitlines())
    assert "\n".join(line.strip() for line in shown.splitlines()) in reported.replace("AssertionError: ", "")
    assert re.search(r"> +assert_enqueued\(engine", report), "the line of the test is the one shown"


def test_the_reference_has_every_name_as_it_is_called() -> None:
    for name in testing.__all__:
        if inspect.isfunction(named := getattr(testing, name)):
            parameters = inspect.signature(named).parameters.values()
            bare = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters])
            assert f"| `{name}{bare}` |" in REFERENCE
        assert f"`{name}" in REFERENCE


def test_the_reference_has_every_fixture() -> None:
    source = inspect.getsource(pytest_plugin)
    fixtures = re.findall(r"@pytest\.fixture\ndef (\w+)", source)
    assert "make_engine" in fixtures
    for name in fixtures:
        assert f"| `{name}` |" in REFERENCE
