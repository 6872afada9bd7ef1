"""Fuzz a million rows: one half by plain mutation, the other guided by coverage (atheris), and files of them.

Prints what became of them and how fast it went; when something is wrong, exits with status 1 and the row that did
it. `--row HEX` checks that one again. The seed is fixed, so a run is the same each time; `--seed` makes another.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.checking import check_bytes
from tests.fuzz.mutating import mutated, seeds
from tests.fuzz.rows import row_of
from tests.fuzz.tables import check_file

FILE_ROWS = 500


def main() -> None:
    """Run the three parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows through the pure harness (%(default)s)")
    parser.add_argument("--file-rows", type=int, default=20_000, help="rows written to files (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--row", type=bytes.fromhex, help="check only the row that these bytes choose")
    options = parser.parse_args()
    if options.row is not None:
        print(row_of(options.row), check_bytes(options.row), sep="\n")
        return
    _mutate(options.rows // 2, options.seed)
    _guided(options.rows - options.rows // 2, options.seed)
    _files(options.file_rows, options.seed)


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
