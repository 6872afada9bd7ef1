"""Enqueue on the host's own connection: each library, each of its ways to open a transaction.

A task appears if and only if the host's transaction commits; the wake follows the commit, never goes out inside
the transaction and never after a rollback.
"""

import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import django.conf
import django.db
import peewee
import pytest
import sqlalchemy
import sqlalchemy.orm
from tests.engine.acting import WAIT_S, MakeEngine, Plugin, Scripted, receipt, receipts, thread
from tests.engine.rows import path_of, payload, sql

from callboard import (
    ConfigurationError,
    DatabaseUnavailableError,
    Engine,
    EnqueueStatus,
    SchemaError,
    StoreError,
    UnknownKindError,
)
from callboard.testing import FakeClock

IDS = "SELECT id FROM callboard_task ORDER BY id"
NOTES = "SELECT text FROM note ORDER BY rowid"


class WatchedEngine(Engine):
    """An engine that notes, at each wake, how many tasks another connection sees at that moment."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.url = url
        self.woken: list[int] = []

    def wake(self) -> None:
        self.woken.append(len(sql(self.url, IDS)))
        super().wake()


class Host(ABC):
    """A host service that writes notes on its own connection."""

    tells_of_commits = True
    """Whether the library has a commit hook."""

    connection: Any

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction that commits at the end, and rolls back when its body raises."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Write a row of the host's own."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class Sqlite3Host(Host):
    """The standard library's driver, which opens transactions by itself, or as its host tells it."""

    tells_of_commits = False

    def __init__(self, path: str, begin: str | None = None, **options: Any) -> None:
        self.connection = sqlite3.connect(path, **options)
        self._begin = begin

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._begin is not None:
            self.connection.execute(self._begin)
        try:
            yield
        except BaseException:
            self._end("ROLLBACK")
            raise
        self._end("COMMIT")

    def _end(self, how: str) -> None:
        if self._begin is not None:
            self.connection.execute(how)
        elif how == "COMMIT":
            self.connection.commit()
        else:
            self.connection.rollback()

    def note(self, text: str) -> None:
        self.connection.execute("INSERT INTO note VALUES (?)", (text,))

    def close(self) -> None:
        self.connection.close()


def with_dict_rows(path: str) -> Sqlite3Host:
    host = Sqlite3Host(path)
    host.connection.row_factory = lambda cursor, row: dict(enumerate(row))
    return host


def with_bytes_for_text(path: str) -> Sqlite3Host:
    host = Sqlite3Host(path)
    host.connection.text_factory = bytes
    return host


class PeeweeHost(Host):
    """A database of the host's own, not the one that the engine was given."""

    def __init__(self, path: str) -> None:
        self.connection = peewee.SqliteDatabase(path, timeout=0)

    def transaction(self) -> AbstractContextManager[Any]:
        atomic: AbstractContextManager[Any] = self.connection.atomic()
        return atomic

    def note(self, text: str) -> None:
        self.connection.execute_sql("INSERT INTO note VALUES (?)", (text,))

    def close(self) -> None:
        self.connection.close()


class SqlAlchemyHost(Host):
    """SQLAlchemy's Core: a connection that is closed at the end of its transaction."""

    def __init__(self, path: str) -> None:
        self.engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.engine.begin() as self.connection:
            yield

    def note(self, text: str) -> None:
        self.connection.execute(sqlalchemy.text("INSERT INTO note VALUES (:text)"), {"text": text})

    def close(self) -> None:
        self.engine.dispose()


class SessionHost(SqlAlchemyHost):
    """SQLAlchemy's ORM."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
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

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.connection = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(self.engine))


class DjangoHost(Host):
    """Django's default connection."""

    def __init__(self, path: str) -> None:
        if not django.conf.settings.configured:
            database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": {"timeout": 0}}
            django.conf.settings.configure(DATABASES={"default": database})
            django.setup()
        self.connection = django.db.connection
        self.connection.settings_dict["NAME"] = path

    def transaction(self) -> AbstractContextManager[Any]:
        atomic: AbstractContextManager[Any] = django.db.transaction.atomic()
        return atomic

    def note(self, text: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO note VALUES (%s)", [text])

    def close(self) -> None:
        self.connection.close()


HOSTS: dict[str, Callable[[str], Host]] = {
    "sqlite3": Sqlite3Host,
    "sqlite3-immediate": lambda path: Sqlite3Host(path, isolation_level="IMMEDIATE"),
    "sqlite3-begin": lambda path: Sqlite3Host(path, "BEGIN", isolation_level=None),
    "sqlite3-begin-immediate": lambda path: Sqlite3Host(path, "BEGIN IMMEDIATE", isolation_level=None),
    "sqlite3-dict-rows": with_dict_rows,
    "sqlite3-bytes-for-text": with_bytes_for_text,
    "peewee": PeeweeHost,
    "sqlalchemy-connection": SqlAlchemyHost,
    "sqlalchemy-session": SessionHost,
    "sqlalchemy-scoped-session": ScopedSessionHost,
    "django": DjangoHost,
}
if sys.version_info >= (3, 12):
    HOSTS |= {
        "sqlite3-autocommit-off": lambda path: Sqlite3Host(path, autocommit=False),
        "sqlite3-autocommit-on": lambda path: Sqlite3Host(path, "BEGIN", autocommit=True),
    }


@pytest.fixture
def engine(callboard_database: str, callboard_clock: FakeClock) -> Iterator[WatchedEngine]:
    """Return an engine that takes receipts, on a migrated database with a table of the host's."""
    engine = WatchedEngine(callboard_database, plugins=[Plugin(receipts(Scripted()))], clock=callboard_clock)
    engine.migrate()
    sql(callboard_database, "CREATE TABLE note (text TEXT)")
    yield engine
    engine.stop(timeout=5)


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest, engine: WatchedEngine) -> Iterator[Host]:
    """Return a host on the engine's file, of each sort in turn."""
    host = HOSTS[request.param](path_of(engine.url))
    yield host
    host.close()


# Each library


def test_rule_02_a_task_appears_with_the_hosts_rows_and_then_the_wake(engine: WatchedEngine, host: Host) -> None:
    with host.transaction():
        host.note("before")
        answer = engine.enqueue(receipt("read"), connection=host.connection)
        host.note("after")
        assert sql(engine.url, IDS) == []
        assert engine.woken == []

    assert answer.status == EnqueueStatus.INSERTED
    assert sql(engine.url, IDS) == [(answer.task_id,)]
    assert sql(engine.url, NOTES) == [("before",), ("after",)]
    assert engine.woken == ([1] if host.tells_of_commits else [])


def test_rule_02_a_task_that_is_the_transactions_first_statement_is_part_of_it(
    engine: WatchedEngine, host: Host
) -> None:
    with pytest.raises(ZeroDivisionError), host.transaction():
        engine.enqueue(receipt("read"), connection=host.connection)
        raise ZeroDivisionError
    assert sql(engine.url, IDS) == []

    with host.transaction():
        engine.enqueue(receipt("read"), connection=host.connection)
        assert sql(engine.url, IDS) == []
    assert len(sql(engine.url, IDS)) == 1


def test_rule_02_after_a_rollback_there_is_neither_task_nor_wake(engine: WatchedEngine, host: Host) -> None:
    with pytest.raises(ZeroDivisionError), host.transaction():
        host.note("never")
        engine.enqueue(receipt("one"), connection=host.connection)
        engine.enqueue_many([receipt("two"), receipt("three")], connection=host.connection)
        raise ZeroDivisionError

    assert sql(engine.url, IDS) == []
    assert sql(engine.url, NOTES) == []
    with host.transaction():
        host.note("the next transaction")
    assert engine.woken == []


def test_rule_02_many_enqueues_in_a_transaction_are_all_seen_by_the_first_wake(
    engine: WatchedEngine, host: Host
) -> None:
    with host.transaction():
        for text in "abc":
            engine.enqueue(receipt(text), connection=host.connection)
        answers = engine.enqueue_many(map(receipt, "cde"), connection=host.connection)
        assert engine.woken == []

    assert [answer.status for answer in answers] == ["merged", "inserted", "inserted"]
    assert len(sql(engine.url, IDS)) == 5
    assert set(engine.woken) == ({5} if host.tells_of_commits else set())


def test_rule_02_one_transaction_after_the_other_is_woken_for(engine: WatchedEngine, host: Host) -> None:
    for text in "ab":
        with host.transaction():
            engine.enqueue(receipt(text), connection=host.connection)

    assert engine.woken == ([1, 2] if host.tells_of_commits else [])


def test_rule_02_a_refused_message_leaves_the_transaction_usable(engine: WatchedEngine, host: Host) -> None:
    with host.transaction():
        host.note("before")
        with pytest.raises(UnknownKindError):
            engine.enqueue(thread("nobody's"), connection=host.connection)
        with pytest.raises(ValueError, match="group_id"):
            engine.enqueue(receipt("read"), group_id=b"", connection=host.connection)
        host.note("after")

    assert sql(engine.url, NOTES) == [("before",), ("after",)]
    assert sql(engine.url, IDS) == []
    assert engine.woken == []


def test_rule_02_each_column_is_as_the_engines_own_connection_writes_it(engine: WatchedEngine, host: Host) -> None:
    engine.enqueue(receipt("own", b"g"), key="own", origin="here")
    with host.transaction():
        engine.enqueue(receipt("own", b"g"), key="host's", origin="here", connection=host.connection)

    own, hosts = sql(engine.url, "SELECT * FROM callboard_task ORDER BY id")
    identities = sql(engine.url, "SELECT identity FROM callboard_task ORDER BY id")
    assert [value for value in own[1:] if value != identities[0][0]] == [
        value for value in hosts[1:] if value != identities[1][0]
    ]


def test_rule_02_a_running_row_is_recognized(engine: WatchedEngine, host: Host) -> None:
    task_id = engine.enqueue(receipt("read")).task_id
    sql(engine.url, "UPDATE callboard_task SET state = 'running', expires_at_ns = 1")

    with host.transaction():
        answer = engine.enqueue(receipt("read"), connection=host.connection)

    assert answer == (task_id, EnqueueStatus.RERUN)
    assert sql(engine.url, "SELECT * FROM callboard_dead_task") == []


def test_a_started_engine_runs_what_a_host_enqueued(engine: WatchedEngine, host: Host) -> None:
    with engine:
        with host.transaction():
            engine.enqueue(receipt("read"), connection=host.connection)
        if not host.tells_of_commits:
            engine.wake()
        assert engine.wait_idle(WAIT_S)

        assert engine.tasks() == []
        assert engine.health().counters["done"] == 1


def test_rule_02_group_events_and_pull_ins_are_part_of_the_hosts_transaction(
    engine: WatchedEngine, host: Host
) -> None:
    later_ns = engine.clock.now_ns() + 10**12
    with pytest.raises(ZeroDivisionError), host.transaction():
        with engine.transaction(connection=host.connection) as tx:
            tx.group(b"g").created("me", members=["ada"], super_admins=["me"])
        raise ZeroDivisionError
    assert engine.group(b"g").state() is None

    with host.transaction(), engine.transaction(connection=host.connection) as tx:
        tx.group(b"g").leave_requested("ada", b"message")
        tx.enqueue(receipt("read"), not_before=later_ns)
        assert tx.pull_in(receipt("read"), not_later_than_ns=later_ns - 10)
        host.note("with them")
        assert sql(engine.url, IDS) == []

    state = engine.group(b"g").state()
    assert state is not None
    assert [pending.inbox_id for pending in state.pending_removes] == ["ada"]
    assert sql(engine.url, "SELECT next_attempt_at_ns FROM callboard_task") == [(later_ns - 10,)]


# sqlite3


AUTOCOMMIT: list[dict[str, Any]] = [{"isolation_level": None}]
if sys.version_info >= (3, 12):
    AUTOCOMMIT.append({"autocommit": True})


@pytest.mark.parametrize("options", AUTOCOMMIT)
def test_rule_02_an_autocommit_connection_commits_each_enqueue_as_a_whole_and_wakes(
    engine: WatchedEngine, options: dict[str, Any]
) -> None:
    with closing(sqlite3.connect(path_of(engine.url), **options)) as connection:
        engine.enqueue(receipt("one"), connection=connection)
        assert not connection.in_transaction
        assert (len(sql(engine.url, IDS)), engine.woken) == (1, [1])

        engine.enqueue_many([receipt("two"), receipt("three")], connection=connection)
        assert not connection.in_transaction
        assert (len(sql(engine.url, IDS)), engine.woken) == (3, [1, 3])

        with pytest.raises(UnknownKindError):
            engine.enqueue_many([receipt("four"), thread("nobody's")], connection=connection)
        assert not connection.in_transaction
        assert (len(sql(engine.url, IDS)), engine.woken) == (3, [1, 3])


@pytest.mark.parametrize("options", AUTOCOMMIT)
def test_rule_02_an_autocommit_connection_on_a_locked_database_is_left_without_a_transaction(
    engine: WatchedEngine, options: dict[str, Any]
) -> None:
    with (
        closing(sqlite3.connect(path_of(engine.url), timeout=0, **options)) as connection,
        closing(sqlite3.connect(path_of(engine.url))) as rival,
    ):
        rival.execute("INSERT INTO note VALUES ('held')")
        with pytest.raises(DatabaseUnavailableError, match="locked"):
            engine.enqueue(receipt("read"), connection=connection)

        assert not connection.in_transaction


def test_the_hosts_row_and_text_factories_are_as_they_were(engine: WatchedEngine) -> None:
    with closing(sqlite3.connect(path_of(engine.url))) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        engine.enqueue(receipt("read"), connection=connection)
        with pytest.raises(UnknownKindError):
            engine.enqueue(thread("nobody's"), connection=connection)

        assert connection.row_factory is sqlite3.Row
        assert connection.text_factory is bytes


# peewee


def test_rule_02_nested_atomic_blocks_of_peewee_are_one_transaction_and_one_wake_at_the_end(
    engine: WatchedEngine,
) -> None:
    host = PeeweeHost(path_of(engine.url))
    with host.connection.atomic():
        engine.enqueue(receipt("outer"), connection=host.connection)
        with host.connection.atomic():
            engine.enqueue(receipt("inner"), connection=host.connection)
        assert engine.woken == []
    host.close()

    assert set(engine.woken) == {2}


def test_rule_02_a_savepoint_of_peewee_that_rolls_back_takes_its_tasks_along(engine: WatchedEngine) -> None:
    host = PeeweeHost(path_of(engine.url))
    with host.connection.atomic():
        engine.enqueue(receipt("outer"), connection=host.connection)
        with pytest.raises(ZeroDivisionError), host.connection.atomic():
            engine.enqueue(receipt("inner"), connection=host.connection)
            raise ZeroDivisionError
    host.close()

    assert sql(engine.url, "SELECT data FROM callboard_task") == [(payload(receipt("outer")),)]
    assert set(engine.woken) == {1}


def test_rule_02_without_a_transaction_peewees_connection_commits_at_once_and_is_closed_again(
    engine: WatchedEngine,
) -> None:
    host = PeeweeHost(path_of(engine.url))

    engine.enqueue(receipt("read"), connection=host.connection)

    assert engine.woken == [1]
    assert host.connection.is_closed()


def test_rule_02_the_engines_own_peewee_database_is_joined_with_and_without_naming_it(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    database = peewee.SqliteDatabase(path_of(callboard_database))
    engine = make_engine(Plugin(receipts(Scripted())), database=database)
    engine.migrate()

    with database.atomic() as transaction:
        engine.enqueue(receipt("one"))
        engine.enqueue(receipt("two"), connection=database)
        transaction.rollback()
    assert sql(callboard_database, IDS) == []

    with database.atomic():
        engine.enqueue(receipt("one"))
        engine.enqueue(receipt("two"), connection=database)
        assert sql(callboard_database, IDS) == []
    assert len(sql(callboard_database, IDS)) == 2
    database.close()


# SQLAlchemy


def test_rule_02_a_connection_of_sqlalchemy_that_stays_open_wakes_with_its_next_transaction_or_its_end(
    engine: WatchedEngine,
) -> None:
    database = sqlalchemy.create_engine(f"sqlite:///{path_of(engine.url)}")
    with database.connect() as connection:
        engine.enqueue(receipt("one"), connection=connection)
        connection.commit()
        connection.execute(sqlalchemy.text("SELECT 1"))
        assert engine.woken == [1]
        connection.rollback()
        engine.enqueue(receipt("two"), connection=connection)
        connection.commit()
        engine.enqueue(receipt("three"), connection=connection)
        assert engine.woken == [1, 2]
        connection.rollback()
        connection.execute(sqlalchemy.text("INSERT INTO note VALUES ('after the rollback')"))
        connection.commit()
    database.dispose()

    assert engine.woken == [1, 2]


def test_rule_02_a_session_of_sqlalchemy_that_stays_open_wakes_at_its_commit(engine: WatchedEngine) -> None:
    database = sqlalchemy.create_engine(f"sqlite:///{path_of(engine.url)}")
    with sqlalchemy.orm.Session(database) as session:
        engine.enqueue(receipt("one"), connection=session)
        session.commit()
        assert engine.woken == [1]
        engine.enqueue(receipt("two"), connection=session)
        session.rollback()
        engine.enqueue(receipt("three"), connection=session)
    database.dispose()

    assert engine.woken == [1]


@pytest.mark.parametrize("host", ["sqlalchemy-connection", "sqlalchemy-session"], indirect=True)
def test_rule_02_a_nested_transaction_of_sqlalchemy_wakes_when_the_outer_one_commits(
    engine: WatchedEngine, host: Host
) -> None:
    with host.transaction():
        engine.enqueue(receipt("outer"), connection=host.connection)
        with host.connection.begin_nested():
            engine.enqueue(receipt("inner"), connection=host.connection)
        with pytest.raises(ZeroDivisionError), host.connection.begin_nested():
            engine.enqueue(receipt("never"), connection=host.connection)
            raise ZeroDivisionError
        assert engine.woken == []

    assert len(sql(engine.url, IDS)) == 2
    assert set(engine.woken) == {2}


def test_rule_02_a_connection_of_sqlalchemy_that_is_closed_without_a_commit_wakes_nobody(
    engine: WatchedEngine,
) -> None:
    database = sqlalchemy.create_engine(f"sqlite:///{path_of(engine.url)}", poolclass=sqlalchemy.NullPool)
    with database.connect() as connection:
        engine.enqueue(receipt("read"), connection=connection)

    assert engine.woken == []


# Django


def test_rule_02_nested_atomic_blocks_of_django_wake_when_the_outermost_commits(engine: WatchedEngine) -> None:
    host = DjangoHost(path_of(engine.url))
    with host.transaction():
        engine.enqueue(receipt("outer"), connection=host.connection)
        with pytest.raises(ZeroDivisionError), host.transaction():
            engine.enqueue(receipt("never"), connection=host.connection)
            raise ZeroDivisionError
        with host.transaction():
            engine.enqueue(receipt("inner"), connection=host.connection)
        assert engine.woken == []
    host.close()

    assert len(sql(engine.url, IDS)) == 2
    assert set(engine.woken) == {2}


def test_rule_02_without_a_transaction_djangos_connection_commits_at_once(engine: WatchedEngine) -> None:
    host = DjangoHost(path_of(engine.url))

    engine.enqueue(receipt("read"), connection=host.connection)
    host.close()

    assert engine.woken == [1]


# Bad connections


class NotAConnection:
    """Something else of the host's."""


@pytest.mark.parametrize(
    "make",
    [
        NotAConnection,
        lambda: "sqlite:///host.db",
        lambda: sqlalchemy.create_engine("sqlite://"),
        lambda: sqlalchemy.orm.sessionmaker(),
        lambda: django.db.connections,
    ],
    ids=["object", "url", "sqlalchemy-engine", "sessionmaker", "django-connections"],
)
def test_something_that_is_no_connection_is_refused_saying_what_is_taken(
    engine: WatchedEngine, make: Callable[[], Any]
) -> None:
    with pytest.raises(ConfigurationError, match="connection= takes a sqlite3 connection, a peewee database"):
        engine.enqueue(receipt("read"), connection=make())


@pytest.mark.parametrize("name", ["sqlite3", "peewee", "sqlalchemy-connection", "sqlalchemy-session", "django"])
def test_a_database_without_our_tables_is_refused_saying_what_to_do(
    engine: WatchedEngine, tmp_path: Any, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere.db"
    sql(f"sqlite:///{elsewhere}", "CREATE TABLE note (text TEXT)")
    host = HOSTS[name](str(elsewhere))
    with host.transaction():
        host.note("before")
        with pytest.raises(SchemaError, match=r"connection= has no Callboard tables; run `callboard migrate`"):
            engine.enqueue(receipt("read"), connection=host.connection)
        host.note("after")
    host.close()

    assert sql(f"sqlite:///{elsewhere}", NOTES) == [("before",), ("after",)]


@pytest.mark.parametrize("name", ["peewee", "sqlalchemy-connection", "sqlalchemy-session", "django"])
def test_a_locked_database_is_reported_as_such(engine: WatchedEngine, name: str) -> None:
    host = HOSTS[name](path_of(engine.url))
    refusal = pytest.raises(DatabaseUnavailableError, match="the database of connection= is locked")
    with closing(sqlite3.connect(path_of(engine.url))) as rival:
        rival.execute("INSERT INTO note VALUES ('held')")
        with refusal, host.transaction():
            engine.enqueue(receipt("read"), connection=host.connection)
    host.close()

    assert engine.woken == []


def test_a_closed_connection_is_reported_as_such(engine: WatchedEngine) -> None:
    connection = sqlite3.connect(path_of(engine.url))
    connection.close()

    with pytest.raises(StoreError, match=r"connection=.*closed"):
        engine.enqueue(receipt("read"), connection=connection)
