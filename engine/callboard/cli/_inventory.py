"""`callboard kinds` and `callboard plugins`: what this installation brings, and what is wrong with it."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import click

from callboard._databaseless import databaseless
from callboard._task import TaskState
from callboard.cli._database import as_url, open_for_reading
from callboard.cli._group import ContributedCommand, contributed, package_of
from callboard.cli._output import json_option, print_json, print_table, printable, qualified
from callboard.errors import PluginError
from callboard.hookspec import PROJECT


@click.command
@click.argument("database", callback=as_url, metavar="[DATABASE]", required=False)
@json_option
def kinds(database: str | None, as_json: bool) -> None:
    """List the kinds of task that installed plugins bring.

    With DATABASE, also count its tasks, and list the kinds there that nobody here knows.

    Example: callboard kinds service.db
    """
    counts = None if database is None else open_for_reading(database).count_tasks()
    engine = databaseless()
    listed: dict[str, dict[str, Any]] = {
        kind.name: {
            "kind": kind.name,
            "plugin": plugin,
            "recurring": kind.recurring,
            "requires": [qualified(service) for service in kind.requires],
        }
        for kind, plugin in engine._core.registry
    }
    for name, _ in counts or ():
        listed.setdefault(name, {"kind": name, "plugin": None, "recurring": None, "requires": None})
    entries = [listed[name] for name in sorted(listed)]
    if counts is not None:
        for entry in entries:
            entry["tasks"] = {str(state): counts.get((entry["kind"], state), 0) for state in TaskState}
    if as_json:
        print_json({"kinds": entries})
        return
    failed = [health.name for health in engine._core.plugins.health.values() if health.problems]
    if failed:
        click.echo(f"something failed in {', '.join(failed)}: `callboard plugins` shows what", err=True)
    _print_kinds(entries, counted=counts is not None)


def _print_kinds(entries: list[dict[str, Any]], *, counted: bool) -> None:
    from rich.table import Column

    if not entries:
        click.echo("none; install a plugin, such as callboard-mls")
        return
    counters = [Column(state.upper(), justify="right") for state in TaskState] if counted else []
    rows = [
        (
            printable(entry["kind"]),
            *(str(count) for count in entry.get("tasks", {}).values()),
            "unknown here"
            if entry["plugin"] is None
            else ", ".join(name.rpartition(".")[2] for name in entry["requires"]),
        )
        for entry in entries
    ]
    print_table([Column("KIND", overflow="fold"), *counters, Column("NEEDS SERVICE", ratio=1)], rows)


@click.command
@json_option
def plugins(as_json: bool) -> None:
    """List installed plugins and commands, and what is wrong with each.

    Plugins that the environment variable CALLBOARD_BLOCK_PLUGINS names are not imported, here and by every engine.

    Example: callboard plugins
    """
    packages = {point.name: package_of(point) for point in entry_points(group=PROJECT)}
    found = [
        {
            "name": health.name,
            "package": packages[health.name],
            "loaded": health.loaded,
            "blocked": health.blocked,
            "kinds": health.kinds,
            "problems": health.problems,
        }
        for health in databaseless()._core.plugins.health.values()
    ]
    group = click.get_current_context().find_root().command
    own = group.commands if isinstance(group, click.Group) else {}
    commands = []
    for name, command in sorted(contributed().items()):
        problem = "unavailable: Callboard has a command of this name" if name in own else _problem_of(command)
        commands.append({"name": name, "package": command.package, "problem": problem})
    if as_json:
        print_json({"plugins": found, "commands": commands})
        return
    _print_plugins(found, commands)


def _problem_of(command: ContributedCommand) -> str | None:
    try:
        command.load()
    except PluginError as error:
        return str(error)
    return None


def _print_plugins(found: list[dict[str, Any]], commands: list[dict[str, Any]]) -> None:
    from rich.table import Column

    if not found and not commands:
        click.echo("none; install one, such as callboard-mls")
        return
    rows = []
    for plugin in found:
        brings = [f"kind {name}" for name in plugin["kinds"]]
        problems = [f"{where} failed: {error}" for where, error in plugin["problems"].items()]
        blocked = ["blocked"] if plugin["blocked"] else []
        rows.append((plugin["name"], plugin["package"], printable("; ".join(blocked + problems + brings))))
    for command in commands:
        rows.append((command["name"], command["package"], printable(command["problem"] or "command")))
    print_table([Column("NAME"), Column("PACKAGE"), Column("BRINGS", ratio=1, overflow="fold")], rows)
