"""Fuzz a million rows: one half by plain mutation, the other guided by coverage (atheris), and files of them.

Prints what became of them and how fast it went; when something is wrong, exits with status 1 and the row that did
it. `--row HEX` checks that one again. The seed is fixed, so a run is the same each time; `--seed` makes another.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import click
from tests.fuzz.checking import check_bytes
from tests.fuzz.mutating import mutated, seeds
from tests.fuzz.rows import row_of
from tests.fuzz.tables import check_file

FILE_ROWS = 500


def _bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> bytes | None:
    try:
        return None if value is None else bytes.fromhex(value)
    except ValueError as error:
        raise click.BadParameter("give the bytes in hex, as a failure prints them") from error


@click.command(help=__doc__)
@click.option("--rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Rows in memory.")
@click.option("--file-rows", type=click.IntRange(min=0), default=20_000, show_default=True, help="Rows in files.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option("--row", callback=_bytes, help="Check only the row that these bytes choose.")
def main(rows: int, file_rows: int, seed: int, row: bytes | None) -> None:
    """Run the three parts."""
    if row is not None:
        click.echo(f"{row_of(row)}\n{check_bytes(row)}")
        return
    if find_spec("atheris") is None:
        raise click.ClickException("one half of the rows is guided by atheris; `tox -e fuzz` installs it")
    _mutate(rows // 2, seed)
    _guided(rows - rows // 2, seed)
    _files(file_rows, seed)


def _mutate(rows: int, seed: int) -> None:
    chance, verdicts, began_s = random.Random(seed), Counter[str](), time.perf_counter()
    for _ in range(rows):
        data = mutated(chance)
        try:
            verdicts[check_bytes(data)] += 1
        except BaseException:
            print(f"--row {data.hex()}\n{row_of(data)}", file=sys.stderr)
            raise
    _report("mutated", rows, began_s, verdicts)


def _guided(rows: int, seed: int) -> None:
    """Run atheris in a process of its own, which it ends itself."""
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds()):
            (Path(folder) / str(number)).write_bytes(data)
        command = [sys.executable, "-m", "tests.fuzz.guided", folder, f"-runs={rows}", f"-seed={seed}"]
        done = subprocess.run([*command, "-artifact_prefix=fuzz-", "-max_len=4096", "-verbosity=0"], check=False)
        if done.returncode != 0:
            sys.exit(
                "atheris found something: see above; `--row` takes the bytes of the file that it wrote, in hex"
            )
        found = len(list(Path(folder).iterdir())) - len(seeds())
    _report(f"guided by coverage ({found} rows reached something new)", rows, began_s, Counter())


def _files(rows: int, seed: int) -> None:
    chance, fates, began_s = random.Random(seed), Counter[str](), time.perf_counter()
    for _ in range(rows // FILE_ROWS):
        with tempfile.TemporaryDirectory() as folder:
            batch = [mutated(chance) for _ in range(FILE_ROWS)]
            fates += check_file(Path(folder) / "fuzz.db", batch, chance)
    _report("in files, run by the engine", rows, began_s, fates)


def _report(what: str, rows: int, began_s: float, verdicts: Counter[str]) -> None:
    took_s = time.perf_counter() - began_s
    print(f"{rows:,} rows {what}: {took_s:.0f} s, {rows / took_s:,.0f} rows/s", flush=True)
    for verdict, count in verdicts.most_common():
        print(f"  {verdict:<16} {count:>9,}", flush=True)


if __name__ == "__main__":
    main()
