"""`callboard doctor`: what is deferred, dead, stuck or held, by whom, and what to do about it."""

from __future__ import annotations

import time

import click

from callboard._store.inspecting import NodeView
from callboard.cli._database import database_argument, open_for_reading
from callboard.cli._findings import PROBLEM, Finding, examine, findings
from callboard.cli._output import json_option, print_json, print_table

FOUND = 3
"""The exit status where there is a problem: 1 says that nothing could be found out."""


@click.command
@database_argument
@json_option
def doctor(database: str, as_json: bool) -> None:
    """Say what is wrong with DATABASE, and what to do about each thing.

    It tells which tasks are late, deferred, dead or held for long, which groups wait behind which node, and which
    nodes are gone. It changes nothing. The status is 0 if all is well or there are but notes, 3 if there is a
    problem, and 1 if the database could not be read.

    Example: callboard doctor service.db
    """
    store = open_for_reading(database)
    seen = examine(store, time.time_ns())
    found = list(findings(seen))
    problems = sum(each.severity == PROBLEM for each in found)
    if as_json:
        print_json(
            {
                "healthy": problems == 0,
                "nodes": [_node_json(node) for node in seen.nodes],
                "findings": [_finding_json(each) for each in found],
            }
        )
    else:
        _print(found)
        click.echo(f"{store.where}: {problems or 'no'} problem{'' if problems == 1 else 's'}")
    if problems:
        click.get_current_context().exit(FOUND)


def _print(found: list[Finding]) -> None:
    from rich.table import Column

    if found:
        rows = [(each.severity, f"{each.text}\n→ {each.remedy}") for each in found]
        print_table([Column("SEVERITY", no_wrap=True), Column("FINDING", ratio=1, overflow="fold")], rows)


def _finding_json(finding: Finding) -> dict[str, object]:
    group_id = finding.group_id
    return finding._asdict() | {"group_id": None if group_id is None else group_id.hex()}


def _node_json(node: NodeView) -> dict[str, object]:
    return {
        "id": node.row.id,
        "host": node.row.host,
        "pid": node.row.pid,
        "kinds": sorted(node.kinds),
        "paused": sorted(node.paused),
        "holds": node.row.holds,
        "has_ended": node.has_ended,
    }
