"""Read and write whole tables of an SQLite file, for `callboard copy`."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from callboard._store.copying_tables import TABLES, TASK, Table
from callboard._store.failures import translate
from callboard._store.interface import Row, Session
from callboard._store.sqlite import SqliteStore
from callboard._store.sqlite_tasks import DORMANT_NS
from callboard._task import TaskState

_SEQUENCE = "SELECT seq FROM sqlite_sequence WHERE name = ?"
_STATE = list(TASK.types).index("state")
_DEADLINE = list(TASK.types).index("next_attempt_at_ns")


class SqliteSide:
    """An SQLite file that is copied from or to."""

    tables = TABLES

    def __init__(self, store: SqliteStore) -> None:
        """Copy from or to this store."""
        self.store = store
        self.place = os.path.realpath(store.path)

    @contextmanager
    def stream(self, table: Table) -> Iterator[Iterator[Row]]:
        """Read all rows of a table, in the order of their keys, a few at a time."""
        sql = f"SELECT {', '.join(table.types)} FROM {table.name} ORDER BY {', '.join(table.key)}"
        with self.store.reading() as session, _raw_texts(session.connection), self._translated():
            yield _rows(session.connection.execute(sql), table)

    def find(self, session: Session, table: Table, keys: Sequence[Row]) -> list[Row]:
        """Return the rows of these keys."""
        place = f"({', '.join(_mark(table.types[name]) for name in table.key)})"
        join = " AND ".join(f"{table.name}.{name} = given.column{n}" for n, name in enumerate(table.key, 1))
        columns = ", ".join(f"{table.name}.{name}" for name in table.types)
        # CROSS, so that SQLite looks each key up and does not read the table once for all of them.
        sql = (
            f"SELECT {columns} FROM (VALUES {', '.join([place] * len(keys))}) AS given"
            f" CROSS JOIN {table.name} ON {join}"
        )
        with _raw_texts(session.connection), self._translated():
            values = [_bound(value) for key in keys for value in key]
            return list(_rows(session.connection.execute(sql, values), table))

    def insert(self, session: Session, table: Table, rows: Sequence[Row]) -> None:
        """Write rows whose keys are not there."""
        columns, marks = list(table.types), [_mark(kind) for kind in table.types.values()]
        written = [[_bound(value) for value in row] for row in rows]
        if table is TASK:
            columns, marks = [*columns, "dormant"], [*marks, "?"]
            limit_ns = time.time_ns() + DORMANT_NS
            for row in written:
                row.append(row[_STATE] == TaskState.DEFERRED or row[_DEADLINE] > limit_ns)
        session.run_many(
            f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join(marks)})",
            written,
        )

    def keeping(self, table: Table) -> Callable[[Row], Row]:
        """Return what makes a row one that this database can keep: NaN is NULL, and no zero is negative."""
        return table.changing("double precision", _kept_number)

    def last_number(self, session: Session, table: str) -> int:
        """Return the highest id that was ever given."""
        return max((row[0] for row in session.rows(_SEQUENCE, (table,))), default=0)

    def raise_last_number(self, session: Session, table: str, number: int) -> None:
        """Have ids given from now on be higher than this one."""
        if self.last_number(session, table) >= number:
            return
        session.run("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        session.run("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, number))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.store.where) from error


def _kept_number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value + 0.0


def _rows(cursor: sqlite3.Cursor, table: Table) -> Iterator[Row]:
    return map(table.changing("boolean", bool), cursor)


@contextmanager
def _raw_texts(connection: sqlite3.Connection) -> Iterator[None]:
    """Have texts that are not UTF-8 read so that the same bytes can be written again."""
    usual, connection.text_factory = connection.text_factory, _raw_text
    try:
        yield
    finally:
        connection.text_factory = usual


def _raw_text(text: bytes) -> str:
    return text.decode(errors="surrogateescape")


def _mark(kind: str) -> str:
    return "CAST(? AS TEXT)" if kind == "text" else "?"


def _bound(value: Any) -> Any:
    """Return a value as it is handed to SQLite: of a text that is not UTF-8 the bytes."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors="surrogateescape")
    return value
