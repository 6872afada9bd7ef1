"""`callboard copy`: move a stopped engine's rows to another database, such as from SQLite to PostgreSQL."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from callboard._store.copying import CopiedTable, Progress
from callboard._store.copying import copy as copy_rows
from callboard._store.opening import open_store
from callboard.cli._database import as_url, open_for_reading
from callboard.cli._output import json_option, print_json, print_table

_SAY_EVERY_S = 10.0
_STEPS = {"compare": "comparing", "copy": "copying", "check": "checking"}


@click.command
@click.argument("source", callback=as_url, metavar="SOURCE")
@click.argument("target", callback=as_url, metavar="TARGET")
@click.option(
    "--gone", type=int, multiple=True, metavar="NODE", help="A node of SOURCE that is certainly gone; repeatable."
)
@json_option
def copy(source: str, target: str, gone: tuple[int, ...], as_json: bool) -> None:
    """Copy all tasks, dead tasks and groups of SOURCE to TARGET.

    Stop every engine and whatever else writes to either. SOURCE is only read. TARGET is empty, or what an earlier
    copy was made to: it may be repeated, and goes on where it was interrupted. Ids stay as they are. In the end
    the number and the hash of each table's rows are the same on both sides, or the status is 1. Progress is shown
    on stderr.

    Example: callboard copy service.db postgresql://callboard@db.example/service
    """
    reading, writing = open_for_reading(source), open_store(target, "FULL")
    try:
        with _shown() as progress:
            copied = copy_rows(reading, writing, now_ns=time.time_ns(), gone=gone, progress=progress)
    finally:
        reading.close()
        writing.close()
    if as_json:
        tables = [table._asdict() for table in copied]
        print_json({"source": reading.where, "target": writing.where, "tables": tables})
        return
    _print(copied)
    click.echo(f"{writing.where} has what {reading.where} has; from now on start engines on the former only")


def _print(copied: list[CopiedTable]) -> None:
    from rich.table import Column

    columns = [
        Column("TABLE"),
        Column("ROWS", justify="right"),
        Column("WRITTEN", justify="right"),
        Column("HASH"),
    ]
    print_table(columns, [(table.table, str(table.rows), str(table.written), table.hash[:16]) for table in copied])


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """Show progress on stderr: bars on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines().show
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        shown: dict[str, TaskID] = {}

        def show(progress: Progress) -> None:
            text = _text(progress)
            if text not in shown:
                shown[text] = bars.add_task(text)
            bars.update(shown[text], completed=progress.rows, total=progress.total)

        yield show


class _Lines:
    """One line when a table is done, and some in between where that takes long."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()

    def show(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if progress.rows == progress.total or now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            click.echo(f"{_text(progress)}: {progress.rows} of {progress.total} rows", err=True)


def _text(progress: Progress) -> str:
    return f"{_STEPS[progress.step]} {progress.table}"
