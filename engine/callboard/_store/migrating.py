"""Bring a database's tables up to this build's, and refuse those of a newer one.

Migrations are numbered SQL files, run forward only, each in one transaction together with its record. Each
says how old an engine may be to still work on the tables it leaves (`compatible-with`). Plugins have series of
their own, recorded in the same table under their names.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple, Protocol

from callboard._migration import Migration, read_folder
from callboard._store.interface import Session
from callboard.errors import SchemaError

ENGINE = "callboard"
"""The name under which the engine's own migrations are recorded; a plugin's are under the plugin's."""

_TABLE = (
    "CREATE TABLE IF NOT EXISTS callboard_migration (name TEXT NOT NULL, number INTEGER NOT NULL,"
    " title TEXT NOT NULL, compatible_with INTEGER NOT NULL, applied_at_ns BIGINT NOT NULL,"
    " PRIMARY KEY (name, number))"
)
# An engine must be able to work with every migration it does not know, not only with the latest.
_RECORDED = "SELECT name, max(number), max(compatible_with) FROM callboard_migration GROUP BY name"
_RECORD = (
    "INSERT INTO callboard_migration (name, number, title, compatible_with, applied_at_ns) VALUES (?, ?, ?, ?, ?)"
)


class ScriptSession(Session, Protocol):
    """A session that also runs whole scripts."""

    def script(self, sql: str) -> None:
        """Run the statements of a script, as they are written: a `?` in it is no mark."""
        ...


class Migrations(NamedTuple):
    """The migrations of one sort of database.

    Attributes:
        folder: where the numbered files are, beside this module.
        exists: a query that has a row if the database has a table of migrations.
    """

    folder: str
    exists: str

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
        found = recorded(session).get(ENGINE, (0, 0))
        return _usable(ENGINE, shipped(self.folder)[-1].number, *found, where)

    def apply(self, session: ScriptSession, migrations: list[Migration], now_ns: int) -> list[str]:
        """Run migrations and record them, in the session's transaction; return what was done."""
        session.run(_TABLE)
        for migration in migrations:
            _apply(session, ENGINE, migration, now_ns)
        return [f"{migration.number:04} {migration.title}" for migration in migrations]


def recorded(session: Session) -> dict[str, tuple[int, int]]:
    """Return, for each series, the latest number and the greatest `compatible_with`."""
    return {name: (number, compatible_with) for name, number, compatible_with in session.rows(_RECORDED)}


def lacking(
    found: Mapping[str, tuple[int, int]], plugin: str, series: Sequence[Migration], where: str
) -> Sequence[Migration]:
    """Return those of a plugin's migrations that are not among the recorded ones.

    Raises:
        SchemaError: a newer version of the plugin wrote its tables and says that this one cannot use them.
    """
    return series[_usable(plugin, len(series), *found.get(plugin, (0, 0)), where) :]


def apply_of_plugin(session: ScriptSession, plugin: str, migration: Migration, now_ns: int) -> bool:
    """Run a plugin's migration and record it, in the session's transaction; `False` if somebody else has."""
    number, _ = recorded(session).get(plugin, (0, 0))
    if number >= migration.number:
        return False
    _apply(session, plugin, migration, now_ns)
    return True


def _apply(session: ScriptSession, name: str, migration: Migration, now_ns: int) -> None:
    session.script(migration.sql)
    session.run(_RECORD, (name, migration.number, migration.title, migration.compatible_with, now_ns))


def _usable(name: str, own: int, number: int, compatible_with: int, where: str) -> int:
    """Return the latest number of a series of which this build knows `own`, if it can use the tables."""
    if number > own and compatible_with > own:
        who, upgrade = "Callboard", "upgrade with `pip install -U callboard`"
        if name != ENGINE:
            who, upgrade = f"version of plugin {name}", "upgrade its package"
        raise SchemaError(
            f"{where} was written by a newer {who} (tables {number}, this build knows {own}); {upgrade},"
            " or use another database"
        )
    return number


@cache
def shipped(folder: str) -> list[Migration]:
    """Return this build's migrations in order."""
    found = read_folder(resources.files("callboard._store").joinpath(folder))
    return sorted(found, key=lambda migration: migration.number)


def statements(script: str) -> Iterator[str]:
    """Split a script, because sqlite3's own `executescript` commits the transaction it is in."""
    begun = ""
    for part in re.split("(?<=;)", script):
        begun += part
        if sqlite3.complete_statement(begun):  # which knows texts, comments and triggers
            yield begun
            begun = ""
    if begun.strip():
        yield begun
