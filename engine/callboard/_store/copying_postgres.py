"""Read and write whole tables of a PostgreSQL database, for `callboard copy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from callboard._store.copying_tables import INBOX, TABLES, Table
from callboard._store.interface import Row, Session
from callboard._store.postgres import PostgresStore
from callboard._store.postgres_nodes import place_of
from callboard._store.postgres_session import translated

_FETCH = 200
"""Rows that come from the server at once: few, because their payloads may be large."""

_SEQUENCE = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence(?, 'id')::regclass), 0)"
_RAISE = "SELECT setval(pg_get_serial_sequence(?, 'id'), ?::bigint)"


class PostgresSide:
    """A PostgreSQL database that is copied from or to."""

    tables = (*TABLES, INBOX)

    def __init__(self, store: PostgresStore) -> None:
        """Copy from or to this store."""
        self.store = store

    @property
    def place(self) -> str:
        """Where it is: a database has a place in each of its schemas."""
        with self.store.reading() as session:
            [(schema,)] = session.rows("SELECT current_schema()")
            return f"{place_of(session)}/{schema}"

    @contextmanager
    def stream(self, table: Table) -> Iterator[Iterator[Row]]:
        """Read all rows of a table, in the order of their keys, a few at a time."""
        sql = f"SELECT {', '.join(table.types)} FROM {table.name} ORDER BY {', '.join(table.key)}"
        with self.store.reading() as session, translated(self.store.where):
            connection = session.connection
            with (
                connection.transaction(),
                connection.cursor("callboard_copy", row_factory=psycopg.rows.tuple_row) as cursor,
            ):
                cursor.itersize = _FETCH
                cursor.execute(sql)
                yield iter(cursor)

    def find(self, session: Session, table: Table, keys: Sequence[Row]) -> list[Row]:
        """Return the rows of these keys."""
        arrays = ", ".join(f"?::{table.types[name]}[]" for name in table.key)
        columns, key = ", ".join(table.types), ", ".join(table.key)
        return session.rows(
            f"SELECT {columns} FROM unnest({arrays}) AS given({key}) JOIN {table.name} USING ({key})",
            [list(column) for column in zip(*keys, strict=True)],
        )

    def insert(self, session: Session, table: Table, rows: Sequence[Row]) -> None:
        """Write rows whose keys are not there."""
        sql = f"COPY {table.name} ({', '.join(table.types)}) FROM STDIN"
        with translated(self.store.where), session.connection.cursor() as cursor, cursor.copy(sql) as writing:
            for row in rows:
                writing.write_row(row)

    def keeping(self, table: Table) -> Callable[[Row], Row]:
        """Return what makes a row one that this database can keep: a text is UTF-8, and has no character NUL."""
        return table.changing("text", _kept_text)

    def last_number(self, session: Session, table: str) -> int:
        """Return the highest id that was ever given."""
        number: int = session.rows(_SEQUENCE, (table,))[0][0]
        return number

    def raise_last_number(self, session: Session, table: str, number: int) -> None:
        """Have ids given from now on be higher than this one."""
        if self.last_number(session, table) < number:
            session.rows(_RAISE, (table, number))


def _kept_text(value: str | None) -> str | None:
    if value is None or (value.isascii() and "\0" not in value):
        return value
    text = value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return text.replace("\0", "\\x00")
