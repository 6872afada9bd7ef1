"""`callboard tasks list` and `callboard dead list`: the rows of a database, page by page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import click

from callboard._store.interface import NodeRow
from callboard._task import DeadTask, Task, TaskState
from callboard.cli._arguments import page_options
from callboard.cli._database import database_argument, open_for_reading
from callboard.cli._output import (
    as_object,
    json_option,
    last_line,
    print_json,
    print_table,
    printable,
    short_group,
    span,
    until,
)
from callboard.cli._show import holder


@click.command("list")
@database_argument
@page_options
@click.option("--state", type=click.Choice([str(state) for state in TaskState]), help="Only tasks in this state.")
@json_option
def list_tasks(
    database: str,
    kind: str | None,
    group_id: bytes | None,
    limit: int,
    after_id: int,
    state: str | None,
    as_json: bool,
) -> None:
    """List the live tasks of DATABASE in the order of their ids.

    A running one is shown with the machine and process that hold it. `--json` also has whole group ids and the
    last error of each, and the nodes, to which `owner` refers.

    Example: callboard tasks list service.db --state deferred
    """
    store = open_for_reading(database)
    page, next_after = _page(store.list_tasks(kind, group_id, state, limit + 1, after_id), limit)
    with store.reading() as session:
        nodes = {node.id: node for node in store.nodes.others(session, 0)}
    if as_json:
        shown = [{"id": node.id, "host": node.host, "pid": node.pid} for node in nodes.values()]
        print_json({"tasks": [as_object(task) for task in page], "nodes": shown, "next_after": next_after})
        return
    now_ns = time.time_ns()
    _print_page(
        ("ID", "STATE", "TRIES", "DUE", "AGE", "GROUP", "KIND"),
        [
            (
                str(task.id),
                printable(task.state),
                str(task.attempts),
                _holder(task, nodes)
                if task.state == TaskState.RUNNING
                else until(task.next_attempt_at_ns, now_ns),
                span(now_ns - task.created_at_ns),
                short_group(task.group_id),
                printable(task.kind),
            )
            for task in page
        ],
        next_after,
    )


@click.command("list")
@database_argument
@page_options
@json_option
def list_dead(
    database: str, kind: str | None, group_id: bytes | None, limit: int, after_id: int, as_json: bool
) -> None:
    """List the dead tasks of DATABASE, each with its reason.

    They are in the order of their ids. `--json` has the whole traceback of each. `callboard dead retry` gives
    them a new life.

    Example: callboard dead list service.db --kind acme.receipts.SendReceipt
    """
    found = open_for_reading(database).list_dead(kind, group_id, limit + 1, after_id)
    page, next_after = _page(found, limit)
    if as_json:
        print_json({"dead": [as_object(task) for task in page], "next_after": next_after})
        return
    now_ns = time.time_ns()
    _print_page(
        ("ID", "DIED", "REASON", "KIND", "LAST ERROR"),
        [
            (
                str(task.id),
                f"{span(now_ns - task.died_at_ns)} ago",
                printable(task.reason),
                printable(task.kind),
                last_line(task.last_error),
            )
            for task in page
        ],
        next_after,
    )


def _holder(task: Task, nodes: dict[int, NodeRow]) -> str:
    """Return where a running task runs, as far as the node that holds it is still there."""
    node = None if task.owner is None else nodes.get(task.owner)
    return "" if node is None else f"on {holder(node)}"


R = TypeVar("R", Task, DeadTask)


def _page(found: list[R], limit: int) -> tuple[list[R], int | None]:
    """Return the rows to show, and where the next page begins if one more was found."""
    page = found[:limit]
    return page, page[-1].id if len(found) > limit else None


def _print_page(titles: Sequence[str], rows: Sequence[Sequence[str]], next_after: int | None) -> None:
    from rich.table import Column

    if not rows:
        click.echo("none")
        return
    *narrow, last = (Column(title, no_wrap=True, overflow="ellipsis", max_width=30) for title in titles)
    last.max_width, last.ratio = None, 1
    print_table([*narrow, last], rows)
    if next_after is not None:
        click.echo(f"there are more: --after {next_after}")
