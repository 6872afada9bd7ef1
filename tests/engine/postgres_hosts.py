"""Host services that write notes on PostgreSQL connections, a class for each library, and an engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import django.conf
import django.db
import peewee
import pytest
import sqlalchemy
import sqlalchemy.orm
from tests.engine.acting import Plugin, Scripted, receipts
from tests.postgres import psycopg, sql

from callboard import Engine

INBOX = "SELECT kind FROM callboard_inbox ORDER BY id"
NOTES = "SELECT text FROM note"
LONG = "x" * 100
"""The text of a receipt that the database refuses."""

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


class Host(ABC):
    """A host service."""

    tells_of_commits = True
    """Whether the library has a commit hook."""

    connection: Any

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction that commits at the end, and rolls back when its body raises."""

    @abstractmethod
    def run(self, statement: str) -> None:
        """Run a statement of the host's own."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def note(self, text: str) -> None:
        """Write a row of the host's own."""
        self.run(f"INSERT INTO note VALUES ('{text}')")


class PsycopgHost(Host):
    """psycopg, which begins a transaction with the first statement."""

    tells_of_commits = False

    def __init__(self, url: str, level: str = "READ COMMITTED", **options: Any) -> None:
        self.connection = psycopg.connect(url, **options)
        self.connection.isolation_level = level_of(level)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    def run(self, statement: str) -> None:
        self.connection.execute(statement)

    def close(self) -> None:
        self.connection.close()


class PsycopgBlockHost(PsycopgHost):
    """psycopg's own blocks, on a connection that otherwise commits each statement."""

    def __init__(self, url: str, level: str = "READ COMMITTED") -> None:
        super().__init__(url, level, autocommit=True)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.connection.transaction():
            yield


class PipelineHost(PsycopgHost):
    """psycopg in its pipeline mode, which sends statements without waiting for the answers."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction(), self.connection.pipeline():
            yield


class PeeweeHost(Host):
    """A database of the host's own, not the one that the engine was given."""

    def __init__(self, url: str, level: str = "READ COMMITTED") -> None:
        self.connection = peewee.PostgresqlDatabase(url, prefer_psycopg3=True, isolation_level=level)

    def transaction(self) -> AbstractContextManager[Any]:
        atomic: AbstractContextManager[Any] = self.connection.atomic()
        return atomic

    def run(self, statement: str) -> None:
        self.connection.execute_sql(statement)

    def close(self) -> None:
        self.connection.close()


class PeeweeByHandHost(PeeweeHost):
    """peewee with transactions that the host begins and ends itself."""

    tells_of_commits = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.connect(reuse_if_open=True)  # or peewee forgets the mode when it connects
        with self.connection.manual_commit():
            self.connection.begin()
            try:
                yield
            except BaseException:
                self.connection.rollback()
                raise
            self.connection.commit()


class SqlAlchemyHost(Host):
    """SQLAlchemy's Core: a connection that is closed at the end of its transaction."""

    def __init__(self, url: str, level: str = "READ COMMITTED") -> None:
        address = url.replace("postgresql://", "postgresql+psycopg://")
        self.engine = sqlalchemy.create_engine(address, isolation_level=level)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.engine.begin() as self.connection:
            yield

    def run(self, statement: str) -> None:
        self.connection.execute(sqlalchemy.text(statement))

    def close(self) -> None:
        self.engine.dispose()


class AsYouGoHost(SqlAlchemyHost):
    """SQLAlchemy's Core, which begins with the first statement, as psycopg does."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.engine.connect() as self.connection:
            yield
            self.connection.commit()


class SessionHost(SqlAlchemyHost):
    """SQLAlchemy's ORM."""

    def __init__(self, url: str, level: str = "READ COMMITTED") -> None:
        super().__init__(url, level)
        self.connection = sqlalchemy.orm.Session(self.engine)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.connection.begin():
            yield

    def close(self) -> None:
        self.connection.close()
        super().close()


class ScopedSessionHost(SessionHost):
    """A session for each thread, as web frameworks keep it."""

    def __init__(self, url: str, level: str = "READ COMMITTED") -> None:
        super().__init__(url, level)
        self.connection = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(self.engine))


class DjangoHost(Host):
    """A database of Django's, beside its default one."""

    alias = "callboard_postgres"

    def __init__(self, url: str, level: str = "READ COMMITTED") -> None:
        if not django.conf.settings.configured:
            default = {"ENGINE": "django.db.backends.sqlite3", "NAME": "", "OPTIONS": {"timeout": 0}}
            django.conf.settings.configure(DATABASES={"default": default})
            django.setup()
        given = psycopg.conninfo.conninfo_to_dict(url)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": given.pop("dbname"),
            "OPTIONS": {**given, "isolation_level": level_of(level)},
        }
        handler = django.db.connections
        handler.settings[self.alias] = handler.configure_settings(
            {"default": handler.settings["default"], self.alias: database}
        )[self.alias]
        self.connection = handler[self.alias]

    def transaction(self) -> AbstractContextManager[Any]:
        atomic: AbstractContextManager[Any] = django.db.transaction.atomic(using=self.alias)
        return atomic

    def run(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def close(self) -> None:
        self.connection.close()
        del django.db.connections[self.alias]
        del django.db.connections.settings[self.alias]


class DjangoByHandHost(DjangoHost):
    """Django with its autocommit off."""

    tells_of_commits = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.set_autocommit(False)
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise
        else:
            self.connection.commit()
        finally:
            self.connection.set_autocommit(True)


HOSTS: dict[str, Callable[..., Host]] = {
    "psycopg": PsycopgHost,
    "psycopg-block": PsycopgBlockHost,
    "psycopg-pipeline": PipelineHost,
    "psycopg-dict-rows": lambda url: PsycopgHost(url, row_factory=psycopg.rows.dict_row),
    "psycopg-client-cursor": lambda url: PsycopgHost(url, cursor_factory=psycopg.ClientCursor),
    "psycopg-raw-cursor": lambda url: PsycopgHost(url, cursor_factory=psycopg.RawCursor),
    "peewee": PeeweeHost,
    "peewee-by-hand": PeeweeByHandHost,
    "sqlalchemy-begin": SqlAlchemyHost,
    "sqlalchemy-as-you-go": AsYouGoHost,
    "sqlalchemy-session": SessionHost,
    "sqlalchemy-scoped-session": ScopedSessionHost,
    "django": DjangoHost,
    "django-by-hand": DjangoByHandHost,
}

EACH_LIBRARY: dict[str, Callable[..., Host]] = {
    "psycopg": PsycopgHost,
    "peewee": PeeweeHost,
    "sqlalchemy": SqlAlchemyHost,
    "django": DjangoHost,
}
"""Those that take an isolation level."""


def level_of(level: str) -> Any:
    """Return psycopg's word for an isolation level."""
    return psycopg.IsolationLevel[level.replace(" ", "_")]


class WatchedEngine(Engine):
    """An engine that notes, at each wake, how many entries another connection sees at that moment."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.url = url
        self.handler = Scripted()
        self.woken: list[int] = []

    def wake(self) -> None:
        self.woken.append(len(sql(self.url, INBOX)))
        super().wake()


@pytest.fixture
def engine(postgres_url: str) -> Iterator[WatchedEngine]:
    """Return an engine that takes receipts, on a migrated database with a table of the host's."""
    handler = Scripted()
    engine = WatchedEngine(postgres_url, plugins=[Plugin(receipts(handler))])
    engine.handler = handler
    engine.migrate()
    sql(postgres_url, "CREATE TABLE note (text TEXT)")
    sql(postgres_url, "ALTER TABLE callboard_inbox ADD CONSTRAINT brevity CHECK (length(data) < 100)")
    yield engine
    engine.stop(timeout=5)
