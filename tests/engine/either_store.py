"""The test's database on SQLite and on PostgreSQL, in turn, for a module whose tests hold on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def callboard_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'callboard.db'}"
        return
    from tests.postgres import new_database  # which skips the test where there is no server

    with new_database() as url:
        yield url
