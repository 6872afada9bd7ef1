"""Messages in a SQLite file: for small services, and for tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from callboard_vanish.messages import MessageStore, Vanishing

_TABLE = """
CREATE TABLE IF NOT EXISTS message (
    group_id BLOB, message_id BLOB, text TEXT, vanishes_at_ns INTEGER, PRIMARY KEY (group_id, message_id)
)
"""


class SqliteMessages(MessageStore):
    """A message store on the file `path`, which is made if it is missing."""

    def __init__(self, path: Path | str) -> None:
        """Make the table."""
        self._path = path
        with self._connected() as connection:
            connection.execute(_TABLE)

    def add(self, group_id: bytes, message_id: bytes, text: str, vanishes_at_ns: int | None) -> None:
        """Store a message, or change one."""
        with self._connected() as connection:
            row = (group_id, message_id, text, vanishes_at_ns)
            connection.execute("REPLACE INTO message VALUES (?, ?, ?, ?)", row)

    def texts(self) -> list[str]:
        """Return the texts that are there."""
        with self._connected() as connection:
            return [text for (text,) in connection.execute("SELECT text FROM message ORDER BY text")]

    def vanishes_at_ns(self, group_id: bytes, message_id: bytes) -> int | None:
        """Return when a message is to vanish; `None` for one that stays, or that is gone."""
        wanted = "SELECT vanishes_at_ns FROM message WHERE group_id = ? AND message_id = ?"
        with self._connected() as connection:
            found: tuple[int | None] | None = connection.execute(wanted, (group_id, message_id)).fetchone()
            return None if found is None else found[0]

    def vanishing(self) -> Iterable[Vanishing]:
        """Return every message that is to vanish and has not."""
        wanted = "SELECT group_id, message_id, vanishes_at_ns FROM message WHERE vanishes_at_ns IS NOT NULL"
        with self._connected() as connection:
            return [Vanishing(*row) for row in connection.execute(wanted)]

    def delete(self, group_id: bytes, message_id: bytes) -> None:
        """Delete a message, if it is there."""
        with self._connected() as connection:
            connection.execute("DELETE FROM message WHERE group_id = ? AND message_id = ?", (group_id, message_id))

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path)) as connection, connection:
                yield connection
        except sqlite3.OperationalError as error:
            raise ConnectionError(f"{self._path}: {error}") from error
