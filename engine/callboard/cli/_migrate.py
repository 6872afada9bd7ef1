"""`callboard migrate`: bring a database's tables up to date, for hosts that do so before they start."""

from __future__ import annotations

import click

from callboard._engine import Engine
from callboard.cli._database import database_argument


@click.command
@database_argument
def migrate(database: str) -> None:
    """Bring the tables of DATABASE up to date.

    It makes the file if there is none; on PostgreSQL the database must exist.

    Example: callboard migrate service.db
    """
    engine = Engine(database, plugins=[], execute=False)
    try:
        done = engine.migrate()
    finally:
        engine.stop()
    for title in done:
        click.echo(f"applied {title}")
    if not done:
        click.echo("the tables are up to date")
