"""Import `Engine`, run `callboard --help`, and import and start each contestant, in fresh interpreters; ms.

What callboard costs is counted beyond its dependencies' modules that it imports; what it imports of the standard
library counts as its own, unless they import it too. The suite's own modules are imported before a contestant's:
they bring `sqlite3`, `multiprocessing` and `json`, which flatters those who use them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import work
from benchmarks.bench import Bench

_DEPENDENCIES = """
import sys, sysconfig
already = set(sys.modules)
from callboard import Engine
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
from callboard import Engine
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


def measure(bench: Bench) -> None:
    """Measure in turn."""
    imports = bench.table("from callboard import Engine", "ms", "callboard beyond its dependencies")
    command_line = bench.table("the command line", "ms", "callboard --help")
    dependencies = python(_DEPENDENCIES)
    command = str(Path(sys.executable).with_name("callboard"))
    took_ms(command, "--help")
    for _ in bench.turns(15, 5):
        of_dependencies, of_callboard = python(_IMPORTS, *dependencies)
        imports.add("its dependencies", int(of_dependencies) / 1e6)
        imports.add(imports.subject, int(of_callboard) / 1e6)
        command_line.add("python -c pass", took_ms(sys.executable, "-c", "pass"))
        command_line.add(command_line.subject, took_ms(command, "--help"))
    imports.median_at_most(imports.subject, 50)
    for database in ("sqlite", "postgres"):
        tables = [
            bench.table(f"import, {database}", "ms"),
            bench.table(f"make the tables and start the workers, {database}", "ms"),
        ]
        contestants = [who for who in bench.contestants(database) if who.runs_handlers]
        for _ in bench.turns(5, 2):
            for who in contestants:
                bench.measure(tables, who, work.import_and_start)
