"""`callboard migrate`: bring a database's tables up to date, for hosts that do so before they start."""

from __future__ import annotations

import click

from callboard._engine import Engine
from callboard._plugins import PluginHealth
from callboard.cli._database import database_argument
from callboard.cli._output import json_option, print_json


@click.command
@database_argument
@json_option
def migrate(database: str, as_json: bool) -> None:
    """Bring the tables of DATABASE up to date, the engine's and those of the installed plugins.

    It makes the file if there is none; on PostgreSQL the database must exist. Each migration is done whole or not
    at all. The status is 1 if a plugin's tables could not be brought up to date; the engine's and other plugins'
    are.

    Example: callboard migrate service.db
    """
    engine = Engine(database, execute=False)
    try:
        done = engine.migrate()
        problems = {plugin.name: _of_tables(plugin) for plugin in engine.health().plugins if _of_tables(plugin)}
    finally:
        engine.stop()
    if as_json:
        print_json({"applied": done, "problems": problems})
    else:
        for title in done:
            click.echo(f"applied {title}")
        if not done:
            click.echo("nothing to do" if problems else "the tables are up to date")
    failed = [
        f"plugin {name}: {where} failed: {error}"
        for name, found in problems.items()
        for where, error in found.items()
    ]
    if failed:
        raise click.ClickException(" ".join("; ".join(failed).split()))


def _of_tables(plugin: PluginHealth) -> dict[str, str]:
    """Return what is wrong with a plugin's tables, or may be: of one that cannot be imported nobody knows."""
    return {where: error for where, error in plugin.problems.items() if where == "import" or "migration" in where}
