"""What the how-to shows is run here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.postgres import postgres_url, psycopg

from callboard import Engine

__all__ = ["postgres_url"]

PAGE = (Path(__file__).parent.parent / "docs/how-to/run-on-postgres.md").read_text(encoding="utf-8")


def shown(language: str) -> list[str]:
    """Return the page's snippets."""
    return re.findall(rf"^```{language}\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_engines_are_made_as_it_is_shown_and_connect_to_nothing() -> None:
    made = []
    for source in shown("python"):
        names: dict[str, object] = {}
        exec(source, names)
        made.append(names["engine"])

    assert [isinstance(engine, Engine) for engine in made] == [True, True]


def test_a_schema_of_its_own_is_used_by_the_engine_and_by_the_hosts_connections(postgres_url: str) -> None:
    [statements] = shown("sql")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE callboard_app LOGIN")
        try:
            connection.execute(statements)
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


@pytest.mark.parametrize("query", re.findall(r"`(SELECT [^`]+)`", PAGE))
def test_what_is_to_be_watched_can_be_asked(postgres_url: str, query: str) -> None:
    engine = Engine(postgres_url, plugins=[])
    engine.migrate()
    engine.stop()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(query).description is not None
