"""The store on a PostgreSQL database, through peewee and psycopg 3: connections, transactions and listings."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, cast

import peewee
import psycopg
from playhouse.pool import PooledPostgresqlDatabase

from callboard._migration import Migration
from callboard._store import listing, migrating, postgres_host
from callboard._store.groups import SqlGroups
from callboard._store.interface import Session
from callboard._store.migrating import Migrations
from callboard._store.postgres_database import OwnDatabase, raw
from callboard._store.postgres_insert import DirectInsert
from callboard._store.postgres_listener import Listener
from callboard._store.postgres_nodes import LIMIT, PostgresNodes
from callboard._store.postgres_session import (
    PostgresSession,
    is_no_fault_of_the_caller,
    own_cursor,
    translate,
    translated,
)
from callboard._store.postgres_tasks import DIRECT_INSERT, PostgresTasks
from callboard._store.postgres_url import name_in, read_url
from callboard._task import DeadTask, Enqueued, NewTask, Task
from callboard.errors import ConfigurationError, SchemaError

POLL_INTERVAL_S = 1.0
"""How often an idle engine asks for the data's version, which is a number in memory: the listener counts it up."""

_READ_ANYWAY_S = 30.0
"""How long an idle engine trusts the notifications; then it reads the tables, in case that one was lost."""

_SOON_S = 0.5
"""When it reads the tables again at the earliest after it had to leave due rows, as another node was there."""

OLDEST_SERVER = 14
"""The oldest server: 13 is past its end of life, and 14 was the oldest one supported when this was written."""

_PLANNING = {"enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan"}
"""What our own connections ask of the planner, besides what the URL says. A queue is empty when it is analyzed and
full a second later: with a plan made for the empty one a claim read the whole table (0.07 of the drain rate). A
plan that is made once and for all spares a quarter of the time from a commit to the handler's start.

On the host's connections, and behind a pooler that does not hand options on, each of the scheduler's transactions
asks for it."""

_PLANNING_LOCALLY = tuple(f"SET LOCAL {name} TO {value}" for name, value in _PLANNING.items())

MIGRATIONS = Migrations(
    folder="migrations_postgres",
    # No to_regclass, which may answer from what this session knew before another one migrated.
    exists=(
        "SELECT 1 FROM pg_tables WHERE tablename = 'callboard_migration'"
        " AND schemaname = ANY (current_schemas(FALSE))"
    ),
)
"""What `prepare` runs."""

_MIGRATING = 0x63616C6C626F6172
"""The key of the advisory lock of whoever migrates: `callboar` in ASCII."""

_STAMP = (
    "INSERT INTO callboard_stamp (name, at_ns) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET at_ns = ?2"
    " WHERE callboard_stamp.at_ns <= ?3 OR callboard_stamp.at_ns > ?2 RETURNING at_ns"
)

_orphans: list[peewee.Database] = []
"""Databases inherited through a fork, kept so that nothing of theirs is closed."""


class PostgresStore:
    """One PostgreSQL database, the host's or our own."""

    poll_interval_s = POLL_INTERVAL_S
    dialect = "postgres"
    groups = SqlGroups()

    def __init__(
        self, make_database: Callable[[], peewee.PostgresqlDatabase], where: str, *, owned: bool = False
    ) -> None:
        """Use the database that `make_database` returns; connects to nothing.

        Args:
            make_database: returns the host's database, or one of our own each time.
            where: the database as messages name it.
            owned: whether it is our own, so that its settings are for us to choose.
        """
        self._make_database = make_database
        self._owned = owned
        self.where = where
        self.tasks = PostgresTasks(self._look_soon)
        self.nodes = PostgresNodes()
        self._insert = DirectInsert(DIRECT_INSERT)
        self.database = make_database()
        self._listener: Listener | None = None
        self._own_pid = 0
        self._here = threading.local()
        self._looks = 0
        self._next_look_s = 0.0
        self._checked_version: int | None = None

    @contextmanager
    def transaction(self, *settings: str) -> Iterator[PostgresSession]:
        """Open a transaction on the calling thread, or join the one that is open there.

        Our own are READ COMMITTED, whatever the server's default: each statement must see what was committed
        before it. `settings` are statements that go out together with the BEGIN.
        """
        database = self.database
        with self._connected():
            if self.in_transaction():
                # A savepoint: what fails here must not end the host's.
                block = database.atomic()
            else:
                ours = (LIMIT, *self._planning()) if getattr(self._here, "is_ours", False) else ()
                block = database.atomic("; ".join(("READ COMMITTED", *ours, *settings)))
            with translated(self.where):
                block.__enter__()
            try:
                with self._session(database.after_commit) as session:
                    yield session
            except BaseException as error:
                with suppress(peewee.PeeweeException, psycopg.Error):  # it would hide what went wrong
                    block.__exit__(type(error), error, error.__traceback__)
                if is_no_fault_of_the_caller(error):  # in a statement of its own, on the session's connection
                    raise translate(error, self.where) from error
                raise
            with translated(self.where):
                block.__exit__(None, None, None)

    def _planning(self) -> tuple[str, ...]:
        asked = isinstance(self.database, OwnDatabase) and self.database.is_direct
        return () if asked else _PLANNING_LOCALLY

    @contextmanager
    def claiming(self) -> Iterator[PostgresSession]:
        """Open a transaction that a power failure may undo: its commit waits for no disk."""
        with self.transaction("SET LOCAL synchronous_commit TO off") as session:
            yield session

    def insert_now(self, new: NewTask) -> int | None:
        """Write and commit a task, and return its id; `None`, and nothing written, when its identity is live."""
        database = self.database
        if isinstance(database, OwnDatabase) and database.is_direct and (own := database.take()) is not None:
            try:
                return self._insert.run(own, new, self.where)
            finally:
                database.keep(own)
        with self._connected(), self._session() as session:
            return self.tasks.insert(session, new)

    @contextmanager
    def reading(self) -> Iterator[PostgresSession]:
        """Open a session that reads, in the calling thread's transaction if it has one."""
        with self._connected(), self._session() as session:
            yield session

    @contextmanager
    def _session(self, after_commit: Callable[[Any], Any] | None = None) -> Iterator[PostgresSession]:
        """Run statements on this thread's connection, by a cursor that is kept for the thread's next session.

        A new cursor finds out anew how each sort of parameter is written: 0.1 ms, a tenth of an enqueue.
        """
        connection, kept = raw(self.database), self._here
        cursor, kept.cursor = getattr(kept, "cursor", None), None  # not for a session inside of this one, too
        if cursor is None or cursor.connection is not connection:
            cursor = own_cursor(connection)
        try:
            yield PostgresSession(connection, self.where, after_commit, cursor=cursor)
        finally:
            kept.cursor = cursor

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Have the calling thread connected, and as it was afterwards."""
        opened = self._open()
        try:
            yield
        finally:
            if opened:
                self._give_back()

    def _open(self) -> bool:
        """Connect the calling thread; return whether it was not yet.

        The driver's error knows the password, as do the frames that it came through, and some loggers show both.
        So it is no context of ours, and a copy of what it says is the cause.
        """
        try:
            return bool(self.database.connect(reuse_if_open=True))
        except (peewee.PeeweeException, psycopg.Error) as error:
            refused, cause = translate(error, self.where), psycopg.OperationalError(str(error))
        raise refused from cause

    def _give_back(self) -> None:
        """Return the thread's connection to the pool, or close it if it is of no more use."""
        if self.database.is_connection_usable():
            self.database.close()
        else:
            self.drop_connection()

    def session_on(self, connection: Any) -> AbstractContextManager[Session]:
        """Open a session on the host's own connection, in its transaction or else in one of our own.

        Raises:
            ConfigurationError: nobody here knows what `connection` is, or it is on no PostgreSQL.
        """
        return postgres_host.session_on(connection)

    def is_awaited(self, connection: Any) -> bool:
        """Return whether it is an asynchronous connection of the host's."""
        return postgres_host.is_awaited(connection)

    async def accept_on(self, connection: Any, new: Sequence[NewTask]) -> list[Enqueued]:
        """Take tasks in the transaction of the host's asynchronous connection, as the tasks' `accept` does."""
        return await postgres_host.accept_on(connection, new)

    @contextmanager
    def thread(self) -> Iterator[None]:
        """Keep the calling thread's connection open, for a thread of the engine's own."""
        with ExitStack() as stack:
            stack.enter_context(self._connected())
            with self.reading() as session:
                self._own_pid = session.connection.info.backend_pid
            self._checked_version = None
            self._check_schema()
            self._here.is_ours = True
            stack.callback(setattr, self._here, "is_ours", False)
            yield

    def drop_connection(self) -> None:
        """Close the calling thread's connection for good, because it may be broken."""
        database = self.database
        with suppress(peewee.PeeweeException, psycopg.Error):
            if isinstance(database, OwnDatabase | PooledPostgresqlDatabase):
                database.manual_close()
            else:
                database.close()

    def in_transaction(self) -> bool:
        """Return whether the calling thread is in a transaction on this database."""
        return bool(self.database.in_transaction())

    def prepare(self, now_ns: int) -> list[str]:
        """Migrate the tables if they need it; return the titles of what was done.

        Raises:
            SchemaError: a newer engine wrote them, or the server is too old. Nothing has been changed.
            StoreError: the role may not make tables here.
            DatabaseUnavailableError: the server is out of reach.
        """
        with self.reading() as session:
            _check_server(session, self.where)
            if not MIGRATIONS.pending(session, self.where):
                return []
        with self.transaction() as session:
            session.rows("SELECT pg_advisory_xact_lock(?)", (_MIGRATING,))
            return MIGRATIONS.apply(session, MIGRATIONS.pending(session, self.where), now_ns)

    def recorded(self) -> dict[str, tuple[int, int]]:
        """Return each series' latest number and greatest `compatible_with`."""
        with self.reading() as session:
            return migrating.recorded(session)

    def migrate_plugin(self, plugin: str, migration: Migration, now_ns: int) -> bool:
        """Run a plugin's migration and record it, in one transaction; `False` if another process has."""
        with self.transaction() as session:
            session.rows("SELECT pg_advisory_xact_lock(?)", (_MIGRATING,))
            return migrating.apply_of_plugin(session, plugin, migration, now_ns)

    def data_version(self) -> int:
        """Return a number that changes when another connection has committed; call it from one thread.

        It is the number of notifications, and of looks that are made in case that one was lost.

        Raises:
            DatabaseUnavailableError: the connection that listens was lost; the next call opens another.
            SchemaError: a newer engine has migrated the tables and says that this one cannot use them.
        """
        listener = self._listener
        heard = 0 if listener is None else listener.heard()
        if time.monotonic() >= self._next_look_s:
            self._look()
        schema_version = self._looks + (0 if listener is None else listener.migrations)
        if schema_version != self._checked_version:
            self._check_schema()
            self._checked_version = schema_version
        return heard + self._looks

    def _look(self) -> None:
        self._looks += 1
        self._next_look_s = time.monotonic() + _READ_ANYWAY_S * random.uniform(0.8, 1.2)

    def _look_soon(self) -> None:
        """Read the tables soon, since nothing will tell of a change that somebody waits for."""
        self._next_look_s = min(self._next_look_s, time.monotonic() + _SOON_S)

    def _check_schema(self) -> None:
        with self.reading() as session:
            MIGRATIONS.check_prepared(session, self.where)

    @contextmanager
    def watching(self, changed: Callable[[], None]) -> Iterator[None]:
        """Listen on a connection and a thread of their own; call `changed` when another session has committed."""
        self._listener = Listener(self._connect, self._is_own, self.where, changed)
        self._listener.start()
        try:
            yield
        finally:
            listener, self._listener = self._listener, None
            listener.stop()

    def _is_own(self, backend_pid: int) -> bool:
        """Return whether a notification is of the thread's that asks for the data's version."""
        return backend_pid == self._own_pid

    def _connect(self) -> psycopg.Connection[Any]:
        """Return a connection for the listener, made as the pool makes its own."""
        database = self.database
        adapter = database._adapter  # type: ignore[attr-defined]
        connection = cast("psycopg.Connection[Any]", adapter.connect(database, **database.connect_params))
        connection.autocommit = True
        return connection

    def take_turn(self, session: Session, name: str, now_ns: int, interval_ns: int) -> bool:
        """Return whether it is this node's turn to do what the fleet does once in `interval_ns`."""
        return bool(session.rows(_STAMP, (name, now_ns, now_ns - interval_ns)))

    def list_tasks(
        self, kind: str | None, group_id: bytes | None, state: str | None, limit: int, after_id: int
    ) -> list[Task]:
        """Return live rows in the order of their ids."""
        with self.reading() as session:
            return listing.tasks(session, kind, group_id, state, limit, after_id)

    def list_dead(self, kind: str | None, group_id: bytes | None, limit: int, after_id: int) -> list[DeadTask]:
        """Return dead rows in the order of their ids."""
        with self.reading() as session:
            return listing.dead(session, kind, group_id, limit, after_id)

    def count_tasks(self) -> dict[tuple[str, str], int]:
        """Return how many live rows there are of each kind and state."""
        with self.reading() as session:
            rows = session.rows("SELECT kind, state, count(*) FROM callboard_task GROUP BY kind, state")
        return {(kind, state): count for kind, state, count in rows}

    def close(self) -> None:
        """Close idle connections at once and, of our own database, others when their threads give them back."""
        if isinstance(self.database, OwnDatabase):
            self.database.retire()
        elif isinstance(self.database, PooledPostgresqlDatabase):
            self.database.close_idle()

    def forget(self) -> None:
        """Drop every connection without closing it, as a forked child must."""
        self.nodes.forget()
        self._listener = None
        _orphans.append(self.database)
        self.database = self._make_database()


def _check_server(session: PostgresSession, where: str) -> None:
    [(version,)] = session.rows("SHOW server_version_num")
    if int(version) < OLDEST_SERVER * 10_000:
        raise SchemaError(
            f"{where} runs PostgreSQL {int(version) // 10_000}; Callboard needs {OLDEST_SERVER} or newer: upgrade"
            " the server, or use another"
        )


def open_postgres(database: object) -> PostgresStore:
    """Return the store for a URL or for the host's own peewee database; connects to nothing.

    Raises:
        ConfigurationError: the URL cannot be read, or the database does not use psycopg 3.
    """
    if isinstance(database, peewee.PostgresqlDatabase):
        if not isinstance(database._adapter, peewee.Psycopg3Adapter):  # type: ignore[attr-defined]
            raise ConfigurationError(
                "a peewee PostgresqlDatabase must use psycopg 3: PostgresqlDatabase(..., prefer_psycopg3=True)"
            )
        name = str(database.database)  # for which peewee takes a URL, too
        return PostgresStore(lambda: database, f"database {name_in(read_url(name)) if '://' in name else name}")
    given, where = _described(str(database))
    return PostgresStore(lambda: _own(given), where, owned=True)


def open_postgres_for_reading(url: str) -> PostgresStore:
    """Return the store of a database that exists and has this build's tables; no connection of it can write.

    None is kept, either: each is closed when it has been used.

    Raises:
        ConfigurationError: the URL cannot be read.
        StoreError: the database is missing, out of reach, or has other tables.
    """
    given, where = _described(url, "-c default_transaction_read_only=on")
    name = given.pop("dbname", "")
    store = PostgresStore(lambda: peewee.PostgresqlDatabase(name, prefer_psycopg3=True, **given), where)
    with store.reading() as session:
        _check_server(session, where)
        if MIGRATIONS.pending(session, where):
            raise SchemaError(
                f"{where} has no up-to-date Callboard tables where its search_path leads; run `callboard migrate`"
            )
    return store


def _described(url: str, settings: str = "") -> tuple[dict[str, Any], str]:
    """Return how to connect to a URL's database, and its name in messages."""
    given = read_url(url)
    where = f"database {name_in(given)} at {given.get('host') or 'localhost'}:{given.get('port') or 5432}"
    given.setdefault("application_name", "callboard")
    planning = " ".join(f"-c {name}={value}" for name, value in _PLANNING.items())
    given["options"] = f"{planning} {given.get('options', '')} {settings}".rstrip()  # the last one counts
    return given, where


def _own(given: dict[str, Any]) -> OwnDatabase:
    options = {name: value for name, value in given.items() if name != "dbname"}
    return OwnDatabase(given.get("dbname", ""), prefer_psycopg3=True, prepare_threshold=None, **options)
