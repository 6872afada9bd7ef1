"""Run the benchmark suite, or the cases that are named: `python -m benchmarks drain pickup --quick`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.apart import MeasurementFailed
from benchmarks.bench import Bench
from benchmarks.cases import NAMES, case
from benchmarks.places import Places


def main() -> None:
    """Run cases one after the other, since they would disturb each other."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="sizes for a look: a minute or two for a case")
    parser.add_argument("--repeat", type=int, help="measurements of each thing")
    parser.add_argument("--no-peers", action="store_true", help="only Callboard and the raw limits")
    parser.add_argument("--json", type=Path, metavar="FILE", help="put the raw figures into FILE, case by case")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(NAMES):
        parser.error(f"there is no case {', '.join(sorted(unknown))}; the cases are {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server and its files go, too
    failed: list[str] = []
    places = Places()
    try:
        for name in options.cases or NAMES:
            print(f"{name}", file=sys.stderr, flush=True)
            bench = Bench(places, repeat=options.repeat, quick=options.quick, peers=not options.no_peers)
            began_s = time.monotonic()
            try:
                case(name)(bench)
            except MeasurementFailed as error:
                print(f"  {name} failed: {error}", file=sys.stderr, flush=True)
                failed.append(name)
            print(f"  took {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
            _show(name, bench)
            if options.json is not None:
                _keep(options.json, name, bench)
    finally:
        places.close()
    if failed:
        sys.exit(f"callboard failed in: {', '.join(failed)}")


def _show(name: str, bench: Bench) -> None:
    print(f"== {name}")
    for who, settings in bench.settings.items():
        print(f"  {who}: {settings}")
    for table in bench.tables:
        print("\n".join(table.lines()))
    print(flush=True)


def _keep(file: Path, name: str, bench: Bench) -> None:
    """Replace what a file of earlier figures has of a case."""
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    kept[name] = {
        "machine": {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "system": platform.platform(),
            "cores": os.cpu_count(),
        },
        "quick": bench.quick,
        "settings": bench.settings,
        "tables": [table.as_json() for table in bench.tables],
    }
    file.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
