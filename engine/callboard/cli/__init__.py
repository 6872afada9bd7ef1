"""The `callboard` command: for the person who looks after a service, at a prompt or from a script.

A command prints what it found on stdout and, when it fails, one line on stderr that says what to do: exit
status 1, or 2 for a command line that makes no sense. What the commands print with `--json` is stable.
"""

from __future__ import annotations

import click

from callboard.cli._burials import purge_dead, retry_dead
from callboard.cli._changes import cancel_task, pull_in_task, retry_task
from callboard.cli._copy import copy
from callboard.cli._doctor import doctor
from callboard.cli._group import CommandGroup
from callboard.cli._groups import groups
from callboard.cli._inventory import kinds, plugins
from callboard.cli._listings import dead, tasks
from callboard.cli._migrate import migrate
from callboard.cli._run import run
from callboard.cli._show import show_dead, show_task
from callboard.cli._top import top

__all__ = ["main"]


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="callboard")
def main() -> None:
    """Serve and inspect a Callboard task database.

    DATABASE is a file's path, or a URL such as sqlite:///service.db or postgresql://user@host/name. Others on this
    machine can see a password in a URL; PGPASSWORD and ~/.pgpass are read, too. Installed plugins may bring
    further commands.

    Example: callboard run service.db
    """


for _command in (run, tasks, dead, groups, doctor, top, kinds, plugins, migrate, copy):
    main.add_command(_command)
for _command in (show_task, retry_task, cancel_task, pull_in_task):
    tasks.add_command(_command)
for _command in (show_dead, retry_dead, purge_dead):
    dead.add_command(_command)
