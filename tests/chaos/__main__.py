"""Kill engines many times and see whether the ledger minds: `python -m tests.chaos --kills 500 --seed 1`."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import click
from tests.chaos.campaign import Campaign
from tests.chaos.database import SORTS
from tests.chaos.sabotage import SABOTAGES

_SHOWN = 20


@click.command()
@click.option("--kills", default=500, show_default=True, type=click.IntRange(1), help="Processes to kill.")
@click.option(
    "--database", "on", default=SORTS[0], show_default=True, type=click.Choice(SORTS), help="What engines run on."
)
@click.option("--seed", default=None, type=int, help="Repeat a run's plan; by default a new one is made up.")
@click.option("--minutes", default=None, type=float, help="Begin no new round after so long.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the figures as one line on stdout, all else on stderr."
)
@click.option(
    "--folder",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep files; those of rounds that went well are deleted.",
)
@click.option(
    "--sabotage", default=None, type=click.Choice(SABOTAGES), help="Do wrong on purpose, to see it found."
)
def main(
    kills: int,
    on: str,
    seed: int | None,
    minutes: float | None,
    as_json: bool,
    folder: Path | None,
    sabotage: str | None,
) -> None:
    """Kill engines with SIGKILL, at random and at every crash point, and check that nothing is lost.

    Exit status 1 if something is; then the files of the rounds in question are kept.
    """
    seed = random.randrange(1_000_000) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="callboard-chaos-")) if folder is None else folder
    say(f"seed {seed}, files in {folder}")
    campaign = Campaign(folder, seed, kills, say, sabotage or "", on)
    campaign.play(None if minutes is None else minutes * 60)
    for violation in campaign.violations[:_SHOWN]:
        say(f"  {violation}")
    if len(campaign.violations) > _SHOWN:
        say(f"  … and {len(campaign.violations) - _SHOWN} more")
    for line in campaign.summary():
        say(line)
    if as_json:
        figures = {part: vars(total) for part, total in campaign.totals.items()}
        click.echo(json.dumps({"seed": seed, **figures, "violations": campaign.violations}))
    if campaign.violations:
        say(f"seed {seed}, files kept in {folder}")
        sys.exit(1)


def say(text: str) -> None:
    """Tell how it goes."""
    click.echo(text, err=True)


if __name__ == "__main__":
    main()
