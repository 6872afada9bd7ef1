"""PgBouncer in transaction mode: nothing can listen there, so an engine finds work by looking, and loses none."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.engine.acting import WAIT_S, Plugin, Scripted, eventually, receipt, receipts
from tests.postgres import postgres_url, psycopg

from callboard import Engine

__all__ = ["postgres_url"]

CONFIGURATION = """
[databases]
{name} = {server} dbname={name} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 10
ignore_startup_parameters = options
logfile = {folder}/log
"""


@pytest.fixture
def bouncer_url(postgres_url: str) -> Iterator[str]:
    """Return the URL of the database behind PgBouncer."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        pytest.skip("needs PgBouncer: the package pgbouncer of Debian and others")
    given = psycopg.conninfo.conninfo_to_dict(postgres_url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="callboard-pgbouncer-"))
    server = " ".join(f"{part}={given[part]}" for part in ("host", "port", "password") if given.get(part))
    (folder / "pgbouncer.ini").write_text(
        CONFIGURATION.format(name=given["dbname"], user=given["user"], server=server, port=port, folder=folder)
    )
    command = [program, str(folder / "pgbouncer.ini")]
    if os.geteuid() == 0:  # as which it refuses to run; the server's user may use the server's socket
        host = str(given.get("host", ""))
        user = Path(host).owner() if host.startswith("/") else "nobody"
        shutil.chown(folder, user)
        command[1:1] = ["-u", user]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"postgresql://{given['user']}@127.0.0.1:{port}/{given['dbname']}?{urlencode({'sslmode': 'disable'})}"

    def answers() -> bool:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            assert process.poll() is None, (folder / "log").read_text()
            return False
        return True

    eventually(answers)
    yield url
    process.terminate()
    process.wait()
    shutil.rmtree(folder)


def test_an_engine_runs_behind_pgbouncer(
    bouncer_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own enqueues wake it; what others commit is found by the next look at the tables."""
    monkeypatch.setattr("callboard._store.postgres._READ_ANYWAY_S", 0.2)
    handler = Scripted()
    texts = [f"task {number}" for number in range(200)]
    with Engine(bouncer_url, plugins=[Plugin(receipts(handler))]) as engine:
        engine.enqueue_many([receipt(text, text.encode()[-1:]) for text in texts])
        assert engine.wait_idle(WAIT_S)
        assert sorted(handler.played) == sorted(texts)

        with closing(psycopg.connect(postgres_url)) as connection:
            engine.enqueue(receipt("of a host"), connection=connection)
            connection.commit()
        eventually(lambda: "of a host" in handler.played)


def test_no_setting_of_ours_is_left_in_a_session_that_pgbouncer_hands_on(bouncer_url: str) -> None:
    shown = ("idle_in_transaction_session_timeout", "synchronous_commit", "enable_seqscan")
    with Engine(bouncer_url, plugins=[Plugin(receipts(Scripted()))]) as engine:
        engine.enqueue(receipt("read"))
        assert engine.wait_idle(WAIT_S)
        with closing(psycopg.connect(bouncer_url, autocommit=True)) as connection:
            assert [connection.execute(f"SHOW {name}").fetchone() for name in shown] == [("0",), ("on",), ("on",)]
