"""What the how-to shows is run here."""

from __future__ import annotations

import re

import pytest
from tests import pages
from tests.engine.acting import Plugin, Scripted, eventually, receipt, receipts
from tests.postgres import postgres_url, psycopg, sql

from callboard import Engine

__all__ = ["postgres_url"]

PAGE = "docs/how-to/run-on-postgres.md"


def test_the_engines_are_made_as_it_is_shown_and_connect_to_nothing() -> None:
    made = []
    for snippet in pages.snippets(PAGE, "python"):
        names: dict[str, object] = {}
        exec(snippet.source, names)
        made.append(names["engine"])

    assert [isinstance(engine, Engine) for engine in made] == [True, True]


def as_role(url: str, role: str) -> str:
    return re.sub("//[^@]*@", f"//{role}@", url)


def test_roles_in_a_schema_of_its_own_can_migrate_and_run_as_it_is_shown(postgres_url: str) -> None:
    migrates, runs = (snippet.source.encode() for snippet in pages.snippets(PAGE, "sql"))
    handler = Scripted()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE callboard_app LOGIN")
        connection.execute("CREATE ROLE callboard_worker LOGIN")
        try:
            connection.execute(migrates)
            owner = Engine(as_role(postgres_url, "callboard_app"), plugins=[])
            owner.migrate()
            owner.stop()
            [(schema,)] = connection.execute(
                "SELECT schemaname FROM pg_tables WHERE tablename = 'callboard_task'"
            ).fetchall()
            assert schema == "callboard"

            connection.execute(runs)
            worker = as_role(postgres_url, "callboard_worker")
            with Engine(worker, plugins=[Plugin(receipts(handler))]) as engine, psycopg.connect(worker) as host:
                engine.enqueue(receipt("one"))
                engine.enqueue_many([receipt("two"), receipt("three")])
                engine.enqueue(receipt("four"), connection=host)
                engine.group(b"g").created("ada", members=["ada"], super_admins=["ada"], consent="allowed")
                host.commit()
                eventually(lambda: len(handler.played) == 4)
        finally:
            connection.execute("DROP OWNED BY callboard_worker")
            connection.execute("DROP SCHEMA callboard CASCADE")
            connection.execute("DROP ROLE callboard_worker")
            connection.execute("DROP ROLE callboard_app")


@pytest.mark.parametrize("query", re.findall(r"`(SELECT [^`]+)`", pages.read(PAGE)))
def test_what_is_to_be_watched_can_be_asked(postgres_url: str, query: str) -> None:
    engine = Engine(postgres_url, plugins=[])
    engine.migrate()
    engine.stop()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(query).description is not None


def test_the_storage_parameters_are_those_of_the_tables(postgres_url: str) -> None:
    rows = re.findall(r"^\| `(autovacuum_\w+)` \| (.+?) \| (.+?) \|$", pages.read(PAGE), re.MULTILINE)
    said = {
        "callboard_task": {f"{name}={task}" for name, task, _ in rows},
        "callboard_inbox": {f"{name}={inbox}" for name, _, inbox in rows if inbox != "as the server says"},
    }
    engine = Engine(postgres_url, plugins=[])
    engine.migrate()
    engine.stop()

    found = sql(
        postgres_url, "SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL AND relkind = 'r'"
    )

    assert {table: set(options) for table, options in found if table in said} == said
