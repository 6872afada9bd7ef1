"""The `callboard demo` command: where the demo lives, what it prints, and its exit status."""

import json
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console

from .. import rine
from .narrator import Narrator
from .story import play


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one line on stdout, all else on stderr."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Leave everything in DIR, new or empty, to look at: callboard tasks list DIR/callboard.db",
)
def demo(as_json: bool, keep: Path | None) -> None:
    """Watch real MLS groups being kept in order, through a SIGKILL.

    Exit status 0 only if nothing was lost and all can read exactly what they should.
    """
    rine.require()
    try:
        with _folder(keep) as folder, Narrator(Console(stderr=as_json)) as narrator:
            result = play(folder, narrator)
            narrator.say(f"What came of it, after {result.seconds:.1f} s:")
            for kept, promise in result.checks():
                narrator.check(kept, promise)
            if keep is not None:
                narrator.say(f"Have a look: callboard tasks list {shlex.quote(str(keep / 'callboard.db'))}")
    except (OSError, sqlite3.Error) as error:
        raise click.ClickException(
            f"{error}; the demo needs a writable folder: set TMPDIR or --keep DIR"
        ) from error
    if as_json:
        click.echo(json.dumps(asdict(result)))
    if not result.is_good():
        raise SystemExit(1)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with TemporaryDirectory(prefix="callboard-demo-") as folder:
            yield Path(folder)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise click.BadParameter(f"{keep} is not empty; name a new folder", param_hint="--keep")
    yield keep.absolute()
