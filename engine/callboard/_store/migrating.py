"""Bring a database's tables up to this build's, and refuse those of a newer one.

Migrations are numbered SQL files, run forward only, each in one transaction together with its record. Each
says how old an engine may be to still work on the tables it leaves (`compatible-with`).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import NamedTuple

from callboard._store.interface import Session
from callboard.errors import SchemaError

ENGINE = "callboard"
"""The name under which the engine's own migrations are recorded; plugins will have theirs."""

_TABLE = (
    "CREATE TABLE IF NOT EXISTS callboard_migration (name TEXT NOT NULL, number INTEGER NOT NULL,"
    " title TEXT NOT NULL, compatible_with INTEGER NOT NULL, applied_at_ns BIGINT NOT NULL,"
    " PRIMARY KEY (name, number))"
)
# An engine must be able to work with every migration it does not know, not only with the latest.
_NEWEST = "SELECT max(number), max(compatible_with) FROM callboard_migration WHERE name = ? HAVING count(*) > 0"
_RECORD = (
    "INSERT INTO callboard_migration (name, number, title, compatible_with, applied_at_ns) VALUES (?, ?, ?, ?, ?)"
)


class Migration(NamedTuple):
    """One numbered step of the tables."""

    number: int
    title: str
    compatible_with: int
    sql: str


class Migrations(NamedTuple):
    """The migrations of one sort of database.

    Attributes:
        folder: where the numbered files are, beside this module.
        exists: a query that has a row if the database has a table of migrations.
        split: whether the driver takes one statement at a time.
    """

    folder: str
    exists: str
    split: bool

    def pending(self, session: Session, where: str) -> list[Migration]:
        """Return the migrations that the database lacks; empty when it is up to date, or newer and compatible.

        Raises:
            SchemaError: a newer engine wrote the tables and says that this one cannot use them.
        """
        newest = self.check(session, where)
        return [migration for migration in shipped(self.folder) if migration.number > newest]

    def check(self, session: Session, where: str) -> int:
        """Return the number of the latest migration of the tables, 0 without one.

        Raises:
            SchemaError: a newer engine wrote the tables and says that this one cannot use them.
        """
        return self.check_prepared(session, where) if session.rows(self.exists) else 0

    def check_prepared(self, session: Session, where: str) -> int:
        """Do what `check` does where the table of migrations is known to exist."""
        own = shipped(self.folder)[-1].number
        for number, compatible_with in session.rows(_NEWEST, (ENGINE,)):
            if number > own and compatible_with > own:
                raise SchemaError(
                    f"{where} was written by a newer Callboard (tables {number}, this build knows {own}); upgrade"
                    " with `pip install -U callboard`, or use another database"
                )
            return int(number)
        return 0

    def apply(self, session: Session, migrations: list[Migration], now_ns: int) -> list[str]:
        """Run migrations and record them, in the session's transaction; return what was done."""
        session.run(_TABLE)
        for migration in migrations:
            for statement in _statements(migration.sql) if self.split else [migration.sql]:
                session.run(statement)
            session.run(_RECORD, (ENGINE, migration.number, migration.title, migration.compatible_with, now_ns))
        return [f"{migration.number:04} {migration.title}" for migration in migrations]


@cache
def shipped(folder: str) -> list[Migration]:
    """Return this build's migrations in order."""
    found = []
    for file in resources.files("callboard._store").joinpath(folder).iterdir():
        if file.name.endswith(".sql"):
            text = file.read_text(encoding="utf-8")
            found.append(
                Migration(int(file.name[:4]), _header(text, "title"), int(_header(text, "compatible-with")), text)
            )
    return sorted(found)


def _header(text: str, name: str) -> str:
    match = re.search(rf"^-- {name}: (.+)$", text, re.MULTILINE)
    if match is None:
        raise SchemaError(f"a migration lacks its line `-- {name}:`")
    return match.group(1)


def _statements(script: str) -> Iterator[str]:
    """Split a script, because sqlite3's own `executescript` commits the transaction it is in."""
    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        if sqlite3.complete_statement("\n".join(lines)) and line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []
