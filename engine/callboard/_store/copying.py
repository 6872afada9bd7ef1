"""Move a stopped engine's rows to another database: `callboard copy`.

Rows keep their keys, so a copy may be interrupted and run again: what is there is compared, what is missing is
written. A mark in the target tells its rows from others', and shows when an engine has worked there since: then a
task may have ended, and to copy it again would run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from typing import NamedTuple, Protocol

from callboard import _crash_points
from callboard._store.copying_sqlite import SqliteSide
from callboard._store.copying_tables import NODES, Checksum, Table, encoded, moved
from callboard._store.interface import Row, Session, Store
from callboard._store.sqlite import SqliteStore
from callboard.errors import ConfigurationError, StoreError

_ROWS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 4_000_000

_MARK = "copied here after node "
"""How the name of the mark begins, a row of the stamps; the number of the target's last node then follows."""

_ANY = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1) AS found"
_COUNT = "SELECT count(*) FROM {table}"


class Side(Protocol):
    """One of the two databases.

    Attributes:
        store: its store.
        tables: those that it has.
        place: where it is, the same for two names of one file.
    """

    @property
    def store(self) -> Store: ...
    @property
    def tables(self) -> Sequence[Table]: ...
    @property
    def place(self) -> str: ...

    def stream(self, table: Table) -> AbstractContextManager[Iterator[Row]]:
        """Read all rows of a table, in the order of their keys, a few at a time."""
        ...

    def find(self, session: Session, table: Table, keys: Sequence[Row]) -> list[Row]:
        """Return the rows of these keys."""
        ...

    def insert(self, session: Session, table: Table, rows: Sequence[Row]) -> None:
        """Write rows whose keys are not there."""
        ...

    def keeping(self, table: Table) -> Callable[[Row], Row]:
        """Return what makes a row one that this database can keep, where it cannot keep every value as it is."""
        ...

    def last_number(self, session: Session, table: str) -> int:
        """Return the highest id that was ever given."""
        ...

    def raise_last_number(self, session: Session, table: str, number: int) -> None:
        """Have ids given from now on be higher than this one."""
        ...


class CopiedTable(NamedTuple):
    """What became of one table.

    Attributes:
        rows: how many it has, on both sides.
        written: how many this copy wrote; the others were there.
        hash: the hash of all of them, on both sides.
    """

    table: str
    rows: int
    written: int
    hash: str


class Progress(NamedTuple):
    """How far a copy has come.

    Attributes:
        step: what is done: `compare`, `copy` or `check`.
        rows: how many rows of the table are done, of `total`.
    """

    step: str
    table: str
    rows: int
    total: int


def copy(
    source: Store,
    target: Store,
    *,
    now_ns: int,
    gone: Collection[int] = (),
    progress: Callable[[Progress], None] = lambda progress: None,
) -> list[CopiedTable]:
    """Copy all live, dead, group and inbox rows, and check that both sides have the same.

    Args:
        source: the database of engines that are stopped; it is only read.
        target: an empty database, or one that an earlier copy was made to.
        now_ns: the time, for the target's records.
        gone: nodes of the source that are certainly gone, although their rows are there.
        progress: is told how far it has come, after each batch.

    Raises:
        ConfigurationError: the two are one.
        StoreError: a node is at work on either, the target has other rows, or the two differ in the end.
    """
    return _Copying(_side_of(source), _side_of(target), gone, progress).copy(now_ns)


def _side_of(store: Store) -> Side:
    if isinstance(store, SqliteStore):
        return SqliteSide(store)
    from callboard._store.copying_postgres import PostgresSide  # psycopg is an extra
    from callboard._store.postgres import PostgresStore

    if isinstance(store, PostgresStore):
        return PostgresSide(store)
    raise ConfigurationError(f"{store.where} can be copied by its own tools only")


class _Copying:
    """One copy."""

    def __init__(
        self, source: Side, target: Side, gone: Collection[int], progress: Callable[[Progress], None]
    ) -> None:
        if source.place == target.place:
            raise ConfigurationError(f"{source.store.where} is both source and target; give two databases")
        self._source = source
        self._target = target
        self._gone = gone
        self._progress = progress
        self._shared = [table for table in source.tables if table in target.tables]

    def copy(self, now_ns: int) -> list[CopiedTable]:
        self._check_stopped(self._source, self._gone)
        self._check_nothing_left_out()
        self._target.store.prepare(now_ns)
        self._check_stopped(self._target)
        source_node = self._last_node(self._source)
        if self._mark(now_ns):
            self._compare()
        written = {table.name: self._copy(table) for table in self._shared}
        self._raise_numbers()
        copied = [self._checked(table, written[table.name]) for table in self._shared]
        self._check_stopped(self._source, self._gone)
        if self._last_node(self._source) != source_node:
            raise StoreError(
                f"an engine has worked on {self._source.store.where} meanwhile; stop it and copy again"
            )
        with self._target.store.transaction() as session:
            self._check_unworked(session)
        return copied

    # What must not be

    def _check_stopped(self, side: Side, gone: Collection[int] = ()) -> None:
        """Refuse a database on which a node is at work, as far as its rows tell."""
        with side.store.reading() as session:
            nodes = side.store.nodes.others(session, 0)
        for node in nodes:
            if node.id not in gone and not side.store.nodes.has_ended(node):
                remedy = f"; if it is certainly gone, say --gone {node.id}" if side is self._source else ""
                raise StoreError(
                    f"{side.store.where} is in use by node {node.id} (process {node.pid} on {node.host}); stop it"
                    f" first{remedy}"
                )

    def _check_nothing_left_out(self) -> None:
        for table in self._source.tables:
            if table not in self._shared and self._has_rows(self._source, table):
                raise StoreError(
                    f"{self._source.store.where} has tasks in {table.name}, for which the target has no place;"
                    " start an engine on it, which takes them in, stop it and copy again"
                )

    def _mark(self, now_ns: int) -> bool:
        """Mark the target as one that is copied to; return whether it was.

        Raises:
            StoreError: it has rows and was not, or an engine has worked on it since.
        """
        store = self._target.store
        with store.transaction() as session:
            if self._check_unworked(session):
                return True
            for table in self._target.tables:
                if session.rows(_ANY.format(table=table.name)) != [(0,)]:
                    raise StoreError(
                        f"{store.where} has rows in {table.name} that no copy has written; give an empty database"
                    )
            session.run(
                "INSERT INTO callboard_stamp (name, at_ns) VALUES (?, ?)",
                (f"{_MARK}{self._target.last_number(session, NODES)}", now_ns),
            )
        return False

    def _check_unworked(self, session: Session) -> bool:
        """Return whether the target is marked.

        Raises:
            StoreError: an engine has worked on it since.
        """
        found = session.rows("SELECT name FROM callboard_stamp WHERE name LIKE ?", (f"{_MARK}%",))
        for (name,) in found:
            if int(name.removeprefix(_MARK)) != self._target.last_number(session, NODES):
                raise StoreError(
                    f"an engine has worked on {self._target.store.where} since it was copied to, so tasks that"
                    " ended there would run again; give an empty database"
                )
        return bool(found)

    def _has_rows(self, side: Side, table: Table) -> bool:
        with side.store.reading() as session:
            return session.rows(_ANY.format(table=table.name)) != [(0,)]

    def _last_node(self, side: Side) -> int:
        with side.store.reading() as session:
            return side.last_number(session, NODES)

    # Rows

    def _compare(self) -> None:
        """Refuse a target with rows that the source does not have as they are; write nothing.

        Raises:
            StoreError: there is one.
        """
        store = self._target.store
        for table in self._target.tables:
            same = self._same(table) if table in self._shared else 0
            with store.reading() as session:
                [(count,)] = session.rows(_COUNT.format(table=table.name))
            if count != same:
                raise self._foreign(table, f"{count - same} row(s)")

    def _same(self, table: Table) -> int:
        """Return how many of the source's rows the target has, and has as they are."""
        same = 0
        with closing(self._batches("compare", table)) as batches:
            for rows in batches:
                with self._target.store.reading() as session:
                    found = self._found(session, table, rows)
                for row in rows:
                    there = found.get(table.key_of(row))
                    if there is not None and encoded(there) != encoded(row):
                        raise self._foreign(table, "a row")
                same += len(found)
        return same

    def _foreign(self, table: Table, what: str) -> StoreError:
        return StoreError(
            f"{self._target.store.where} has {what} in {table.name} that {self._source.store.where} does not have,"
            " or not as they are there; if either was written to since the earlier copy, give an empty database"
        )

    def _copy(self, table: Table) -> int:
        """Write the rows that are missing; return how many."""
        written = 0
        with closing(self._batches("copy", table)) as batches:
            for rows in batches:
                with self._target.store.transaction() as session:
                    found = self._found(session, table, rows)
                    missing = [row for row in rows if table.key_of(row) not in found]
                    if missing:
                        self._target.insert(session, table, missing)
                        written += len(missing)
                _crash_points.reach("callboard.copy.committed")
        return written

    def _found(self, session: Session, table: Table, rows: Sequence[Row]) -> dict[Row, Row]:
        found = self._target.find(session, table, [table.key_of(row) for row in rows])
        return {table.key_of(row): row for row in found}

    def _raise_numbers(self) -> None:
        """Have the target give no id that the source has ever given: a run's late outcome may still tell of it."""
        numbered = [table for table in self._shared if table.numbered]
        with self._source.store.reading() as reading, self._target.store.transaction() as session:
            for table in numbered:
                [(highest,)] = session.rows(f"SELECT coalesce(max(id), 0) FROM {table.name}")
                given = self._source.last_number(reading, table.name)
                self._target.raise_last_number(session, table.name, max(highest, given))

    def _checked(self, table: Table, written: int) -> CopiedTable:
        """Read both sides anew, and compare numbers and hashes."""
        expected, there = Checksum(), Checksum()
        with closing(self._batches("check", table)) as batches:
            for rows in batches:
                for row in rows:
                    expected.add(row)
        with self._target.stream(table) as found:
            for row in found:
                there.add(row)
        if (expected.rows, expected.hash) != (there.rows, there.hash):
            raise StoreError(
                f"{table.name} is not the same on both sides: {expected.rows} row(s) with the hash {expected.hash}"
                f" in {self._source.store.where}, {there.rows} with {there.hash} in {self._target.store.where};"
                " see that nothing writes to either, and copy again to an empty database"
            )
        return CopiedTable(table.name, there.rows, written, there.hash)

    def _batches(self, step: str, table: Table) -> Generator[list[Row]]:
        """Read a table of the source as the target is to have it, and tell of the progress."""
        with self._source.store.reading() as session:
            [(total,)] = session.rows(_COUNT.format(table=table.name))
        keep, done = self._target.keeping(table), 0
        with self._source.stream(table) as rows:
            for batch in _batched(keep(moved(table, row)) for row in rows):
                yield batch
                done += len(batch)
                self._progress(Progress(step, table.name, done, max(done, total)))
        if not done:
            self._progress(Progress(step, table.name, 0, 0))


def _batched(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Take rows together as long as they are few and their payloads small."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, (bytes, str)))
        if len(batch) == _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
