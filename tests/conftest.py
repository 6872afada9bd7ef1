"""What every test shares: generated examples are the same in each run and need no database."""

import signal

import pytest
from hypothesis import settings

# A shell that is not interactive has what it starts in the background ignore Ctrl-C, and so would our children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server: it says so in its name, or asks for a database there."""
    for item in items:
        if "postgres" in item.nodeid or "postgres_url" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
