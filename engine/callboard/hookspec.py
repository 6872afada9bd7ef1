"""The hooks a plugin may implement, each with its contract. This file is the reference for plugin authors.

A plugin is whatever an entry point in the group `callboard` names: a module, an object, or a class or
function that makes one and is called once for each engine. Each hook is called for each plugin on its own:
one that raises is logged, shown in `Engine.health()`, and never touches another plugin's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from callboard._engine import Engine
    from callboard._kinds import TaskKind
    from callboard._migration import Migration
    from callboard._task import FinishedTask
    from callboard._transaction import Transaction
    from callboard.events import Event, GroupEvent

__all__ = [
    "PROJECT",
    "callboard_event",
    "callboard_group_event",
    "callboard_reconcile",
    "callboard_startup",
    "callboard_task_kinds",
    "callboard_tasks_finished",
    "hookimpl",
    "hookspec",
]

PROJECT = "callboard"
"""The name of pluggy's project and of the entry-point group."""

API_VERSION = (1, 0)
"""The version of the plugin API: major, which changes when plugins have to, and minor, when there is more of it.

A plugin that says which one it needs, with an attribute `callboard_api = (1, 0)` of the module or object, is
loaded by an engine of the same major version and at least that minor one, and refused by others. One that says
nothing is loaded.
"""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Mark a function of a plugin as the implementation of the hook of the same name."""


@hookspec
def callboard_task_kinds(engine: Engine) -> Iterable[TaskKind[Any]]:  # type: ignore[empty-body]
    """Return the kinds of task that this plugin brings.

    Called once for an engine, when its plugins are loaded. Touch no database here.
    """


@hookspec
def callboard_migrations(engine: Engine) -> Iterable[Migration]:  # type: ignore[empty-body]
    """Return the migrations of the tables that this plugin has in the engine's database.

    `callboard.read_migrations("acme_receipts")` reads them from the package. Called once for an engine, when its
    plugins are loaded; touch no database here. What the database lacks is run after the engine's own migrations,
    by one process at a time, each in one transaction with its record, which is under the plugin's name. One that
    fails leaves nothing; the plugin is then disabled in this engine: its hooks are not called, and its tasks wait
    for a node that can run them. So it is when a newer version of the plugin has migrated its tables, unless that
    says that this one can work on them.
    """


@hookspec
def callboard_startup(engine: Engine) -> None:
    """Prepare whatever the plugin keeps for this engine.

    Called once when the engine starts, after the tables are migrated and before the first task runs. It is
    the place to enqueue recurring singletons: they merge into the live row.
    """


@hookspec
def callboard_reconcile(engine: Engine, reason: str) -> None:
    """Enqueue again, from the state itself, what lost events would have enqueued.

    Called on start, when the database or a service is back, when events were dropped, and every six hours
    on some node of the fleet. It must be idempotent. One that raises is tried again with backoff until it
    succeeds.

    Args:
        engine: the engine to read from and enqueue on.
        reason: `start`, `reconnect`, `service`, `overflow`, `hook` or `interval`.
    """


@hookspec
def callboard_group_event(tx: Transaction, event: GroupEvent) -> None:
    """Ensure the tasks that a group event asks for, in the event's own transaction.

    Called on the host's thread after the engine wrote its own rows. What it enqueues on `tx` commits or rolls
    back with the event. Be quick and touch nothing but `tx`; when it raises, what it wrote is undone, the
    event stands, and a reconcile follows.

    Args:
        tx: the event's transaction; `tx.engine` is the engine.
        event: what happened to which group.
    """


@hookspec
def callboard_event(engine: Engine, event: Event) -> None:
    """React to an event that the host published with `Engine.publish`.

    Called on a thread of the engine's pool, one event at a time for each engine and plugin. 1,000 may wait for a
    plugin; more are dropped, and every plugin reconciles instead.
    """


@hookspec
def callboard_tasks_finished(engine: Engine, finished: Sequence[FinishedTask]) -> None:
    """Observe tasks that ended, in batches, after the commit that ended them.

    Called on a thread of the engine's pool, never beside the plugin's `callboard_event`. All that ended since the
    call before is one batch. No work should hang on it: a crash between the commit and this call loses it, and a
    plugin for which 10,000 ended tasks wait is not told of more; they are counted (`Engine.health().untold`).
    """
