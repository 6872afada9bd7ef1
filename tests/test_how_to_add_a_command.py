"""What the how-to shows is done here to what `callboard new-plugin` writes."""

from __future__ import annotations

import os
import re
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from tests import pages
from tests.engine.test_cli.invoking import callboard
from tests.installed import describe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")

PAGE = "docs/how-to/add-a-command.md"
NAME = "acme_notes"
[COMMANDS] = [shown.source.splitlines() for shown in pages.snippets(PAGE, "console")]
[NAMED] = [shown.source for shown in pages.snippets(PAGE, "ini")]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Return the folder of the plugin with the command."""
    folder = tmp_path / "plugin"
    assert callboard("new-plugin", NAME, "--path", str(folder)).exit_code == 0
    for snippet in pages.snippets(PAGE, "python"):
        pages.write(snippet, folder)
    return folder


@pytest.fixture
def path(plugin: Path, tmp_path: Path) -> str:
    """Return a PYTHONPATH on which it is as if it were installed."""
    written, named = ConfigParser(), ConfigParser()
    written.read(plugin / "setup.cfg", encoding="utf-8")
    named.read_string(NAMED)
    points = named["options.entry_points"]
    assert written["options.entry_points"]["callboard"] == points["callboard"]
    lines = {group.replace(".", "_"): names.strip() for group, names in points.items()}
    describe(tmp_path / "site", written["metadata"]["name"], **lines)
    return f"{plugin}{os.pathsep}{tmp_path / 'site'}"


def test_the_command_runs_as_it_is_shown(plugin: Path, path: str) -> None:
    [service] = pages.snippets(str(plugin / "README.md"), "python")
    (plugin / "service.py").write_text(service.source, encoding="utf-8")
    pages.shell("python service.py", plugin, PYTHONPATH=path)

    listed, helped, plugins = (pages.shell(line, plugin, PYTHONPATH=path) for line in COMMANDS)

    assert listed == "1  1  hello\n"
    assert "List the notes in DATABASE" in helped
    assert re.search(r"^\W*notes\W+acme-notes", plugins, re.MULTILINE), plugins


def test_it_runs_where_the_plugin_is_blocked(plugin: Path, path: str) -> None:
    said = pages.shell("callboard notes --help", plugin, PYTHONPATH=path, CALLBOARD_BLOCK_PLUGINS=NAME)

    assert "List the notes in DATABASE" in said
