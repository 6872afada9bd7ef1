"""What every test shares: generated examples are the same in each run, and files are in memory if possible."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

MEMORY = Path("/dev/shm")
"""Where Linux has a disk that is memory."""

ROOM = 2 * 1024**3
"""How much of it has to be free. A container often has 64 MiB in all."""

# Hundreds of databases would wait for the disk at each commit, which is most of the time of a run. It is processes
# that end here, not power, so nothing is shown by that. TMPDIR=/tmp has them on the disk.
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# A shell that is not interactive has what it starts in the background ignore Ctrl-C, and so would our children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


STARTS_PROCESSES = {"serve", "script"}
"""Fixtures with which a test starts processes, each of which takes most of a second to import what it needs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, which says so in its name or asks for a database there, and what is slow."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "postgres" in item.nodeid or "postgres_url" in fixtures:
            item.add_marker("postgres")
        if STARTS_PROCESSES.intersection(fixtures):
            item.add_marker("slow")


settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.register_profile("few", settings.get_profile("repeatable"), max_examples=15)
settings.load_profile("repeatable")
