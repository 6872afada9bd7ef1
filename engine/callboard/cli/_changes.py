"""`callboard tasks retry|cancel|pull-in`: change when a live task runs, or that it runs at all."""

from __future__ import annotations

import time

import click

from callboard._engine import Engine
from callboard._task import Task, TaskState
from callboard.cli._arguments import id_argument
from callboard.cli._database import database_argument, opened_for_changes
from callboard.cli._output import json_option, print_json
from callboard.cli._show import no_task
from callboard.cli._times import date_of, from_now


@click.command("retry")
@database_argument
@id_argument
@json_option
def retry_task(database: str, row_id: int, as_json: bool) -> None:
    """Make the live task ID of DATABASE due now.

    Use it when what made the task fail has been mended and its backoff is long. Attempts stay as they are. A
    running task is due at once when its run has failed; a deferred one is looked at again, and runs if some node
    knows its kind by now. With an engine running on DATABASE the task starts within a second.

    Example: callboard tasks retry service.db 17
    """
    _lower(database, row_id, time.time_ns(), as_json)


@click.command("pull-in")
@database_argument
@id_argument
@click.option(
    "--by",
    "by_ns",
    metavar="WHEN",
    callback=from_now,
    required=True,
    help="A span from now, such as 5m, or a date in UTC.",
)
@json_option
def pull_in_task(database: str, row_id: int, by_ns: int, as_json: bool) -> None:
    """Lower the deadline of the live task ID of DATABASE; never raise it.

    That of a running task is lowered when its run ends, if it is to run again.

    Example: callboard tasks pull-in service.db 17 --by 5m
    """
    _lower(database, row_id, by_ns, as_json)


@click.command("cancel")
@database_argument
@id_argument
@json_option
def cancel_task(database: str, row_id: int, as_json: bool) -> None:
    """Cancel the live task ID of DATABASE: it becomes a dead task.

    A running one is told, on whatever node it runs; its outcome is dropped, and it is dead when its handler has
    returned. `callboard dead retry` takes a cancelled task back.

    Example: callboard tasks cancel service.db 17
    """
    with opened_for_changes(database) as engine:
        if not engine.cancel(row_id):
            raise no_task(engine.health().database, row_id)
        still_there = engine.task(row_id) is not None
    if as_json:
        print_json({"task": row_id, "status": "cancelling" if still_there else "cancelled"})
    elif still_there:
        click.echo(f"task {row_id} is running and has been told; it is dead when its handler has returned")
    else:
        click.echo(f"task {row_id} is cancelled; `callboard dead list` shows it")


def _lower(database: str, task_id: int, by_ns: int, as_json: bool) -> None:
    with opened_for_changes(database) as engine:
        before = _found(engine, task_id)
        # It may have ended since it was read.
        if not engine.pull_in(before.identity, not_later_than_ns=by_ns):
            raise no_task(engine.health().database, task_id)
    status = _status(before, by_ns)
    if as_json:
        print_json({"task": task_id, "by_ns": by_ns, "status": status})
        return
    date = date_of(by_ns)
    click.echo(
        {
            "unchanged": f"task {task_id} is due by {date_of(before.next_attempt_at_ns)} as it is",
            "running": f"task {task_id} is running; if it is to run again, it is due by {date}",
            "lowered": f"task {task_id} is due by {date}",
        }[status]
    )


def _status(before: Task, by_ns: int) -> str:
    if before.state == TaskState.RUNNING:
        return "running"
    return "lowered" if by_ns < before.next_attempt_at_ns else "unchanged"


def _found(engine: Engine, task_id: int) -> Task:
    task = engine.task(task_id)
    if task is None:
        raise no_task(engine.health().database, task_id)
    return task
