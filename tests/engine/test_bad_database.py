"""A file that is no database, or that cannot be used: one clear error that names it and what to do."""

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import peewee
import pytest
from tests.engine.acting import (
    MakeEngine,
    Plugin,
    Scripted,
    receipt,
    receipts,
)
from tests.engine.rows import path_of, sql

from callboard import (
    DatabaseUnavailableError,
    Engine,
    NotADatabaseError,
)


def contents(folder: Path) -> dict[str, bytes | None]:
    return {file.name: file.read_bytes() if file.is_file() else None for file in folder.iterdir()}


def uses(engine: Engine) -> list[Callable[[], Any]]:
    """Return several ways to use a database for the first time."""
    return [engine.migrate, engine.start, engine.run_due, engine.tasks, lambda: engine.enqueue(receipt("read"))]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"Dear diary, today I was opened as a database." * 100, id="text"),
        pytest.param(b"\x00" * 4096, id="zeros"),
        pytest.param(b"SQLite format 3\x00" + b"\xff" * 4096, id="header-only"),
        pytest.param(b"no", id="two-bytes"),
    ],
)
def test_a_file_that_is_no_database_is_refused_by_name_and_left_untouched(
    make_engine: MakeEngine, callboard_database: str, tmp_path: Path, data: bytes
) -> None:
    Path(path_of(callboard_database)).write_bytes(data)
    engine = make_engine(Plugin(receipts(Scripted())))

    for use in uses(engine):
        with pytest.raises(NotADatabaseError, match=rf"{path_of(callboard_database)} is (not an SQLite|damaged)"):
            use()

    assert contents(tmp_path) == {"callboard.db": data}


def test_a_file_that_is_cut_short_is_refused_by_name_and_left_untouched(
    make_engine: MakeEngine, callboard_database: str, tmp_path: Path
) -> None:
    sql(callboard_database, "CREATE TABLE note (text TEXT)")
    sql(callboard_database, "INSERT INTO note VALUES (zeroblob(20000))")
    file = Path(path_of(callboard_database))
    file.write_bytes(file.read_bytes()[:5000])
    before = contents(tmp_path)

    with pytest.raises(NotADatabaseError, match=rf"{file} is damaged; restore it from a backup"):
        make_engine().start()

    assert contents(tmp_path) == before


def test_an_empty_file_becomes_a_database(make_engine: MakeEngine, callboard_database: str) -> None:
    Path(path_of(callboard_database)).touch()

    assert make_engine().migrate()


@pytest.mark.parametrize("name", ["", "no such folder/callboard.db"])
def test_a_file_that_cannot_be_opened_is_refused_at_once_by_name_with_a_remedy(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("callboard._store.sqlite.time.sleep", lambda seconds: pytest.fail("it waits for a lock"))
    engine = make_engine(Plugin(receipts(Scripted())), database=f"sqlite:///{tmp_path / name}")

    for use in uses(engine):
        with pytest.raises(DatabaseUnavailableError, match=rf"{tmp_path / name} cannot be opened; check that its"):
            use()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("migrated", [False, True])
def test_a_locked_database_is_refused_by_name_with_a_remedy(
    make_engine: MakeEngine, callboard_database: str, migrated: bool
) -> None:
    if migrated:
        make_engine().migrate()
    database = peewee.SqliteDatabase(path_of(callboard_database), timeout=0)
    engine = make_engine(Plugin(receipts(Scripted())), database=database)
    with closing(sqlite3.connect(path_of(callboard_database), isolation_level=None)) as rival:
        rival.execute("PRAGMA journal_mode = wal")
        rival.execute("BEGIN IMMEDIATE")
        before = sql_free_contents(callboard_database)

        for use in (engine.start, engine.run_due, lambda: engine.enqueue(receipt("read"))):
            with pytest.raises(
                DatabaseUnavailableError,
                match=rf"{path_of(callboard_database)} is locked by another connection; end its transaction",
            ):
                use()

        assert sql_free_contents(callboard_database) == before
        rival.execute("ROLLBACK")

    engine.enqueue(receipt("read"))
    assert len(engine.tasks()) == 1


def sql_free_contents(url: str) -> bytes:
    return Path(path_of(url)).read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits")
@pytest.mark.parametrize("read_only", ["file", "folder"])
@pytest.mark.parametrize("migrated", [False, True])
def test_a_read_only_database_is_refused_by_name_with_a_remedy(
    make_engine: MakeEngine, unprivileged: Path, read_only: str, migrated: bool
) -> None:
    file = unprivileged / "callboard.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE note (text TEXT)")
    if migrated:
        migrating = make_engine(database=f"sqlite:///{file}")
        migrating.migrate()
        migrating.stop()  # which closes it, and so takes its log away
    (file if read_only == "file" else unprivileged).chmod(0o444 if read_only == "file" else 0o555)
    before = contents(unprivileged)
    engine = make_engine(Plugin(receipts(Scripted())), database=f"sqlite:///{file}")

    with pytest.raises(DatabaseUnavailableError, match=rf"{unprivileged}.*writable"):
        engine.start()
    with pytest.raises(DatabaseUnavailableError, match=rf"{file}.*writable"):
        engine.enqueue(receipt("read"))

    assert contents(unprivileged)["callboard.db"] == before["callboard.db"]
