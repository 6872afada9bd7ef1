"""The `callboard` command: for the person who looks after a service, at a prompt or from a script.

A command prints what it found on stdout and, when it fails, one line on stderr that says what to do: exit
status 1, or 2 for a command line that makes no sense. What the commands print with `--json` is stable.
"""

from __future__ import annotations

from shutil import get_terminal_size

import click

from callboard.cli._group import CommandGroup, LazyGroup

__all__ = ["main"]

# Click itself makes help no narrower than 50 columns.
_HELP_WIDTH = max(min(get_terminal_size().columns, 80) - 2, 30)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": _HELP_WIDTH},
)
@click.version_option(package_name="callboard")
def main() -> None:
    """Serve and inspect a Callboard task database.

    DATABASE is a file's path, or a URL such as sqlite:///service.db or postgresql://user@host/name. Others on this
    machine can see a password in a URL; PGPASSWORD and ~/.pgpass are read, too. Installed plugins may bring
    further commands.

    Example: callboard run service.db
    """


@click.group(cls=LazyGroup)
def tasks() -> None:
    """Look at live tasks, and change when they run.

    Example: callboard tasks list service.db
    """


@click.group(cls=LazyGroup)
def dead() -> None:
    """Look at dead tasks, those that cannot succeed any more, and retry or delete them.

    Example: callboard dead list service.db
    """


@click.group(cls=LazyGroup)
def groups() -> None:
    """Look at groups: their members, who asked to leave, and their tasks.

    Example: callboard groups list service.db
    """


@click.group(cls=LazyGroup)
def pins() -> None:
    """Pin the bytes of a plugin's messages, so that no change orphans rows by accident.

    Example: callboard pins check reminders
    """


for _group in (tasks, dead, groups, pins):
    main.add_command(_group)
main.add_own("copy", "_copy:copy", "Copy all tasks, dead tasks and groups of SOURCE to TARGET.")
main.add_own("doctor", "_doctor:doctor", "Say what is wrong with DATABASE, and what to do about each thing.")
main.add_own("kinds", "_inventory:kinds", "List the kinds of task that installed plugins bring.")
main.add_own(
    "migrate",
    "_migrate:migrate",
    "Bring the tables of DATABASE up to date, the engine's and those of the installed plugins.",
)
main.add_own(
    "new-plugin",
    "_new_plugin:new_plugin",
    "Write a distribution with a plugin called NAME, which passes its own tests.",
)
main.add_own("plugins", "_inventory:plugins", "List installed plugins and commands, and what is wrong with each.")
main.add_own("run", "_run:run", "Run the tasks of DATABASE with the installed plugins.")
main.add_own("top", "_top:top", "Show what goes on in DATABASE until Ctrl-C.")

tasks.add_own("cancel", "_changes:cancel_task", "Cancel the live task ID of DATABASE: it becomes a dead task.")
tasks.add_own("list", "_listings:list_tasks", "List the live tasks of DATABASE in the order of their ids.")
tasks.add_own(
    "pull-in", "_changes:pull_in_task", "Lower the deadline of the live task ID of DATABASE; never raise it."
)
tasks.add_own("retry", "_changes:retry_task", "Make the live task ID of DATABASE due now.")
tasks.add_own("show", "_show:show_task", "Show the live task ID of DATABASE.")

dead.add_own("list", "_listings:list_dead", "List the dead tasks of DATABASE, each with its reason.")
dead.add_own("purge", "_burials:purge_dead", "Delete dead tasks of DATABASE for good.")
dead.add_own(
    "retry",
    "_burials:retry_dead",
    "Give dead tasks of DATABASE a new life: those with these IDs, or all of one kind.",
)
dead.add_own("show", "_show:show_dead", "Show the dead task ID of DATABASE, with its whole error.")

groups.add_own(
    "list",
    "_groups:list_groups",
    "List the groups of DATABASE that its host has told of, in the order of their ids.",
)
groups.add_own("show", "_groups:show_group", "Show the group HEX of DATABASE, and who holds its tasks.")

pins.add_own(
    "check",
    "_pins:check_pins",
    "Check that the pins of plugin NAME hold, and that every field of its kinds is pinned.",
)
pins.add_own(
    "write",
    "_pins:write_pins",
    "Add what is not pinned yet of the kinds of plugin NAME to its file of pins, which is to be committed.",
)
