"""`callboard pins`: what rows of a plugin's kinds look like, in a file that its author commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from callboard import _pins
from callboard._databaseless import brought_by
from callboard._kinds import TaskKind
from callboard.cli._output import json_option, print_json
from callboard.errors import PluginError

_name_argument = click.argument("name", metavar="NAME")
_file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of the pins; pins/NAME.json by default.",
)


@click.command("write")
@_name_argument
@_file_option
@click.option("--replace", is_flag=True, help="Drop pins that do not hold any more.")
@json_option
def write_pins(name: str, file: Path | None, replace: bool, as_json: bool) -> None:
    """Add what is not pinned yet of the kinds of plugin NAME to its file of pins, which is to be committed.

    Pins that are there stay. If one does not hold any more, nothing is written, unless --replace says that no row
    of it can be in a database.

    Example: callboard pins write reminders
    """
    file = _pins.default_file(name) if file is None else file
    kinds = _kinds_of(name)
    before = _pins.read(file) if file.exists() else []
    kept, complaints = _pins.judged(before, kinds)
    if complaints and not replace:
        raise click.ClickException(
            f"{'; '.join(complaints)}; undo that, or say --replace if no database has such rows"
        )
    added = _pins.unpinned(kept, kinds)
    _pins.write(file, name, kept + added)
    if as_json:
        print_json({"file": str(file), "kept": len(kept), "added": len(added), "dropped": len(complaints)})
    else:
        click.echo(f"{file}: kept {len(kept)}, added {len(added)}, dropped {len(complaints)}")


@click.command("check")
@_name_argument
@_file_option
@json_option
def check_pins(name: str, file: Path | None, as_json: bool) -> None:
    """Check that the pins of plugin NAME hold, and that every field of its kinds is pinned.

    The status is 1 if not.

    Example: callboard pins check reminders
    """
    file = _pins.default_file(name) if file is None else file
    kinds = _kinds_of(name)
    before = _pins.read(file)
    _, complaints = _pins.judged(before, kinds)
    missing = [str(pin) for pin in _pins.unpinned(before, kinds)]
    if as_json:
        print_json({"file": str(file), "pins": len(before), "broken": complaints, "missing": missing})
        if complaints or missing:
            click.get_current_context().exit(1)
    elif complaints:
        raise click.ClickException("; ".join(complaints))
    elif missing:
        raise click.ClickException(
            f"{', '.join(missing)}: not pinned yet; `callboard pins write {name}` adds what is new"
        )
    else:
        click.echo(f"{file}: {len(before)} pins hold")


def _kinds_of(name: str) -> dict[str, TaskKind[Any]]:
    """Return the kinds that a plugin brings.

    Raises:
        PluginError: it is not installed, does not work, or brings none.
    """
    kinds, health = brought_by(name)
    for where, problem in health.problems.items():
        raise PluginError(f"plugin {name!r}: {where} failed: {problem}; repair it first")
    if not health.kinds:
        raise PluginError(f"plugin {name!r} brings no kind of task, so there is nothing to pin")
    return kinds
