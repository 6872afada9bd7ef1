"""How listings look: JSON documents for scripts, and for people tables, or blocks of lines where it is narrow.

No listing shows a task's payload: it may be private, and is seldom what one looks for.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from callboard._clock import NEVER_NS
from callboard._task import DeadTask, Task

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Column, Table

_TRACEBACK = "Traceback (most recent call last):"
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_GROUP_DIGITS = 8
_NO_LIMIT = 1_000

MIN_WIDTH = 80
"""For what width tables and bars are made."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def print_json(document: dict[str, Any]) -> None:
    """Print a listing for scripts."""
    click.echo(json.dumps(document, indent=2))


def print_table(columns: Sequence[Column | str], rows: Iterable[Sequence[str]]) -> None:
    """Print a listing for people, as wide as the terminal; nothing is cut or folded where there is none.

    A column with a `ratio` takes the width that the others leave. Where there is no room for columns, each row is
    a block of lines, one for each of its cells.
    """
    if is_narrow():
        titles = [column if isinstance(column, str) else str(column.header) for column in columns]
        for number, row in enumerate(rows):
            if number:
                click.echo()
            print_fields(zip(titles, row, strict=True))
        return
    table = as_table(columns, rows)
    table.expand = _has_width()
    print_lines(table)


def as_table(columns: Sequence[Column | str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table as Rich can render it, no wider than its texts."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text, because a string would be read as markup
    return table


def _console() -> Console:
    """Return what renders on stdout, as wide as the terminal; nothing is cut or folded where there is none."""
    # Imported here because Rich takes a while, which scripts need not wait for.
    from rich.console import Console

    console = Console(file=sys.stdout)
    if not _has_width():
        console.width = _NO_LIMIT
    return console


def is_narrow() -> bool:
    """Return whether the terminal has no room for the columns of a table."""
    return _has_width() and _console().width < MIN_WIDTH


def print_lines(rendered: RenderableType) -> None:
    """Print what Rich can render, through click, which knows what to do about a closed pipe."""
    console = _console()
    with console.capture() as printed:
        console.print(rendered)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())


def _has_width() -> bool:
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print what is known of one thing, a line for each field that is known."""
    from rich.table import Column

    for_names, for_values = Column(no_wrap=True), Column(ratio=1, overflow="fold")
    table = as_table([for_names, for_values], [(name, value) for name, value in fields if value])
    table.expand, table.show_header = _has_width(), False
    print_lines(table)


def as_object(row: Task | DeadTask) -> dict[str, Any]:
    """Return a row as JSON can show it: by column, without the payload, bytes in hex."""
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in row._asdict().items()
        if name != "data"
    }


def span(duration_ns: int) -> str:
    """Return a duration, nanoseconds, in the largest unit that it fills: `45s`, `3h`."""
    seconds = max(duration_ns, 0) // 10**9
    return next((f"{seconds // size}{unit}" for unit, size in _UNITS if seconds >= size), "0s")


def until(deadline_ns: int, now_ns: int) -> str:
    """Return how far off a deadline is: `now`, `in 5m`, `never`."""
    if deadline_ns >= NEVER_NS:
        return "never"
    return "now" if deadline_ns <= now_ns else f"in {span(deadline_ns - now_ns)}"


def short_group(group_id: bytes | None) -> str:
    """Return enough of a group's id, in hex, to tell it from others."""
    digits = "" if group_id is None else group_id.hex()
    return digits if len(digits) <= _GROUP_DIGITS else f"{digits[:_GROUP_DIGITS]}…"


def printable(text: str) -> str:
    """Return text that cannot move a terminal's cursor or change its colours."""
    return "".join(character if character.isprintable() else "�" for character in text)


def last_line(text: str | None) -> str:
    """Return the line of a traceback that says what was raised: of a longer message the first."""
    lines = (text or "").strip().splitlines()
    starts = [number for number, line in enumerate(lines, 1) if line == _TRACEBACK]
    said = [line for line in lines[starts[-1] :] if not line.startswith(" ")] if starts else lines[-1:]
    return printable(said[0].strip()) if said else ""


def qualified(service: type[Any]) -> str:
    """Return a type's name with its module's."""
    return f"{service.__module__}.{service.__qualname__}"
