"""What every test shares: generated examples are the same in each run and need no database."""

import pytest
from hypothesis import settings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for a server."""
    for item in items:
        if "postgres_url" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
