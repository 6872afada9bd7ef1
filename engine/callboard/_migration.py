"""The numbered steps by which a plugin makes and changes tables of its own, read from its package.

The engine's own are files of the same form (`_store/migrating.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from callboard.errors import PluginError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

FOLDER = "migrations"
"""Where a package has them: `migrations/sqlite/0001_notes.sql`, `migrations/postgres/0001_notes.sql`."""

_FILE = re.compile(r"(\d{4})_\w+\.sql")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
# What may look like statements of the script's own: comments, texts, and functions as PostgreSQL quotes them.
_QUOTED = re.compile(rf"{_COMMENT.pattern}|'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_BODY = re.compile(r"\bbegin\b.*?;\s*end\b", re.DOTALL | re.IGNORECASE)  # of a trigger, or `BEGIN ATOMIC`
_CONTROLS_TRANSACTION = re.compile(
    r"(?:\A|;)\s*(begin|start\s+transaction|commit|rollback(?!\s+to\b)|abort|prepare\s+transaction)\b",
    re.IGNORECASE,
)
_ENDS_TRANSACTION = re.compile(r"(?:\A|;)\s*(end)\b", re.IGNORECASE)
# Up to the name, and not into a query that may well read the engine's tables.
_CHANGES_ENGINE = re.compile(
    r"\b(?:create|alter|drop)\b(?:\s+(?!as\b|select\b)\w+)*?\s+"
    r"""(?:["`\[]?\w+["`\]]?\.)?["`\[]?(callboard_\w*)""",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of a plugin's tables, on one sort of database.

    Attributes:
        database: whose SQL it is: `sqlite` or `postgres`.
        number: its place, from 1 without a gap.
        title: what it does, for whoever reads the list of what was done.
        sql: the statements, run in one transaction together with the record of it.
        compatible_with: the least number that a version of the plugin must know to work on the tables that this
            one leaves; `number` itself if none before can.
    """

    database: str
    number: int
    title: str
    sql: str
    compatible_with: int


def read_migrations(package: str) -> list[Migration]:
    """Return the migrations in a package's folder `migrations`, for `callboard_migrations` to return.

    It has a folder for each sort of database, `sqlite` and `postgres`, with files such as `0001_notes.sql`. Each
    begins with `-- title: ...` and `-- compatible-with: ...`, which are the fields of `Migration`.

    Raises:
        PluginError: there is no such folder, or a file's name or its first lines say too little.
    """
    folder = resources.files(package).joinpath(FOLDER)
    if not folder.is_dir():
        raise PluginError(
            f"package {package} has no folder {FOLDER}; if its sources have, add {FOLDER}/*/*.sql to the package's"
            " data"
        )
    return [migration for each in folder.iterdir() if each.is_dir() for migration in read_folder(each)]


def read_folder(folder: Traversable) -> Iterator[Migration]:
    """Read the migrations for one sort of database, in no order; the folder's name says which.

    Raises:
        PluginError: a file's name or its first lines say too little.
    """
    for file in folder.iterdir():
        if not file.name.endswith(".sql"):
            continue
        named = _FILE.fullmatch(file.name)
        if named is None:
            raise PluginError(f"a migration is named like 0001_notes.sql, not {folder.name}/{file.name}")
        sql, where = file.read_text(encoding="utf-8"), f"{folder.name}/{file.name}"
        compatible_with = _header(sql, "compatible-with", where)
        if not compatible_with.isdecimal():
            raise PluginError(f"{where}: compatible-with is the number of a migration, not {compatible_with}")
        yield Migration(folder.name, int(named[1]), _header(sql, "title", where), sql, int(compatible_with))


def _header(sql: str, name: str, where: str) -> str:
    match = re.search(rf"^-- {name}: *(.*\S) *$", sql, re.MULTILINE)
    if match is None:
        raise PluginError(f"{where} lacks its line `-- {name}: ...`")
    return match[1]


def series_of(given: Sequence[Migration], database: str) -> list[Migration]:
    """Return those for one sort of database, in order.

    Raises:
        PluginError: there is none for it, or one of them cannot work.
    """
    for each in given:
        if not isinstance(each, Migration):
            raise PluginError(f"callboard_migrations must return Migration objects, not {each!r:.200}")
    series = sorted((each for each in given if each.database == database), key=lambda each: each.number)
    if given and not series:
        others = ", ".join(sorted({each.database for each in given}))
        raise PluginError(f"there are no migrations for {database}, only for {others}")
    for place, each in enumerate(series, 1):
        where = f"migration {each.number:04} for {database}"
        if each.number != place:
            raise PluginError(f"{where} comes where {place:04} is due; they are numbered from 1 without a gap")
        if not 1 <= each.compatible_with <= each.number:
            raise PluginError(
                f"{where}: compatible-with must be from 1 to {each.number}, not {each.compatible_with}"
            )
        _check_sql(each.sql, where)
    return series


def _check_sql(sql: str, where: str) -> None:
    code = _QUOTED.sub(" ", sql)
    if control := _CONTROLS_TRANSACTION.search(code) or _ENDS_TRANSACTION.search(_BODY.sub(" ", code)):
        raise PluginError(f"{where} has its own {control[1].upper()}; take it out, each is run in one transaction")
    if named := _CHANGES_ENGINE.search(_COMMENT.sub(" ", sql)):
        raise PluginError(
            f"{where} makes or changes {named[1]}; names that begin with callboard_ are the engine's, so give the"
            " plugin's tables a prefix of its own"
        )
