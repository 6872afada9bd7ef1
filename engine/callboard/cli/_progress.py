"""How far long work is, on stderr: bars on a terminal that has room for them, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from callboard.cli._output import MIN_WIDTH

Show = Callable[[str, int, int], None]
"""Takes what is being done, how many rows are done, and how many there are."""

_SAY_EVERY_S = 10.0


@contextmanager
def shown() -> Iterator[Show]:
    """Show progress for as long as the block takes, which Ctrl-C may end where it can be done again.

    Raises:
        ClickException: Ctrl-C has ended it.
    """
    try:
        with _displayed() as show:
            yield show
    except KeyboardInterrupt:
        raise click.ClickException(
            "stopped by Ctrl-C; what is done stays so, and the same command does the rest"
        ) from None


@contextmanager
def _displayed() -> Iterator[Show]:
    from rich.console import Console

    console = Console(stderr=True)
    if not sys.stderr.isatty() or console.width < MIN_WIDTH:
        yield _Lines().show
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
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
