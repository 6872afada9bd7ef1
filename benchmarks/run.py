"""Run every benchmark, or the one whose name comes first; what follows is handed to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("drain", "leases", "backlog", "pickup", "idle", "memory", "imports", "postgres")


def main() -> None:
    """Run them one after the other, since they would disturb each other."""
    names, options = list(NAMES), sys.argv[1:]
    if options and not options[0].startswith("-"):
        names = [options.pop(0)]
    for name in names:
        if name not in NAMES:
            sys.exit(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
        subprocess.run([sys.executable, Path(__file__).with_name(f"{name}.py"), *options], check=True)


if __name__ == "__main__":
    main()
