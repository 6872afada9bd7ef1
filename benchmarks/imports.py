"""Import callboard and run `callboard --help`, each in a fresh interpreter: milliseconds.

What callboard costs is counted beyond its dependencies' modules that it imports; what it imports of the
standard library counts as its own, unless they import it too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from harness import Report

_DEPENDENCIES = """
import sys, sysconfig
already = set(sys.modules)
import callboard
packages = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
for name, module in list(sys.modules.items()):
    path = getattr(module, "__file__", None) or ""
    if name not in already and path.startswith(packages) and name.partition(".")[0] != "callboard":
        print(name)
"""

_IMPORTS = """
import importlib, sys, time
began_ns = time.perf_counter_ns()
for name in sys.argv[1:]:
    importlib.import_module(name)
dependencies_ns = time.perf_counter_ns()
import callboard
print(dependencies_ns - began_ns, time.perf_counter_ns() - dependencies_ns)
"""


# The first process writes the byte code, so that none of those that are measured compiles.
_ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}


def python(code: str, *args: str) -> list[str]:
    """Return the words that a fresh interpreter prints."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=_ENVIRONMENT).stdout.split()


def took_ms(*command: str) -> float:
    """Return how long a command runs, the interpreter's own start included."""
    began_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=_ENVIRONMENT)
    return (time.perf_counter() - began_s) * 1_000


def main() -> None:
    """Measure in turn."""
    report = Report("import callboard, and callboard --help, ms", repeat=15)
    dependencies = python(_DEPENDENCIES)
    command = str(Path(sys.executable).with_name("callboard"))
    took_ms(command, "--help")
    for _ in range(report.repeat):
        of_dependencies, of_callboard = python(_IMPORTS, *dependencies)
        report.add("its dependencies", int(of_dependencies) / 1e6)
        report.add("callboard beyond them", int(of_callboard) / 1e6)
        report.add("python -c pass", took_ms(sys.executable, "-c", "pass"))
        report.add("callboard --help", took_ms(command, "--help"))
    report.ratio("callboard / its dependencies", "callboard beyond them", "its dependencies")
    report.at_most("callboard beyond them", 50)
    report.print()


if __name__ == "__main__":
    main()
