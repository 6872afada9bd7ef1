"""What is particular to a library when a host enqueues on its own PostgreSQL connection, and what is refused."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import peewee
import pytest
import sqlalchemy
import sqlalchemy.orm
from django.db.backends.sqlite3.base import DatabaseWrapper
from tests.engine.acting import MakeEngine, Plugin, Scripted, eventually, receipt, receipts, thread
from tests.engine.postgres_hosts import (
    EACH_LIBRARY,
    HOSTS,
    INBOX,
    LONG,
    NOTES,
    DjangoHost,
    PeeweeHost,
    PsycopgBlockHost,
    PsycopgHost,
    WatchedEngine,
    engine,
)
from tests.postgres import postgres_url, psycopg, sql

from callboard import (
    ConfigurationError,
    DatabaseUnavailableError,
    Engine,
    EnqueueStatus,
    StoreError,
    UnknownKindError,
)

__all__ = ["engine", "postgres_url"]


# psycopg


def settings_of(connection: Any) -> dict[str, Any]:
    names = ("autocommit", "row_factory", "cursor_factory", "prepare_threshold", "isolation_level", "read_only")
    return {name: getattr(connection, name) for name in (*names, "deferrable", "prepared_max")}


@pytest.mark.parametrize("autocommit", [False, True])
def test_the_settings_of_psycopgs_connection_are_as_they_were(engine: WatchedEngine, autocommit: bool) -> None:
    host = PsycopgHost(engine.url, "SERIALIZABLE", autocommit=autocommit, prepare_threshold=None)
    host.connection.row_factory = psycopg.rows.dict_row
    before = settings_of(host.connection)
    for _ in range(10):
        engine.enqueue(receipt("read"), connection=host.connection)
    with pytest.raises(UnknownKindError):
        engine.enqueue(thread("nobody's"), connection=host.connection)
    host.run("COMMIT")

    assert settings_of(host.connection) == before
    assert host.connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
    host.close()
    assert len(sql(engine.url, INBOX)) == 10


def test_rule_02_an_autocommit_connection_commits_each_enqueue_as_a_whole_and_wakes(engine: WatchedEngine) -> None:
    host = PsycopgBlockHost(engine.url)
    idle = psycopg.pq.TransactionStatus.IDLE
    engine.enqueue(receipt("one"), connection=host.connection)
    assert host.connection.info.transaction_status == idle
    assert len(sql(engine.url, INBOX)) == 1
    engine.enqueue_many([receipt("two"), receipt("three")], connection=host.connection)
    assert host.connection.info.transaction_status == idle
    assert len(sql(engine.url, INBOX)) == 3
    assert engine.woken == [1, 3]

    with pytest.raises(StoreError, match="brevity"):
        engine.enqueue_many([receipt("four"), receipt(LONG)], connection=host.connection)
    assert host.connection.info.transaction_status == idle
    host.close()
    assert engine.woken == [1, 3]


def test_a_connection_that_is_closed_or_whose_transaction_has_failed_is_reported_as_such(
    engine: WatchedEngine,
) -> None:
    host = PsycopgHost(engine.url)
    with pytest.raises(psycopg.errors.DivisionByZero):
        host.run("SELECT 1 / 0")
    with pytest.raises(StoreError, match=r"connection=.* transaction is aborted"):
        engine.enqueue(receipt("read"), connection=host.connection)
    host.close()
    with pytest.raises(DatabaseUnavailableError, match=r"connection=.*closed"):
        engine.enqueue(receipt("read"), connection=host.connection)


# psycopg, asynchronous


def test_rule_02_an_asynchronous_connection_commits_with_the_host(engine: WatchedEngine) -> None:
    async def serve() -> None:
        async with await psycopg.AsyncConnection.connect(engine.url) as connection:
            answer = await engine.aenqueue(receipt("rolled back"), connection=connection)
            assert answer == (None, EnqueueStatus.ACCEPTED)
            await connection.rollback()
            assert sql(engine.url, INBOX) == []

            await engine.aenqueue(receipt("one"), key="one", connection=connection)
            answers = await engine.aenqueue_many([receipt("two"), receipt("three")], connection=connection)
            assert [answer.status for answer in answers] == [EnqueueStatus.ACCEPTED] * 2
            assert sql(engine.url, INBOX) == []
            await connection.commit()
            assert len(sql(engine.url, INBOX)) == 3

    asyncio.run(serve())
    assert engine.run_due() == 3


def test_rule_02_an_asynchronous_connection_with_autocommit_writes_each_enqueue_as_a_whole(
    engine: WatchedEngine,
) -> None:
    async def serve() -> None:
        async with await psycopg.AsyncConnection.connect(
            engine.url, autocommit=True, row_factory=psycopg.rows.dict_row, prepare_threshold=None
        ) as connection:
            before = settings_of(connection)
            await engine.aenqueue(receipt("one"), connection=connection)
            assert len(sql(engine.url, INBOX)) == 1
            with pytest.raises(StoreError, match="brevity"):
                await engine.aenqueue_many([receipt("four"), receipt(LONG)], connection=connection)
            async with connection.transaction():
                await connection.execute("INSERT INTO note VALUES ('before')")
                await engine.aenqueue_many([receipt("two"), receipt("three")], connection=connection)
                with pytest.raises(StoreError, match="brevity"):
                    await engine.aenqueue(receipt(LONG), connection=connection)
                with pytest.raises(UnknownKindError):
                    await engine.aenqueue(thread("nobody's"), connection=connection)
                assert len(sql(engine.url, INBOX)) == 1
            assert settings_of(connection) == before
        assert (len(sql(engine.url, INBOX)), len(sql(engine.url, NOTES))) == (3, 1)

    asyncio.run(serve())


def test_an_idle_engine_hears_of_an_asynchronous_hosts_commit(engine: WatchedEngine) -> None:
    async def serve() -> None:
        async with await psycopg.AsyncConnection.connect(engine.url) as connection:
            await engine.aenqueue(receipt("read"), connection=connection)

    with engine:
        assert engine.wait_idle(20)
        asyncio.run(serve())
        eventually(lambda: engine.health().counters["done"] == 1)


def test_an_asynchronous_connection_is_refused_where_nobody_can_await(engine: WatchedEngine) -> None:
    async def serve() -> None:
        async with await psycopg.AsyncConnection.connect(engine.url) as connection:
            with pytest.raises(ConfigurationError, match=r"await engine\.aenqueue"):
                engine.enqueue(receipt("read"), connection=connection)

    asyncio.run(serve())


# peewee


def test_rule_02_a_savepoint_of_peewee_that_rolls_back_takes_its_tasks_along(engine: WatchedEngine) -> None:
    host = PeeweeHost(engine.url)
    with host.transaction():
        engine.enqueue(receipt("outer"), connection=host.connection)
        with pytest.raises(ZeroDivisionError), host.transaction():
            engine.enqueue(receipt("inner"), connection=host.connection)
            raise ZeroDivisionError
    host.close()

    assert len(sql(engine.url, INBOX)) == 1
    assert set(engine.woken) == {1}


def test_rule_02_without_a_transaction_peewees_connection_commits_at_once_and_is_closed_again(
    engine: WatchedEngine,
) -> None:
    host = PeeweeHost(engine.url)

    engine.enqueue(receipt("read"), connection=host.connection)

    assert engine.woken == [1]
    assert host.connection.is_closed()


def test_rule_02_the_engines_own_peewee_database_is_joined_with_and_without_naming_it(
    engine: WatchedEngine,
) -> None:
    database = peewee.PostgresqlDatabase(engine.url, prefer_psycopg3=True)
    handler = Scripted()
    own = Engine(database, plugins=[Plugin(receipts(handler))])
    with own:
        assert own.wait_idle(20)
        with database.atomic() as transaction:
            own.enqueue(receipt("one"))
            own.enqueue(receipt("two"), connection=database)
            transaction.rollback()
        with database.atomic():
            answers = [own.enqueue(receipt("three")), own.enqueue(receipt("four"), connection=database)]
            answers += own.enqueue_many([receipt("five")])
            with own.transaction() as tx:
                answers.append(tx.enqueue(receipt("six")))
            assert sql(engine.url, INBOX) == []

        assert [answer.status for answer in answers] == [EnqueueStatus.ACCEPTED] * 4
        eventually(lambda: own.health().counters["done"] == 4)
    assert sorted(handler.played) == ["five", "four", "six", "three"]
    database.close()


# SQLAlchemy and Django


def test_rule_02_connections_that_commit_each_statement_commit_each_enqueue_as_a_whole(
    engine: WatchedEngine,
) -> None:
    address = engine.url.replace("postgresql://", "postgresql+psycopg://")
    database = sqlalchemy.create_engine(address, isolation_level="AUTOCOMMIT")
    with database.connect() as connection:
        engine.enqueue(receipt("sqlalchemy"), connection=connection)
        assert (len(sql(engine.url, INBOX)), engine.woken) == (1, [1])
    database.dispose()

    host = DjangoHost(engine.url)
    engine.enqueue(receipt("django"), connection=host.connection)
    assert (len(sql(engine.url, INBOX)), engine.woken) == (2, [1, 2])
    host.close()


@pytest.mark.parametrize("library", ["sqlalchemy-begin", "sqlalchemy-session"])
def test_rule_02_a_nested_transaction_of_sqlalchemy_wakes_when_the_outer_one_commits(
    engine: WatchedEngine, library: str
) -> None:
    host = HOSTS[library](engine.url)
    with host.transaction():
        engine.enqueue(receipt("outer"), connection=host.connection)
        with pytest.raises(ZeroDivisionError), host.connection.begin_nested():
            engine.enqueue(receipt("never"), connection=host.connection)
            raise ZeroDivisionError
        with host.connection.begin_nested():
            engine.enqueue(receipt("inner"), connection=host.connection)
        assert engine.woken == []
    host.close()

    assert len(sql(engine.url, INBOX)) == 2
    assert set(engine.woken) == {2}


# SQLAlchemy, asynchronous


@asynccontextmanager
async def sqlalchemy_async(url: str, **options: Any) -> AsyncIterator[Any]:
    """Return an asynchronous engine of SQLAlchemy's."""
    pytest.importorskip(
        "greenlet", reason="SQLAlchemy's asyncio needs greenlet: pip install 'sqlalchemy[asyncio]'"
    )
    from sqlalchemy.ext.asyncio import create_async_engine

    database = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"), **options)
    try:
        yield database
    finally:
        await database.dispose()


@pytest.mark.parametrize("library", ["connection", "session", "scoped session"])
def test_rule_02_an_asynchronous_sqlalchemy_commits_with_the_host(engine: WatchedEngine, library: str) -> None:
    async def serve() -> None:
        async with sqlalchemy_async(engine.url) as database:
            from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

            connection = {
                "connection": database.connect,
                "session": lambda: AsyncSession(database),
                "scoped session": lambda: async_scoped_session(async_sessionmaker(database), asyncio.current_task),
            }[library]()
            if library == "connection":
                await connection.start()
            answer = await engine.aenqueue(receipt("rolled back"), connection=connection)
            assert answer == (None, EnqueueStatus.ACCEPTED)
            assert sql(engine.url, INBOX) == []
            await connection.rollback()

            await engine.aenqueue(receipt("one"), connection=connection)
            await connection.execute(sqlalchemy.text("INSERT INTO note VALUES ('after the first')"))
            async with connection.begin_nested() as savepoint:
                await engine.aenqueue(receipt("undone"), connection=connection)
                await savepoint.rollback()
            with pytest.raises(StoreError, match="brevity"):
                await engine.aenqueue(receipt(LONG), connection=connection)
            await engine.aenqueue_many([receipt("two"), receipt("three")], connection=connection)
            assert (sql(engine.url, INBOX), sql(engine.url, NOTES)) == ([], [])
            await connection.commit()
            await connection.close()

    asyncio.run(serve())
    assert sql(engine.url, NOTES) == [("after the first",)]
    assert engine.run_due() == 3
    assert sorted(engine.handler.played) == ["one", "three", "two"]


def test_rule_02_an_asynchronous_sqlalchemy_that_commits_each_statement_commits_each_enqueue(
    engine: WatchedEngine,
) -> None:
    async def serve() -> None:
        async with (
            sqlalchemy_async(engine.url, isolation_level="AUTOCOMMIT") as database,
            database.connect() as core,
        ):
            await engine.aenqueue_many([receipt("one"), receipt("two")], connection=core)
            assert len(sql(engine.url, INBOX)) == 2

    asyncio.run(serve())


def test_an_asynchronous_sqlalchemy_is_refused_where_it_is_not_on_psycopg_or_nobody_can_await(
    engine: WatchedEngine,
) -> None:
    async def serve() -> None:
        async with sqlalchemy_async(engine.url) as database:
            async with database.connect() as core:
                with pytest.raises(ConfigurationError, match=r"await engine\.aenqueue"):
                    engine.enqueue(receipt("read"), connection=core)
            with pytest.raises(ConfigurationError, match=r"takes a psycopg 3 .*, not sqlalchemy\..*AsyncEngine"):
                await engine.aenqueue(receipt("read"), connection=database)
        nowhere = engine.url.replace("host=", "host=/nowhere")
        async with sqlalchemy_async(nowhere) as database:
            from sqlalchemy.ext.asyncio import AsyncSession

            session = AsyncSession(database)
            with pytest.raises(DatabaseUnavailableError, match="connection="):
                await engine.aenqueue(receipt("read"), connection=session)

    asyncio.run(serve())


# Bad connections


class NotAConnection:
    """Something else of the host's."""


class Psycopg2:
    """As much of the driver as SQLAlchemy asks for."""

    paramstyle = "pyformat"
    __version__ = "2.9.10"
    Error = extensions = extras = Exception

    def rollback(self) -> None:
        """Do nothing, as its connection."""

    close = rollback

    @classmethod
    def connect(cls, **options: Any) -> Any:
        return cls()


def sqlalchemy_on_psycopg2() -> sqlalchemy.Connection:
    options: dict[str, Any] = {"module": Psycopg2, "_initialize": False}
    return sqlalchemy.create_engine("postgresql+psycopg2://user@/name", **options).connect()


def peewee_on_psycopg2() -> Any:
    database = peewee.PostgresqlDatabase("somewhere", prefer_psycopg3=True)
    database._adapter = peewee.Psycopg2Adapter()  # type: ignore[attr-defined]
    return database


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (NotAConnection, "NotAConnection"),
        (lambda: peewee.SqliteDatabase("host.db"), "a peewee SqliteDatabase"),
        (peewee_on_psycopg2, r"a peewee PostgresqlDatabase on psycopg2 \(give it prefer_psycopg3=True\)"),
        (lambda: sqlalchemy.create_engine("sqlite://").connect(), r"SQLAlchemy's on sqlite\+pysqlite"),
        (sqlalchemy_on_psycopg2, r"SQLAlchemy's on postgresql\+psycopg2"),
        (lambda: DatabaseWrapper({"NAME": "host.db"}, "host"), "Django's on sqlite"),
    ],
    ids=[
        "object",
        "peewee-sqlite",
        "peewee-psycopg2",
        "sqlalchemy-sqlite",
        "sqlalchemy-psycopg2",
        "django-sqlite",
    ],
)
def test_what_is_not_on_postgresql_and_psycopg_3_is_refused_saying_what_is_taken(
    engine: WatchedEngine, make: Callable[[], Any], name: str
) -> None:
    connection = make()
    with pytest.raises(ConfigurationError, match=f"on PostgreSQL connection= takes a psycopg 3 .*, not .*{name}$"):
        engine.enqueue(receipt("read"), connection=connection)
    if isinstance(connection, sqlalchemy.Connection):
        connection.close()
        connection.engine.dispose()


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("psycopg", "psycopg.Connection"),
        ("peewee", "peewee.PostgresqlDatabase"),
        ("sqlalchemy", "SQLAlchemy's on postgresql"),
        ("django", "Django's on postgresql"),
    ],
)
def test_an_engine_on_sqlite_refuses_what_is_on_postgresql(
    make_engine: MakeEngine, postgres_url: str, library: str, name: str
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    host = EACH_LIBRARY[library](postgres_url)
    with (
        host.transaction(),
        pytest.raises(ConfigurationError, match=f"on SQLite connection= takes a sqlite3 .*, not {name}$"),
    ):
        engine.enqueue(receipt("read"), connection=host.connection)
    host.close()
