"""What the how-to shows is run here, in its order, with the README's plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.postgres import postgres_url

__all__ = ["postgres_url"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")

ROOT = Path(__file__).parent.parent
HOW_TO = (ROOT / "docs/how-to/move-to-postgres.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.compile(r"^```python\n# (\S+)\n(.+?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^ *```console\n(.+?)^ *```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """Return a folder with what is shown; the how-to's service takes the place of the README's."""
    for name, source in {**dict(PYTHON.findall(README)), **dict(PYTHON.findall(HOW_TO))}.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path


def test_a_service_moves_as_it_is_shown(shown: Path, postgres_url: str) -> None:
    scripts = os.pathsep.join([sysconfig.get_path("scripts"), os.path.dirname(sys.executable)])
    environment = {**os.environ, "PATH": scripts + os.pathsep + os.environ["PATH"], "PYTHONWARNINGS": "error"}

    def shell(command: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", command], cwd=shown, env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert shell("python service.py") == "sent: sent from sqlite\n"
    shell("python -c 'import service; service.engine.enqueue(service.StringValue(value=\"moved\"))'")
    environment["CALLBOARD_DATABASE"] = postgres_url
    said = [shell(block) for block in CONSOLE.findall(HOW_TO)]

    assert ["callboard_task", "1", "1"] in [line.split()[:3] for line in said[0].splitlines()]
    assert sorted(said[1].splitlines()[:2]) == ["sent: moved", "sent: sent from postgresql"]
    assert said[1].endswith("none\n")
