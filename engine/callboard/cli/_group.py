"""The group of all commands: those of this package, and those that plugins' packages contribute.

A command is imported only when it is run: help and the shell's completion need not wait for an engine, and one
broken package takes no other command away.
"""

from __future__ import annotations

import re
import traceback
from abc import ABC, abstractmethod
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from callboard.errors import CallboardError, ConfigurationError, PluginError

ENTRY_POINTS = "callboard.commands"
"""The entry-point group; what an entry names is a `click.Command`, and its name is the command's."""

INTERRUPTED = "stopped by Ctrl-C; what had been changed stays so, and nothing is changed by half"
"""What a command says that Ctrl-C has ended."""


class LazyCommand(click.Command, ABC):
    """A command before its code is imported."""

    @abstractmethod
    def load(self) -> click.Command:
        """Import the command."""


class OwnCommand(LazyCommand):
    """A command of this package before its code is imported."""

    def __init__(self, name: str, where: str, short_help: str) -> None:
        """Describe the command that `where` names as `module:function`; imports nothing."""
        super().__init__(name, short_help=short_help)
        self._where = where

    def load(self) -> click.Command:
        """Import the command."""
        module, _, function = self._where.partition(":")
        command: click.Command = getattr(import_module(f"callboard.cli.{module}"), function)
        return command


class ContributedCommand(LazyCommand):
    """A plugin's command before its code is imported."""

    def __init__(self, entry_point: EntryPoint) -> None:
        """Describe the command that `entry_point` names; imports nothing."""
        self.package = package_of(entry_point)
        super().__init__(entry_point.name, short_help=f"(brought by {self.package})")
        self._entry_point = entry_point

    def load(self) -> click.Command:
        """Import the command.

        Raises:
            PluginError: it cannot be imported, or is no command.
        """
        try:
            command = self._entry_point.load()
        except (Exception, SystemExit) as error:
            reason = "".join(traceback.format_exception_only(error)).strip()
            raise self._unavailable(reason) from error
        if not isinstance(command, click.Command):
            raise self._unavailable(f"{self._entry_point.value} is no click command")
        return command

    def _unavailable(self, reason: str) -> PluginError:
        return PluginError(
            f"`callboard {self.name}` is unavailable: {reason}; repair, upgrade or uninstall {self.package}"
        )


class LazyGroup(click.Group):
    """Imports a command when it is to be run, or its own help to be shown."""

    def add_own(self, name: str, where: str, short_help: str) -> None:
        """Add a command of this package: where its function is, and the first sentence of its help."""
        self.add_command(OwnCommand(name, where, short_help))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command to run, imported, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


class CommandGroup(LazyGroup):
    """Finds commands here and among the plugins, and turns the engine's errors into one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *contributed()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; a plugin's cannot take the place of one of this package."""
        return super().get_command(ctx, cmd_name) or contributed().get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command to run, imported, and its arguments."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = "plugins bring commands, too: `callboard plugins` lists what is installed"
            raise click.UsageError(f"{error.format_message()} {hint}", error.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what the engine refuses, and Ctrl-C, is one line on stderr."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.ClickException(INTERRUPTED) from None
        except click.UsageError as error:  # it repeats arguments that are too many or no command
            if "://" not in error.format_message():
                raise
            raise click.UsageError(re.sub(r"://\S+", "://…", error.format_message()), error.ctx) from None
        except ConfigurationError as error:  # the engine's arguments are the command line's
            raise click.UsageError(_one_line(error)) from error
        except CallboardError as error:
            raise click.ClickException(_one_line(error)) from error


def contributed() -> dict[str, ContributedCommand]:
    """Return the commands of the installed plugins by name; imports nothing."""
    return {point.name: ContributedCommand(point) for point in entry_points(group=ENTRY_POINTS)}


def package_of(entry_point: EntryPoint) -> str:
    """Return the name and version of the distribution that an entry point is part of."""
    distribution = entry_point.dist
    return "an unknown package" if distribution is None else f"{distribution.name} {distribution.version}"


def _one_line(error: CallboardError) -> str:
    return " ".join(str(error).split())
