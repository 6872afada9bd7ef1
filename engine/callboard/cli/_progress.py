"""How far long work is, on stderr: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Show = Callable[[str, int, int], None]
"""Takes what is being done, how many rows are done, and how many there are."""

_SAY_EVERY_S = 10.0


@contextmanager
def shown() -> Iterator[Show]:
    """Show progress for as long as the block takes."""
    if not sys.stderr.isatty():
        yield _Lines().show
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, TaskID] = {}

        def show(text: str, rows: int, total: int) -> None:
            if text not in known:
                known[text] = bars.add_task(text)
            bars.update(known[text], completed=rows, total=total)

        yield show


class _Lines:
    """One line when something is done, and some in between where that takes long."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()

    def show(self, text: str, rows: int, total: int) -> None:
        now_s = time.monotonic()
        if rows == total or now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            click.echo(f"{text}: {rows} of {total} rows", err=True)
