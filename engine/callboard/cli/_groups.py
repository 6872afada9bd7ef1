"""`callboard groups list` and `callboard groups show`: what the engine knows of the host's groups."""

from __future__ import annotations

import time

import click

from callboard._group_state import GroupState
from callboard._store.interface import NodeRow
from callboard._task import Task, TaskState
from callboard.cli._arguments import as_group_id, limit_option
from callboard.cli._database import database_argument, open_for_reading
from callboard.cli._output import as_object, json_option, print_fields, print_json, print_table, printable, span
from callboard.cli._show import holder
from callboard.cli._times import past

_SHOWN_TASKS = 1_000


@click.command("list")
@database_argument
@click.option("--pending", is_flag=True, help="Only groups in which a leave request is pending.")
@click.option("--member", metavar="INBOX", help="Only groups with this member.")
@limit_option
@click.option("--after", metavar="HEX", callback=as_group_id, help="Only ids above this.")
@json_option
def list_groups(
    database: str, pending: bool, member: str | None, limit: int, after: bytes | None, as_json: bool
) -> None:
    """List the groups of DATABASE that its host has told of, in the order of their ids.

    A group that only tasks name is not among them; `callboard groups show` finds it.

    Example: callboard groups list service.db --pending
    """
    store = open_for_reading(database)
    with store.reading() as session:
        ids = store.groups.matching(
            session,
            pending=pending or None,
            member=member,
            consent=None,
            active_since_ns=None,
            limit=limit + 1,
            after=after or b"",
        )
        found = [store.groups.state(session, group_id) for group_id in ids[:limit]]
    states = [state for state in found if state is not None]
    next_after = states[-1].group_id.hex() if len(ids) > limit else None
    if as_json:
        print_json({"groups": [_json_of(state) for state in states], "next_after": next_after})
        return
    if not states:
        click.echo("none")
        return
    _print_groups(states)
    if next_after is not None:
        click.echo(f"there are more: --after {next_after}")


def _print_groups(states: list[GroupState]) -> None:
    from rich.table import Column

    now_ns = time.time_ns()
    numbers = [Column(title, justify="right") for title in ("MEMBERS", "LEAVING")]
    print_table(
        ["CONSENT", "ACTIVE", *numbers, Column("GROUP", ratio=1, overflow="fold")],
        [
            (
                printable(state.consent),
                f"{span(now_ns - state.active_at_ns)} ago" if state.active_at_ns else "",
                str(len(state.members)),
                str(len(state.pending_removes)),
                state.group_id.hex(),
            )
            for state in states
        ],
    )


@click.command("show")
@database_argument
@click.argument("group_id", metavar="HEX", callback=as_group_id)
@json_option
def show_group(database: str, group_id: bytes, as_json: bool) -> None:
    """Show the group HEX of DATABASE, and who holds its tasks.

    Tasks of a group run one at a time: one that is due waits for the one that is running.

    Example: callboard groups show service.db 0a1b2c
    """
    store = open_for_reading(database)
    with store.reading() as session:
        state = store.groups.state(session, group_id)
        nodes = {node.id: node for node in store.nodes.others(session, 0)}
    tasks = store.list_tasks(None, group_id, None, _SHOWN_TASKS + 1, 0)
    if state is None and not tasks:
        raise click.ClickException(
            f"{store.where} has no group {group_id.hex()} and no task of it; see `callboard groups list`"
        )
    if as_json:
        print_json(
            {
                "group": None if state is None else _json_of(state),
                "tasks": [as_object(task) for task in tasks[:_SHOWN_TASKS]],
                "more_tasks": len(tasks) > _SHOWN_TASKS,
            }
        )
        return
    now_ns = time.time_ns()
    print_fields([("GROUP", group_id.hex()), *_known(state, now_ns), *_work(tasks, nodes, now_ns)])


def _known(state: GroupState | None, now_ns: int) -> list[tuple[str, str]]:
    if state is None:
        return [("MEMBERS", "the host has not told of this group")]
    ranks = {inbox: " (super-admin)" for inbox in state.super_admins}
    return [
        ("OWN INBOX", printable(state.own_inbox_id or "")),
        ("CONSENT", printable(state.consent)),
        (
            "ACTIVE",
            past(state.active_at_ns, now_ns) if state.active_at_ns else "",
        ),
        ("MEMBERS", "\n".join(f"{printable(inbox)}{ranks.get(inbox, '')}" for inbox in sorted(state.members))),
        (
            "ASKED TO LEAVE",
            "\n".join(
                f"{printable(each.inbox_id)}, {span(now_ns - each.requested_at_ns)} ago"
                for each in state.pending_removes
            ),
        ),
        ("LEAVING", "this client asked to leave" if state.is_leaving else ""),
        ("TO EVICT", "this client is to remove members" if state.has_pending_leave_request else ""),
    ]


def _work(tasks: list[Task], nodes: dict[int, NodeRow], now_ns: int) -> list[tuple[str, str]]:
    counts = {state: sum(task.state == state for task in tasks) for state in TaskState}
    holders = {nodes[task.owner] for task in tasks if task.owner in nodes and task.state == TaskState.RUNNING}
    due = sum(task.state == TaskState.PENDING and task.next_attempt_at_ns <= now_ns for task in tasks)
    more = " among the first" if len(tasks) > _SHOWN_TASKS else ""
    counted = [f"{count} {state}" for state, count in counts.items() if count]
    return [
        ("TASKS", ", ".join(counted) + more if counted else "none"),
        ("DUE", str(due) if due else ""),
        ("HELD BY", ", ".join(holder(node) for node in sorted(holders))),
    ]


def _json_of(state: GroupState) -> dict[str, object]:
    return {
        "group_id": state.group_id.hex(),
        "version": state.version,
        "own_inbox_id": state.own_inbox_id,
        "consent": state.consent,
        "active_at_ns": state.active_at_ns,
        "is_leaving": state.is_leaving,
        "has_pending_leave_request": state.has_pending_leave_request,
        "members": sorted(state.members),
        "super_admins": sorted(state.super_admins),
        "pending_removes": [
            {
                "inbox_id": each.inbox_id,
                "message_id": each.message_id.hex(),
                "requested_at_ns": each.requested_at_ns,
            }
            for each in state.pending_removes
        ],
    }
