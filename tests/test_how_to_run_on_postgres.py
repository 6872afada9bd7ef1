"""What the how-to shows is run here."""

from __future__ import annotations

import re

import pytest
from tests import pages
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


def test_a_schema_of_its_own_is_used_by_the_engine_and_by_the_hosts_connections(postgres_url: str) -> None:
    [statements] = pages.snippets(PAGE, "sql")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE callboard_app LOGIN")
        try:
            connection.execute(statements.source.encode())
            url = re.sub("//[^@]*@", "//callboard_app@", postgres_url)
            with Engine(url, plugins=[]) as engine:
                assert engine.wait_idle(10)
            [(schema,)] = connection.execute(
                "SELECT schemaname FROM pg_tables WHERE tablename = 'callboard_task'"
            ).fetchall()
            assert schema == "callboard"
        finally:
            connection.execute("DROP SCHEMA callboard CASCADE")
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
