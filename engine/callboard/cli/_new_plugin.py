"""`callboard new-plugin`: write a plugin's distribution that passes its own tests, to begin from.

What it writes is in `new_plugin_template/`, with marks where the plugin's name goes.
"""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from callboard.cli._message_code import message_code
from callboard.errors import ConfigurationError
from callboard.hookspec import PROJECT

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_TEMPLATE = "new_plugin_template"
_SUFFIX = ".txt"  # of each file there, so that no tool takes it for what it will be
_PACKAGE = "package"
_RENAMED = {"gitignore": ".gitignore"}
# With what comes after it, a table's name has 63 bytes on PostgreSQL; a distribution's must not end in a hyphen.
_NAME = re.compile(r"[a-z](?:[a-z0-9_]{0,38}[a-z0-9])?")
_TAKEN = ("build", "conftest", "deliveries", "dist", "engine", "pins", "tests")  # by names of the template's


@click.command("new-plugin")
@click.argument("name")
@click.option(
    "--path",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where to write it, a folder that is empty or not there yet; ./NAME by default.",
)
def new_plugin(name: str, folder: Path | None) -> None:
    """Write a distribution with a plugin called NAME, which passes its own tests.

    It has a message with its generated code, a kind with its handler, a reconcile hook, a table with its
    migrations, tests, and a tox.ini with the versions to test on. NAME is the package's name and the entry
    point's.

    Example: callboard new-plugin acme_notes
    """
    _check_name(name)
    folder = Path(name) if folder is None else folder
    _check_folder(folder)
    files = dict(_files(name))
    try:
        _write(folder, files)
    except OSError as error:
        raise click.ClickException(
            f"{folder} cannot be written: {error.strerror}; nothing is left there"
        ) from error
    click.echo(f"wrote plugin {name} to {folder}; its README.md says how to go on")


def _check_name(name: str) -> None:
    """Refuse what cannot be the name of a new package and entry point.

    Raises:
        ConfigurationError: it cannot.
    """
    if not _NAME.fullmatch(name):
        remedy = "give lower-case letters, digits and _, a letter first and no _ last, 40 at most"
        raise ConfigurationError(f"{name!r} cannot be the name of a plugin's package; {remedy}")
    if keyword.iskeyword(name) or name in sys.stdlib_module_names:
        raise ConfigurationError(f"{name!r} is a name of Python's own; give the plugin another")
    if name.startswith((PROJECT, "sqlite")) or name in _TAKEN:
        raise ConfigurationError(
            f"{name!r} is taken: callboard… by the engine, sqlite… by SQLite, {', '.join(_TAKEN)} by the plugin's"
            " own folder; give another"
        )
    if find_spec(name) is not None or metadata.entry_points(group=PROJECT, name=name):
        raise ConfigurationError(f"{name!r} is installed already; give the plugin another name")


def _check_folder(folder: Path) -> None:
    """Refuse a place where something is.

    Raises:
        ConfigurationError: it is no folder, or not empty, or there is none to make it in.
    """
    if folder.is_dir():
        if any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty; give a new folder: --path DIR")
    elif folder.exists():
        raise ConfigurationError(f"{folder} is no folder; give a new one: --path DIR")
    elif not folder.absolute().parent.is_dir():
        raise ConfigurationError(f"{folder.absolute().parent} is no folder; make it first, or give another --path")


def _files(name: str) -> Iterator[tuple[str, str]]:
    """Return the plugin's files, by their paths in its folder."""
    marks = {
        "name": name,
        "distribution": name.replace("_", "-"),
        "callboard": metadata.version("callboard"),
    }
    for path, text in _templates(resources.files("callboard.cli").joinpath(_TEMPLATE), ()):
        yield "/".join((name if path[0] == _PACKAGE else path[0], *path[1:])), _filled(text, marks)
    yield f"{name}/messages_pb2.py", message_code(name)


def _templates(folder: Traversable, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from _templates(each, (*path, each.name))
        elif each.name.endswith(_SUFFIX):
            name = each.name.removesuffix(_SUFFIX)
            yield (*path, _RENAMED.get(name, name)), each.read_text(encoding="utf-8")


def _filled(text: str, marks: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: marks[mark[1]], text)


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all of it or nothing."""
    is_new = not folder.exists()
    try:
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
    except BaseException:
        for each in [folder] if is_new else list(folder.iterdir()):
            shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink()
        raise
