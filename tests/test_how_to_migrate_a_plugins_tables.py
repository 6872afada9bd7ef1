"""What the how-to shows is run here, on both databases."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests import pages
from tests.engine.either_store import callboard_database
from tests.engine.rows import sql

__all__ = ["callboard_database"]

SHOWN = pages.files("docs/how-to/migrate-a-plugins-tables.md")
URL = "sqlite:///service.db"


def test_the_plugin_runs_as_it_is_shown(callboard_database: str, tmp_path: Path) -> None:
    assert URL in SHOWN["service.py"]
    for name, source in SHOWN.items():
        file = tmp_path / "shown" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.replace(URL, callboard_database), encoding="utf-8")
    command = [sys.executable, "-W", "error", "service.py"]

    first, second = (
        subprocess.run(command, cwd=tmp_path / "shown", capture_output=True, text=True, timeout=60)
        for _ in range(2)
    )

    assert (first.stdout, first.stderr) == ("[('hello', 1)]\n", "")
    assert (second.stdout, second.stderr) == ("[('hello', 2)]\n", "")
    recorded = sql(callboard_database, "SELECT number, title FROM callboard_migration WHERE name = 'acme_notes'")
    assert recorded == [(1, "the notes")]


@pytest.mark.parametrize("name", ["acme_notes/migrations/sqlite/0001_notes.sql", "service.py"])
def test_what_is_shown_is_found(name: str) -> None:
    assert name in SHOWN
