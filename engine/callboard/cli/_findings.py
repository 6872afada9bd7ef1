"""What `callboard doctor` makes of a database: each thing that is odd, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from callboard._store import inspecting
from callboard._store.inspecting import Accepted, DeadKind, DueKind, Holding, NodeView
from callboard._store.interface import Store
from callboard._task import DeadReason
from callboard.cli._output import printable, span

PROBLEM, NOTE = "problem", "note"

_LATE_NS = 60 * 10**9
_LONG_NS = 5 * 60 * 10**9  # a kind's timeout, by default
_HOLDINGS = 20
_ON_PURPOSE = {DeadReason.CANCELLED, DeadReason.DISCARDED}


class Finding(NamedTuple):
    """One thing that is odd.

    Attributes:
        code: which sort of thing it is.
        severity: `problem` where somebody must do something, else `note`.
        text: what it is.
        remedy: what to do about it.
        tasks: how many tasks it is about, as far as that was counted.
        kind: whose, where it is about one kind.
        group_id: whose, where it is about one group.
        node: the id of the node that it is about.
    """

    code: str
    severity: str
    text: str
    remedy: str
    tasks: int = 0
    kind: str | None = None
    group_id: bytes | None = None
    node: int | None = None


class Examined(NamedTuple):
    """What is in the tables at one time, as far as `findings` needs it."""

    now_ns: int
    nodes: list[NodeView]
    due: list[DueKind]
    accepted: Accepted
    deferred: dict[str, int]
    held: list[Holding]
    waiting: dict[bytes, int]
    dead: list[DeadKind]


def examine(store: Store, now_ns: int) -> Examined:
    """Read what `findings` needs."""
    with store.reading() as session:
        held = inspecting.held(session, _HOLDINGS)
        return Examined(
            now_ns,
            inspecting.nodes(store, session),
            inspecting.due(session, now_ns),
            inspecting.accepted(store, session, now_ns),
            inspecting.deferred(session),
            held,
            inspecting.waiting(session, [each.group_id for each in held if each.group_id is not None], now_ns),
            inspecting.dead(session),
        )


def findings(seen: Examined) -> Iterator[Finding]:
    """Yield what is odd, the most urgent first."""
    alive = [node for node in seen.nodes if not node.has_ended]
    yield from _unserved(seen, alive)
    yield from _paused(seen, alive)
    yield from _holdings(seen)
    yield from _late(seen, alive)
    yield from _unmerged(seen, alive)
    yield from _deferred(seen, alive)
    yield from _dead(seen)


def _unserved(seen: Examined, alive: list[NodeView]) -> Iterator[Finding]:
    due = sum(each.tasks for each in seen.due) + seen.accepted.due
    if not alive:
        yield Finding(
            "no-engine",
            PROBLEM if due else NOTE,
            f"no engine runs, and {_tasks(due)} due",
            "start the service that embeds the engine, or `callboard run`",
            tasks=due,
        )
    for node in seen.nodes:
        silence_ns = seen.now_ns - node.row.heartbeat
        if not node.row.holds:
            continue
        if node.has_ended:
            yield Finding(
                "ended-node",
                PROBLEM,
                f"{_name(node)} has ended and holds tasks",
                "nothing if another engine runs: it takes them over; else start one",
                node=node.row.id,
            )
        elif silence_ns > node.row.lease_ns:
            yield Finding(
                "silent-node",
                PROBLEM,
                f"{_name(node)} holds tasks and was last heard of {span(silence_ns)} ago, by this machine's clock",
                "others take its tasks over; see whether the process hangs or its machine sleeps; it may be ended",
                node=node.row.id,
            )


def _paused(seen: Examined, alive: list[NodeView]) -> Iterator[Finding]:
    due = {each.kind: each.tasks for each in seen.due}
    for node in alive:
        for kind in sorted(node.paused):
            count = due.get(kind, 0)
            yield Finding(
                "paused-kind",
                PROBLEM,
                f"kind {printable(kind)} is paused on {_name(node)}, because it failed for everybody;"
                f" {_tasks(count)} due",
                f"`callboard tasks list DATABASE --kind {shlex.quote(printable(kind))} --json` shows how, in"
                " `last_error`; mend that: one task is tried at least once a minute, and when it succeeds the kind"
                " goes on by itself",
                tasks=count,
                kind=kind,
                node=node.row.id,
            )


def _holdings(seen: Examined) -> Iterator[Finding]:
    nodes = {node.row.id: node for node in seen.nodes}
    for holding in seen.held:
        node = None if holding.owner is None else nodes.get(holding.owner)
        held_ns = 0 if holding.since_ns is None else seen.now_ns - holding.since_ns
        what = f"task {holding.task_id}"
        behind = holding.tasks - 1
        if holding.group_id is not None:
            behind += seen.waiting.get(holding.group_id, 0)
            what = f"group {holding.group_id.hex()}, by {what}, with {_due(behind)} behind it,"
        if node is None:
            yield Finding(
                "orphaned",
                PROBLEM,
                f"{what} is held by a node that is gone",
                "nothing if an engine runs: it takes the task over within its lease; else start one",
                tasks=holding.tasks,
                group_id=holding.group_id,
                node=holding.owner,
            )
        elif held_ns > _LONG_NS and not node.has_ended:
            yield Finding(
                "held-long",
                PROBLEM,
                f"{what} has been held on {_name(node)} for {span(held_ns)}",
                f"`health().overdue` of that process tells where the handler is; `callboard tasks cancel DATABASE"
                f" {holding.task_id}` tells it to give up; if the process hangs, end it",
                tasks=behind + 1,
                group_id=holding.group_id,
                node=holding.owner,
            )


def _late(seen: Examined, alive: list[NodeView]) -> Iterator[Finding]:
    for kind, count, oldest_ns in seen.due:
        late_ns = seen.now_ns - oldest_ns
        if not alive or late_ns < _LATE_NS or any(kind in node.paused for node in alive):
            continue
        known = _is_served(kind, alive)
        text = f"{_tasks(count)} due of kind {printable(kind)}, the first for {span(late_ns)}"
        yield Finding(
            "late" if known else "unserved-kind",
            PROBLEM,
            text if known else f"{text}, and no running engine serves the kind",
            "they wait for their group, or for a worker: see what is held above; else more `workers`, or nodes"
            if known
            else "start one that has the plugin, and the services that the kind requires (`callboard kinds`)",
            tasks=count,
            kind=kind,
        )


def _unmerged(seen: Examined, alive: list[NodeView]) -> Iterator[Finding]:
    requests, _, oldest_ns = seen.accepted
    waiting_ns = 0 if oldest_ns is None else seen.now_ns - oldest_ns
    if not requests or (alive and waiting_ns < _LATE_NS):
        return
    yield Finding(
        "accepted",
        PROBLEM if alive else NOTE,
        f"{requests} request{' waits' if requests == 1 else 's wait'} in the inbox that a transaction accepted, to"
        f" enqueue or pull in, the first for {span(waiting_ns)}",
        "an engine merges them before it claims: see in the log of one whether it can, or start another"
        if alive
        else "the next engine that starts merges them into the task table",
        tasks=requests,
    )


def _deferred(seen: Examined, alive: list[NodeView]) -> Iterator[Finding]:
    for kind, count in seen.deferred.items():
        known = _is_served(kind, alive)
        text = f"{_tasks(count)} deferred of kind {printable(kind)}"
        yield Finding(
            "deferred",
            NOTE if known else PROBLEM,
            text if known else f"{text}, and no running engine serves the kind",
            "nothing, unless they stay: then upgrade the plugin, because their payload is of a newer one"
            if known
            else "install or upgrade the plugin that brings the kind, and restart the engine: they run then,"
            " unless they have expired",
            tasks=count,
            kind=kind,
        )


def _dead(seen: Examined) -> Iterator[Finding]:
    for kind, reason, count in seen.dead:
        on_purpose = reason in _ON_PURPOSE
        yield Finding(
            "dead",
            NOTE if on_purpose else PROBLEM,
            f"{_tasks(count)} dead of kind {printable(kind)}: {printable(reason)}",
            "nothing: they are pruned in time"
            if on_purpose
            else "`callboard dead show` tells why; mend it, then `callboard dead retry DATABASE --kind"
            f" {shlex.quote(printable(kind))}`, or `callboard dead purge`",
            tasks=count,
            kind=kind,
        )


def _is_served(kind: str, alive: list[NodeView]) -> bool:
    return any(kind in node.kinds for node in alive)


def _due(count: int) -> str:
    return f"{count} due task{'' if count == 1 else 's'}"


def _tasks(count: int) -> str:
    return f"{count} task is" if count == 1 else f"{count} tasks are"


def _name(node: NodeView) -> str:
    return f"node {node.row.id} ({printable(node.row.host)}:{node.row.pid})"
