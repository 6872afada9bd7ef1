"""The pages of the documentation as tests read them: their tables, their snippets, and how a reader runs those."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|--) (\S+\.\w+)(, at the end)?\n")


class Snippet(NamedTuple):
    """A block of code on a page.

    Attributes:
        file: the file that it is, which its first line says in a comment; `None` for a program of its own.
        adds: whether it goes at the end of what the page has shown of that file before.
        source: all of it but that first line.
    """

    language: str
    file: str | None
    adds: bool
    source: str


def read(page: str) -> str:
    """Return the text of a page, given by its path from the root of the checkout."""
    return (ROOT / page).read_text(encoding="utf-8")


def snippets(page: str, *languages: str) -> list[Snippet]:
    """Return the snippets of a page in their order, those in `languages` if some are given."""
    found = []
    for _, language, block in _FENCE.findall(read(page)):
        source = dedent(block)
        named = _FILE.match(source)
        if not languages or language in languages:
            source = source[named.end() :] if named else source
            found.append(Snippet(language, named and named[1], bool(named and named[2]), source))
    return found


def write(snippet: Snippet, folder: Path) -> None:
    """Write a snippet that is a file, or the next part of one."""
    assert snippet.file is not None
    with (folder / snippet.file).open("a" if snippet.adds else "w", encoding="utf-8") as file:
        file.write(snippet.source)


def files(*pages: str) -> dict[str, str]:
    """Return the files that pages show, whole, by name; those of later pages take the place of earlier ones."""
    found: dict[str, str] = {}
    for page in pages:
        for snippet in snippets(page):
            if snippet.file is not None:
                found[snippet.file] = (found[snippet.file] if snippet.adds else "") + snippet.source
    return found


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of a shell in which this installation is active, and a warning an error."""
    scripts = os.pathsep.join([sysconfig.get_path("scripts"), os.path.dirname(sys.executable)])
    path = scripts + os.pathsep + os.environ["PATH"]
    return {**os.environ, "PATH": path, "PYTHONWARNINGS": "error", **variables}


def shell(commands: str, folder: Path, **variables: str) -> str:
    """Run the commands of a snippet and return what they printed; they must succeed."""
    return _run(["sh", "-ec", commands], folder, **variables).stdout


def python(*arguments: str, folder: Path) -> str:
    """Run Python and return what it printed; it must succeed and have nothing to complain of."""
    done = _run([sys.executable, *arguments], folder)
    assert done.stderr == ""
    return done.stdout


def _run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def tables(page: str, heading: str | None = None) -> list[list[dict[str, str]]]:
    """Return the tables of a page, or those under a heading, as rows of cells by the titles of their columns."""
    text = read(page)
    if heading is not None:
        [text] = re.findall(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        titles, _, *rows = ([cell.strip() for cell in line.strip("|").split(" |")] for line in block.splitlines())
        found.append([dict(zip(titles, row, strict=True)) for row in rows])
    return found


def table(page: str, title: str) -> list[dict[str, str]]:
    """Return the rows of the one table of a page whose first column has this title."""
    [found] = [rows for rows in tables(page) if next(iter(rows[0])) == title]
    return found


def column(rows: list[dict[str, str]], title: str) -> list[str]:
    """Return the cells of a column, without the marks of code."""
    return [plain(row[title]) for row in rows]


def pairs(rows: list[dict[str, str]], first: str, second: str) -> dict[str, str]:
    """Return the cells of one column by those of another, without the marks of code."""
    return dict(zip(column(rows, first), column(rows, second), strict=True))


def plain(cell: str) -> str:
    """Return a cell without the marks of code."""
    return cell.replace("`", "")
