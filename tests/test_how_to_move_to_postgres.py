"""What the how-to shows is run here, in its order, with the README's plugin."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from tests import pages
from tests.postgres import postgres_url

__all__ = ["postgres_url"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")

HOW_TO = "docs/how-to/move-to-postgres.md"


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """Return a folder with what is shown; the how-to's service takes the place of the README's."""
    for name, source in pages.files("README.md", HOW_TO).items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path


def test_a_service_moves_as_it_is_shown(shown: Path, postgres_url: str) -> None:
    shell = partial(pages.shell, folder=shown)
    assert shell("python service.py") == "sent: sent from sqlite\n"
    shell("python -c 'import service; service.engine.enqueue(service.StringValue(value=\"moved\"))'")
    blocks = pages.snippets(HOW_TO, "console")
    said = [shell(block.source, CALLBOARD_DATABASE=postgres_url) for block in blocks]

    assert ["callboard_task", "1", "1"] in [line.split()[:3] for line in said[0].splitlines()]
    assert sorted(said[1].splitlines()[:2]) == ["sent: moved", "sent: sent from postgresql"]
    assert said[1].endswith("none\n")
