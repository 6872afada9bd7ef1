"""Run simulations: `python -m tests.simulation` tries a range of seeds, `--seed N` replays one."""

from __future__ import annotations

import json
import os
import sys
import time

import click
from tests.simulation.faults import FAULTS
from tests.simulation.search import Failure, play, search, shrunk
from tests.simulation.world import DEEDS


def _faults(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name for name in value.split(",") if name)
    unknown = sorted(set(names) - set(FAULTS))
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: the faults are {', '.join(FAULTS)}")
    return names


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="Replay this one and show its trace.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed to try.")
@click.option("--seeds", type=click.IntRange(min=1), default=10_000, show_default=True, help="How many to try.")
@click.option("--deeds", type=click.IntRange(min=1), default=DEEDS, help="How much the host does (with --seed).")
@click.option("--without", callback=_faults, default="", help="Faults to leave out (with --seed): a,b,c.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, help="How many processes.")
@click.option("--json", "as_json", is_flag=True, help="Say the result as one line of JSON.")
def main(
    seed: int | None, first: int, seeds: int, deeds: int, without: tuple[str, ...], jobs: int, as_json: bool
) -> None:
    """Play whole engines on a virtual machine, each seed with an order and faults of its own."""
    if seed is not None:
        failure = play(seed, deeds, without)
        _report([failure] if failure else [], 1, 0.0, as_json=as_json)
    began_s = time.monotonic()
    found: list[int] = []
    shown_s = began_s
    for tried, failed in search(range(first, first + seeds), jobs):
        found += failed
        if time.monotonic() - shown_s > 5 and not as_json:
            shown_s = time.monotonic()
            click.echo(f"{tried} of {seeds} seeds, {len(found)} failed", err=True)
    failures = [shrunk(failure) for failure in map(play, found[:3]) if failure is not None]
    _report(failures, seeds, time.monotonic() - began_s, as_json=as_json, failed=found)


def _report(
    failures: list[Failure], tried: int, took_s: float, *, as_json: bool, failed: list[int] | None = None
) -> None:
    failed = [failure.seed for failure in failures] if failed is None else failed
    if as_json:
        told = [failure._asdict() | {"command": failure.command()} for failure in failures]
        click.echo(json.dumps({"seeds": tried, "failed": failed, "seconds": round(took_s, 1), "failures": told}))
    else:
        for failure in failures:
            click.echo(
                "\n".join([*failure.trace, "", *failure.violations, "", f"replay: {failure.command()}", ""])
            )
        click.echo(f"{tried} seeds, {len(failed)} failed{f', {took_s:.0f} s' if took_s else ''}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
