"""Enqueue from asyncio on SQLAlchemy's asynchronous connections to SQLite.

Their siblings on PostgreSQL are in test_postgres_libraries.py.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engine.acting import Plugin, Scripted, receipt, receipts
from tests.engine.rows import path_of, payload, sql

from callboard import ConfigurationError, Engine, EnqueueStatus, SchemaError
from callboard.testing import FakeClock

for needed in ("aiosqlite", "greenlet"):
    pytest.importorskip(needed, reason="needs aiosqlite and greenlet")
sqlalchemy = pytest.importorskip("sqlalchemy")

TEXTS = "SELECT data FROM callboard_task ORDER BY id"


class WatchedEngine(Engine):
    """An engine that notes, at each wake, how many tasks another connection sees at that moment."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.url = url
        self.woken: list[int] = []

    def wake(self) -> None:
        self.woken.append(len(sql(self.url, TEXTS)))
        super().wake()


@pytest.fixture
def engine(callboard_database: str, callboard_clock: FakeClock) -> Iterator[WatchedEngine]:
    """Return an engine that takes receipts, on a migrated database with a table of the host's."""
    engine = WatchedEngine(callboard_database, plugins=[Plugin(receipts(Scripted()))], clock=callboard_clock)
    engine.migrate()
    sql(callboard_database, "CREATE TABLE note (text TEXT)")
    yield engine
    engine.stop(timeout=5)


@asynccontextmanager
async def database_at(path: str) -> AsyncIterator[Any]:
    """Yield SQLAlchemy's asynchronous engine on a file."""
    from sqlalchemy.ext.asyncio import create_async_engine

    database = create_async_engine(f"sqlite+aiosqlite:///{path}")
    try:
        yield database
    finally:
        await database.dispose()


async def opened(database: Any, library: str) -> Any:
    """Return a connection as a host has it."""
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

    if library == "connection":
        return await database.connect()
    if library == "session":
        return AsyncSession(database)
    return async_scoped_session(async_sessionmaker(database), asyncio.current_task)


@pytest.mark.parametrize("library", ["connection", "session", "scoped session"])
def test_rule_02_an_asynchronous_sqlalchemy_commits_with_the_host(engine: WatchedEngine, library: str) -> None:
    async def serve() -> None:
        async with database_at(path_of(engine.url)) as database:
            connection = await opened(database, library)
            await connection.execute(sqlalchemy.text("INSERT INTO note VALUES ('undone')"))
            await engine.aenqueue(receipt("undone"), connection=connection)
            await connection.rollback()

            await connection.execute(sqlalchemy.text("INSERT INTO note VALUES ('kept')"))
            answer = await engine.aenqueue(receipt("one"), connection=connection)
            answers = await engine.aenqueue_many([receipt("one"), receipt("two")], connection=connection)
            assert answer.status == EnqueueStatus.INSERTED
            assert answers[0] == (answer.task_id, EnqueueStatus.MERGED)
            assert answers[1].status == EnqueueStatus.INSERTED
            assert (sql(engine.url, TEXTS), engine.woken) == ([], [])
            await connection.commit()
            await connection.close()

    asyncio.run(serve())
    assert sql(engine.url, "SELECT text FROM note") == [("kept",)]
    assert [data for (data,) in sql(engine.url, TEXTS)] == [payload(receipt("one")), payload(receipt("two"))]
    assert engine.woken
    assert set(engine.woken) == {2}


def test_what_is_refused_on_an_asynchronous_sqlalchemy_leaves_its_transaction_usable(
    engine: WatchedEngine, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.db"
    sql(f"sqlite:///{elsewhere}", "CREATE TABLE note (text TEXT)")

    async def serve() -> None:
        async with database_at(str(elsewhere)) as database:
            session = await opened(database, "session")
            with pytest.raises(SchemaError, match=r"connection= has no Callboard tables"):
                await engine.aenqueue(receipt("one"), connection=session)
            await session.execute(sqlalchemy.text("INSERT INTO note VALUES ('after')"))
            await session.commit()
            await session.close()

    asyncio.run(serve())
    assert sql(f"sqlite:///{elsewhere}", "SELECT text FROM note") == [("after",)]


def test_what_of_an_asynchronous_sqlalchemy_is_no_connection_is_refused(engine: WatchedEngine) -> None:
    async def serve() -> None:
        async with database_at(path_of(engine.url)) as database:
            with pytest.raises(ConfigurationError, match=r"connection= takes a .*, not sqlalchemy\..*AsyncEngine"):
                await engine.aenqueue(receipt("one"), connection=database)

    asyncio.run(serve())
    assert sql(engine.url, TEXTS) == []


def test_without_asyncio_an_asynchronous_sqlalchemy_is_refused_saying_what_to_do(engine: WatchedEngine) -> None:
    async def serve() -> None:
        async with database_at(path_of(engine.url)) as database:
            session = await opened(database, "session")
            with pytest.raises(ConfigurationError, match=r"await engine\.aenqueue"):
                engine.enqueue(receipt("one"), connection=session)

    asyncio.run(serve())
    assert sql(engine.url, TEXTS) == []
