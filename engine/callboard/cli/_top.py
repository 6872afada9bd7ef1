"""`callboard top`: what goes on in a database, as it goes on."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from callboard._store import inspecting
from callboard._store.inspecting import DueKind, Holding, NodeView
from callboard._store.interface import Store
from callboard.cli._database import database_argument, open_for_reading
from callboard.cli._output import as_table, print_lines, printable, short_group, span
from callboard.cli._show import holder

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Column, Table

_ROWS = 10


class _Frame(NamedTuple):
    """What one look has found; `at_s` is a clock that is never set."""

    at_s: float
    now_ns: int
    enqueued: int
    ended: int
    due: list[DueKind]
    deferred: dict[str, int]
    claimed: int
    dead: int
    held: list[Holding]
    nodes: list[NodeView]


@click.command
@database_argument
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.5, 3_600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, and end.")
def top(database: str, every_s: float, once: bool) -> None:
    """Show what goes on in DATABASE until Ctrl-C.

    It shows how many tasks are enqueued and end in a second, what is due, claimed, deferred and dead, and what has
    been held the longest: groups, and tasks without one. Where there is no terminal it looks once.

    Example: callboard top service.db
    """
    store = open_for_reading(database)
    if once or not sys.stdout.isatty():
        print_lines(_shown(store.where, _look(store), None))
        return
    from rich.console import Console
    from rich.live import Live

    before: _Frame | None = None
    try:
        with Live(console=Console(file=sys.stdout), auto_refresh=False) as live:
            while True:
                frame = _look(store)
                live.update(_shown(store.where, frame, before), refresh=True)
                before = frame
                time.sleep(every_s)
    except KeyboardInterrupt:  # the way to leave
        pass


def _look(store: Store) -> _Frame:
    with store.reading() as session:
        now_ns = time.time_ns()
        enqueued, ended = inspecting.turnover(store, session)
        return _Frame(
            time.monotonic(),
            now_ns,
            enqueued,
            ended,
            inspecting.due(session, now_ns),
            inspecting.deferred(session),
            inspecting.running(session),
            inspecting.dead_count(session),
            inspecting.held(session, _ROWS),
            inspecting.nodes(store, session),
        )


def _shown(where: str, frame: _Frame, before: _Frame | None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    alive = sum(not node.has_ended for node in frame.nodes)
    totals = {
        "nodes": alive,
        "due": sum(each.tasks for each in frame.due),
        "claimed": frame.claimed,
        "deferred": sum(frame.deferred.values()),
        "dead": frame.dead,
    }
    counted = "  ".join(f"{name} {number:,}" for name, number in totals.items())
    return Group(
        Text(where), Text(counted), Text(_rates(frame, before)), Text(), _kinds(frame), Text(), _groups(frame)
    )


def _rates(frame: _Frame, before: _Frame | None) -> str:
    if before is None:
        return "enqueued ?/s  ended ?/s"
    seconds = max(frame.at_s - before.at_s, 0.001)
    enqueued, ended = frame.enqueued - before.enqueued, frame.ended - before.ended
    return f"enqueued {max(enqueued, 0) / seconds:,.0f}/s  ended {max(ended, 0) / seconds:,.0f}/s"


def _kinds(frame: _Frame) -> Table:
    due = {each.kind: each for each in frame.due}
    names = sorted(
        {*due, *frame.deferred},
        key=lambda kind: (-(due[kind].tasks if kind in due else 0), -frame.deferred.get(kind, 0), kind),
    )
    rows = []
    for kind in names[:_ROWS]:
        found = due.get(kind)
        rows.append(
            (
                f"{found.tasks:,}" if found else "0",
                span(frame.now_ns - found.oldest_ns) if found else "",
                f"{frame.deferred.get(kind, 0):,}",
                printable(kind),
            )
        )
    return as_table(("DUE", "FOR", "DEFERRED", _folded("KIND")), rows)


def _groups(frame: _Frame) -> Table:
    nodes = {node.row.id: node.row for node in frame.nodes}
    rows = []
    for holding in frame.held:
        node = None if holding.owner is None else nodes.get(holding.owner)
        rows.append(
            (
                "" if holding.since_ns is None else span(frame.now_ns - holding.since_ns),
                str(holding.tasks),
                str(holding.task_id) if holding.group_id is None else short_group(holding.group_id),
                "a node that is gone" if node is None else holder(node),
            )
        )
    return as_table(("HELD FOR", "TASKS", "GROUP OR TASK", _folded("BY")), rows)


def _folded(title: str) -> Column:
    """Return a column of names whose ends tell them apart, so that none may be cut."""
    from rich.table import Column

    return Column(title, overflow="fold")
