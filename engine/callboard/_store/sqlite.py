"""The store on one SQLite file, through peewee: connections, transactions, migrations and listings."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import peewee
from playhouse.pool import PooledSqliteDatabase

from callboard._migration import Migration
from callboard._store import forking, host_connection, listing, migrating
from callboard._store.failures import is_locked, translate
from callboard._store.group_commit import GroupCommit
from callboard._store.groups import SqlGroups
from callboard._store.interface import Session
from callboard._store.migrating import Migrations
from callboard._store.nodes import SqlNodes
from callboard._store.opened_file import OpenedFile
from callboard._store.session import SqliteSession, connected, peewee_session, raw_connection, translated
from callboard._store.sqlite_tasks import SqliteTasks
from callboard._task import DeadTask, NewTask, Task
from callboard.errors import ConfigurationError, DatabaseUnavailableError

POLL_INTERVAL_S = 1.0
"""How often an idle engine asks SQLite whether another connection has written (`PRAGMA data_version`)."""

_BUSY_TIMEOUT_S = 5.0  # what peewee gives SQLite by default, too
_BUSY_WAIT_S = 0.01

_SYNCHRONOUS_NORMAL = 1  # SQLite's number for it

MIGRATIONS = Migrations(
    folder="migrations_sqlite",
    exists="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'callboard_migration'",
)
"""What `prepare` runs."""

_orphans: list[peewee.SqliteDatabase] = []
"""Databases inherited through a fork: to close them, even by collecting them, would disturb the parent's."""

_STAMP = (
    "INSERT INTO callboard_stamp (name, at_ns) VALUES (?1, ?2)"
    " ON CONFLICT (name) DO UPDATE SET at_ns = ?2 WHERE at_ns <= ?3 OR at_ns > ?2 RETURNING at_ns"
)


class SqliteStore:
    """One SQLite database, the host's or our own."""

    poll_interval_s = POLL_INTERVAL_S
    dialect = "sqlite"
    tasks = SqliteTasks()
    groups = SqlGroups()

    def __init__(self, make_database: Callable[[], peewee.SqliteDatabase], *, owned: bool = False) -> None:
        """Use the database that `make_database` returns; connects to nothing.

        Args:
            make_database: returns the host's database, or one of our own each time.
            owned: whether it is our own, so that its settings are for us to choose.

        Raises:
            ConfigurationError: the database is in memory.
        """
        self._make_database = make_database
        self._owned = owned
        database = make_database()
        if (
            not database.database
            or ":memory:" in str(database.database)
            or "mode=memory" in str(database.database)
        ):
            raise ConfigurationError(
                "an in-memory SQLite database is another one in each thread; give a file: sqlite:///service.db"
            )
        self.path = str(database.database)
        self.where = f"database {self.path}"
        self.nodes = SqlNodes(os.path.realpath(self.path))  # the same for every name of the file
        self._file = OpenedFile(self.path, self.where)
        self._checked_version: int | None = None
        self._forks = 0
        self._seen = threading.local()
        self._use(database)
        forking.watch(self)

    def _use(self, database: peewee.SqliteDatabase) -> None:
        self.database = database
        self._commits = GroupCommit(self._insert_one, self._insert_all)  # a child's lock may be held by nobody
        if self._owned and self._file.is_known:
            database.database = _uri(self.path, "rw")  # so that no connection makes a new file in its place

    @contextmanager
    def _using(self) -> Iterator[None]:
        with forking.session(), self._file.watched():
            self._reconnect()
            yield

    def _reconnect(self) -> None:
        """Replace the connection that the calling thread keeps, if a fork has closed it."""
        if getattr(self._seen, "forks", 0) == self._forks:
            return
        if not self.database.is_closed():
            self._drop_connection()
            with translated(self.where):
                self.database.connect()
        self._seen.forks = self._forks

    def disconnect(self) -> None:
        """Close every connection of every thread; one that a thread keeps is replaced by its next session.

        Of a host's database only those that no thread is using are closed: the others are the host's.
        """
        if isinstance(self.database, PooledSqliteDatabase):
            if self._owned:
                self._forks += 1
                self.database.close_stale(age=-math.inf)  # those in use, whatever the clock was set to
            self.database.close_idle()

    @contextmanager
    def transaction(self) -> Iterator[SqliteSession]:
        """Open a write transaction on the calling thread, or join the one that is open there."""
        with self._using(), peewee_session(self.database, self.where) as session:
            yield session

    @contextmanager
    def claiming(self) -> Iterator[SqliteSession]:
        """Open a write transaction that a power failure may undo: its commit waits for no disk.

        A claim that is undone leaves its rows pending, to run again as after any crash. Without the wait a
        task enqueued on an idle engine starts a disk flush earlier: 0.3 ms in place of 0.6 ms at best, 0.4 ms
        in place of 4 ms on a busy disk. Only in WAL mode is this safe, so other databases wait.
        """
        with self._using(), connected(self.database, self.where):
            settings = SqliteSession(raw_connection(self.database), self.where)
            level = settings.rows("PRAGMA synchronous")[0][0]
            relaxed = level > _SYNCHRONOUS_NORMAL and settings.rows("PRAGMA journal_mode")[0][0] == "wal"
            if relaxed:
                settings.run(f"PRAGMA synchronous = {_SYNCHRONOUS_NORMAL}")
            try:
                with self.transaction() as session:
                    yield session
            finally:
                if relaxed:
                    settings.run(f"PRAGMA synchronous = {level}")

    @contextmanager
    def reading(self) -> Iterator[SqliteSession]:
        """Open a session that reads, in the calling thread's transaction if it has one."""
        with self._using(), connected(self.database, self.where):
            yield SqliteSession(raw_connection(self.database), self.where)

    def insert_now(self, new: NewTask) -> int | None:
        """Write and commit a task, and return its id; `None`, and nothing written, when its identity is live."""
        return self._commits.insert(new)

    def _insert_one(self, new: NewTask) -> int | None:
        with self.reading() as session:  # a statement outside of transactions is one
            return self.tasks.insert(session, new)

    def _insert_all(self, new: Sequence[NewTask]) -> list[int | None]:
        with self.transaction() as session:
            return [self.tasks.insert(session, task) for task in new]

    def session_on(self, connection: Any) -> AbstractContextManager[Session]:
        """Open a session on the host's own connection, in its transaction or else in one of our own.

        Raises:
            ConfigurationError: nobody here knows what `connection` is.
        """
        return host_connection.session_on(connection)

    @contextmanager
    def thread(self) -> Iterator[None]:
        """Keep the calling thread's connection open, for a thread of the engine's own."""
        self._file.check_writable()
        with ExitStack() as stack:
            with self._using():
                stack.enter_context(connected(self.database, self.where))
            self._checked_version = None  # it is a connection's own
            try:
                self.data_version()
            except BaseException:
                self.drop_connection()  # or a pool would hand the same broken one out again
                raise
            yield

    def drop_connection(self) -> None:
        """Close the calling thread's connection for good, because it may be broken."""
        with forking.session():
            self._drop_connection()

    def _drop_connection(self) -> None:
        database = self.database
        with suppress(peewee.PeeweeException, sqlite3.Error):
            if isinstance(database, PooledSqliteDatabase):
                database.manual_close()  # type: ignore[no-untyped-call]
            else:
                database.close()

    def in_transaction(self) -> bool:
        """Return whether the calling thread is in a transaction on this database."""
        return bool(self.database.in_transaction())

    def exists(self) -> bool:
        """Return whether the file exists."""
        return os.path.isfile(self.path)  # Path.is_file raises where a folder may not be searched

    def prepare(self, now_ns: int) -> list[str]:
        """Migrate the tables if they need it; return the titles of what was done.

        Raises:
            NotADatabaseError: the file is something else.
            SchemaError: a newer engine wrote it. In both cases nothing has been changed.
            DatabaseUnavailableError: it is locked, read-only or out of reach.
        """
        done = self._prepare(now_ns)
        self._file.remember()
        self._use(self.database)
        return done

    def _prepare(self, now_ns: int) -> list[str]:
        self._file.check()
        if self.exists():
            with self._inspecting() as session:
                if not MIGRATIONS.pending(session, self.where):
                    return []
        else:
            self._file.check_absent()
        if self._owned and not self.in_transaction():
            self._use_wal()
        with self.transaction() as session:
            return MIGRATIONS.apply(session, MIGRATIONS.pending(session, self.where), now_ns)

    def recorded(self) -> dict[str, tuple[int, int]]:
        """Return each series' latest number and greatest `compatible_with`."""
        with self.reading() as session:
            return migrating.recorded(session)

    def migrate_plugin(self, plugin: str, migration: Migration, now_ns: int) -> bool:
        """Run a plugin's migration and record it, in one transaction; `False` if another process has."""
        with self.transaction() as session:
            return migrating.apply_of_plugin(session, plugin, migration, now_ns)

    def _use_wal(self) -> None:
        """Set the journal mode, which stays with the file.

        SQLite does not wait for the lock that this needs, as it does for others, so two engines that make the
        same file at once have to.
        """
        deadline_s = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                with self.reading() as session:
                    session.rows("PRAGMA journal_mode = wal")
                return
            except DatabaseUnavailableError as error:
                if not is_locked(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(_BUSY_WAIT_S)

    @contextmanager
    def _inspecting(self) -> Iterator[Session]:
        """Read the file without the pragmas that a full connection sets, since those write its header."""
        with forking.session():
            try:
                connection = sqlite3.connect(_uri(self.path, "ro"), uri=True)
            except sqlite3.Error as error:
                raise translate(error, self.where) from error
            try:
                yield SqliteSession(connection, self.where)
            finally:
                connection.close()

    def data_version(self) -> int:
        """Return a number that changes when another connection commits; call it from one thread.

        This is the regular look at the database, so it also finds out whether the file can still be used.

        Raises:
            DatabaseGoneError: it was removed or replaced.
            DatabaseUnavailableError: it is read-only.
            SchemaError: a newer engine has migrated the tables and says that this one cannot use them.
        """
        self._file.check_writable()
        with self.reading() as session:
            version: int = session.rows("PRAGMA data_version")[0][0] + (self._forks << 32)
            if version != self._checked_version:
                MIGRATIONS.check(session, self.where)
                self._checked_version = version
            return version

    def watching(self, changed: Callable[[], None]) -> AbstractContextManager[None]:
        """Give no hints: SQLite tells nobody of commits."""
        return nullcontext()

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
        if isinstance(self.database, PooledSqliteDatabase):
            with forking.session():
                if isinstance(self.database, _OwnDatabase):
                    self.database.is_retired = True
                self.database.close_idle()

    def forget(self) -> None:
        """Drop every connection without closing it, as a forked child must."""
        self.nodes.forget()
        _orphans.append(self.database)
        self._use(self._make_database())


class _OwnDatabase(PooledSqliteDatabase):
    """A pool that can be retired: a thread may give its connection back when nobody will ask for one any more."""

    is_retired = False

    def _can_reuse(self, connection: sqlite3.Connection) -> bool:
        if self.is_retired:
            return False
        return bool(super()._can_reuse(connection))  # type: ignore[no-untyped-call]


def _uri(path: str, mode: str) -> str:
    return f"{Path(path).absolute().as_uri()}?mode={mode}"


def own_database(path: str, synchronous: str) -> peewee.SqliteDatabase:
    """Return the engine's own peewee database for a file; connects to nothing.

    Raises:
        ConfigurationError: `synchronous` is neither `FULL` nor `NORMAL`.
    """
    if synchronous not in ("FULL", "NORMAL"):
        raise ConfigurationError(f"synchronous must be 'FULL' or 'NORMAL', not {synchronous!r}")
    return _OwnDatabase(  # type: ignore[no-untyped-call]
        path,
        pragmas={"synchronous": synchronous},
        max_connections=None,
        uri=True,  # a plain path is taken, too
        check_same_thread=False,  # the pool hands a connection from thread to thread, one at a time
    )


def open_sqlite(database: object, synchronous: str) -> SqliteStore:
    """Return the store for a URL or for the host's own peewee database; connects to nothing.

    Raises:
        ConfigurationError: the URL or the database is of a sort that this build does not know.
    """
    if isinstance(database, peewee.SqliteDatabase):
        return SqliteStore(lambda: database)
    if isinstance(database, str) and database.startswith("sqlite:///"):
        path = database.removeprefix("sqlite:///")
        if ("?" in path or path.startswith("file:")) and "memory" not in path:
            raise ConfigurationError(f"a database URL takes a plain path and no options, not {database!r}")
        if path and not path.startswith((":", "file:")):
            path = os.path.abspath(path)  # a host that changes its folder must not get another file
        return SqliteStore(lambda: own_database(path, synchronous), owned=True)
    raise ConfigurationError(
        "the database must be a URL such as sqlite:///service.db (sqlite:////var/lib/service.db for an absolute"
        " path) or postgresql://user@host/name, or a peewee SqliteDatabase or PostgresqlDatabase, or an object"
        f" with all of callboard.stores.Store, not {_shown(database)}"
    )


def _shown(database: object) -> str:
    """Return what a host gave as its database; of a URL or settings only what can hold no password."""
    if not isinstance(database, str):
        return repr(database)
    scheme, found, _ = database.partition("://")
    if found:
        return f"a URL that begins with {scheme}://" if scheme.replace("+", "").isalnum() else "this URL"
    return repr(database) if not any(sign in database for sign in "=@:") else "this text"
