"""`callboard tasks show` and `callboard dead show`: all that the database knows of one task."""

from __future__ import annotations

import time
from collections.abc import Iterable

import click

from callboard._retry import UNLIMITED_ATTEMPTS
from callboard._store.interface import NodeRow
from callboard._task import DeadTask, Task, TaskState
from callboard.cli import _payload
from callboard.cli._arguments import id_argument, payload_option
from callboard.cli._database import database_argument, open_for_reading
from callboard.cli._output import as_object, json_option, print_fields, print_json, printable
from callboard.cli._times import moment, past


@click.command("show")
@database_argument
@id_argument
@payload_option
@json_option
def show_task(database: str, row_id: int, with_payload: bool, as_json: bool) -> None:
    """Show the live task ID of DATABASE.

    A payload may be private: it is shown only with `--payload`, as a message if a plugin here brings its kind, in
    hex if none does.

    Example: callboard tasks show service.db 17 --payload
    """
    store = open_for_reading(database)
    with store.reading() as session:
        task = store.tasks.by_id(session, row_id)
        nodes = {node.id: node for node in store.nodes.others(session, 0)}
    if task is None:
        raise no_task(store.where, row_id)
    node = None if task.owner is None else nodes.get(task.owner)
    if as_json:
        shown = _json_of(task, with_payload)
        shown["node"] = None if node is None else {"id": node.id, "host": node.host, "pid": node.pid}
        print_json({"task": shown})
        return
    now_ns = time.time_ns()
    requested = "" if task.requests == 1 else f"{task.requests} times"
    print_fields(
        [
            ("ID", str(task.id)),
            ("STATE", _state(task, node)),
            *_common(task, now_ns),
            ("DUE", moment(task.next_attempt_at_ns, now_ns)),
            ("PULLED IN", "" if task.pulled_in_ns is None else moment(task.pulled_in_ns, now_ns)),
            (
                "CLAIMED",
                "" if task.last_attempted_at_ns is None else past(task.last_attempted_at_ns, now_ns),
            ),
            ("REQUESTED", requested),
            *_ending(task, with_payload),
        ]
    )


@click.command("show")
@database_argument
@id_argument
@payload_option
@json_option
def show_dead(database: str, row_id: int, with_payload: bool, as_json: bool) -> None:
    """Show the dead task ID of DATABASE, with its whole error.

    ID is the dead task's own, as in `callboard dead list`; the id that it had while it lived is shown, too. A
    payload may be private: it is shown only with `--payload`, as a message if a plugin here brings its kind, in
    hex if none does.

    Example: callboard dead show service.db 3
    """
    store = open_for_reading(database)
    with store.reading() as session:
        dead = store.tasks.dead_by_id(session, row_id)
    if dead is None:
        raise no_dead_task(store.where, [row_id])
    if as_json:
        print_json({"dead": _json_of(dead, with_payload)})
        return
    now_ns = time.time_ns()
    print_fields(
        [
            ("ID", str(dead.id)),
            ("REASON", printable(dead.reason)),
            ("DIED", past(dead.died_at_ns, now_ns)),
            ("TASK ID", str(dead.task_id)),
            *_common(dead, now_ns),
            *_ending(dead, with_payload),
        ]
    )


def no_task(where: str, task_id: int) -> click.ClickException:
    """Return what to tell somebody who names a live task that is not there."""
    return click.ClickException(
        f"{where} has no live task {task_id}: it is done, or dead, or never was; `callboard tasks list` and"
        " `callboard dead list` show what there is"
    )


def no_dead_task(where: str, dead_ids: Iterable[int]) -> click.ClickException:
    """Return what to tell somebody who names dead tasks that are not there."""
    ids = ", ".join(map(str, dead_ids))
    return click.ClickException(
        f"{where} has no dead task {ids}; `callboard dead list` shows those that there are, by ids of their own"
    )


def holder(node: NodeRow) -> str:
    """Return where a node runs."""
    return printable(f"{node.host}:{node.pid}")


def _json_of(row: Task | DeadTask, with_payload: bool) -> dict[str, object]:
    return as_object(row) | (_payload.as_json(row) if with_payload else {})


def _state(task: Task, node: NodeRow | None) -> str:
    if task.state != TaskState.RUNNING:
        return printable(task.state)
    return f"running on {holder(node)}" if node is not None else "running on a node that is gone"


def _common(row: Task | DeadTask, now_ns: int) -> list[tuple[str, str]]:
    unlimited = row.max_attempts is None or row.max_attempts >= UNLIMITED_ATTEMPTS
    return [
        ("KIND", printable(row.kind)),
        ("GROUP", "" if row.group_id is None else row.group_id.hex()),
        ("TRIES", str(row.attempts) if unlimited else f"{row.attempts} of {row.max_attempts}"),
        ("CREATED", past(row.created_at_ns, now_ns)),
        ("EXPIRES", moment(row.expires_at_ns, now_ns)),
    ]


def _ending(row: Task | DeadTask, with_payload: bool) -> list[tuple[str, str]]:
    return [
        ("ORIGIN", printable(row.origin or "")),
        ("IDENTITY", row.identity.hex()),
        ("LAST ERROR", _payload.printable_lines(row.last_error or "")),
        ("PAYLOAD", _payload.as_text(row) if with_payload else f"{len(row.data)} bytes; --payload shows them"),
    ]
