"""`callboard copy`: move a stopped engine's rows to another database, such as from SQLite to PostgreSQL."""

from __future__ import annotations

import time

import click

from callboard._store.copying import CopiedTable, Progress
from callboard._store.copying import copy as copy_rows
from callboard._store.opening import open_store
from callboard.cli._database import as_url, open_for_reading
from callboard.cli._output import json_option, print_json, print_table
from callboard.cli._progress import shown

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
        with shown() as show:

            def progress(made: Progress) -> None:
                show(_text(made), made.rows, made.total)

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


def _text(progress: Progress) -> str:
    return f"{_STEPS[progress.step]} {progress.table}"
