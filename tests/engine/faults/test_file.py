"""The database's file is removed, replaced, made read-only or damaged while the engine has it open."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.engine.acting import (
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    receipt,
    receipts,
)
from tests.engine.faults.damage import damage
from tests.engine.rows import path_of

from callboard import DatabaseGoneError, DatabaseUnavailableError, Engine, NotADatabaseError, TaskState
from callboard._store.failures import translate
from callboard._store.sqlite import SqliteStore
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the file fifty times in a second, not once."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)


@pytest.fixture
def file(callboard_database: str) -> Path:
    return Path(path_of(callboard_database))


def remove(file: Path) -> Callable[[], object]:
    """Take the file away; return how to bring it back."""
    aside = file.with_suffix(".aside")
    file.rename(aside)
    return lambda: aside.rename(file)


def replace(file: Path) -> Callable[[], object]:
    """Put another database in its place, at one moment; return how to bring the first one back."""
    other = file.with_suffix(".other")
    with Engine(f"sqlite:///{other}", plugins=[]) as engine:
        engine.migrate()
    aside = file.with_suffix(".aside")
    os.link(file, aside)
    other.replace(file)
    return lambda: aside.replace(file)


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files but the locks of nodes, and SQLite's index of its log."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if "-callboard-node-" not in path.name and not path.name.endswith("-shm")
    }


@pytest.mark.parametrize(("take", "says"), [(remove, "was removed"), (replace, "was replaced by another file")])
def test_a_file_that_is_removed_or_replaced_is_left_alone_until_it_is_back(
    make_engine: MakeEngine,
    callboard_clock: FakeClock,
    file: Path,
    take: Callable[[Path], Callable[[], object]],
    says: str,
) -> None:
    handler, reasons = Blocking(), list[str]()
    plugin = Plugin(receipts(handler), reconcile=lambda engine, reason: reasons.append(reason))
    engine = make_engine(plugin)
    engine.start()
    engine.enqueue(receipt("running"))
    engine.enqueue(receipt("later"), not_before=HOUR)
    handler.wait_begun("running")

    with logged("ERROR") as errors:
        bring_back = take(file)
        eventually(lambda: engine.health().stuck)
        before = contents(file.parent)
        handler.let_go()
        callboard_clock.advance(HOUR)
        with pytest.raises(DatabaseGoneError, match=rf"{file} {says}"):
            engine.enqueue(receipt("refused"))
        with pytest.raises(DatabaseGoneError, match=rf"{file} {says}"):
            engine.tasks()
        assert not engine.wait_idle(0.2)
        assert f"{file} {says}" in str(engine.health().database_error)
        assert handler.begun == ["running"]
        assert contents(file.parent) == before

        bring_back()
        assert engine.wait_idle(WAIT_S)

    assert [f"{file} {says}" in error for error in errors] == [True]
    assert sorted(handler.begun) == ["later", "running"]
    assert engine.health().counters == {"done": 2, "dead": 0, "failed": 0, "stale": 0}
    assert (engine.health().database_error, engine.health().stuck) == (None, False)
    assert reasons == ["start", "reconnect"]


@pytest.mark.parametrize("take", [remove, replace])
def test_nothing_is_accepted_into_a_file_that_has_just_been_removed(
    make_engine: MakeEngine, file: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], object]
) -> None:
    """Whether or not the engine has looked since then, and whether it was started."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 3_600.0)
    started, enqueuing = make_engine(), make_engine(execute=False)
    started.start()
    enqueuing.migrate()

    take(file)

    for engine in (started, enqueuing):
        with pytest.raises(DatabaseGoneError, match=str(file)):
            engine.enqueue(receipt("lost"), allow_unknown=True)


def test_a_connection_that_is_opened_just_after_the_file_is_removed_makes_none_in_its_place(
    make_engine: MakeEngine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(execute=False)
    engine.migrate()
    connect = sqlite3.connect

    def remove_and_connect(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        remove(file)
        return connect(*args, **options)

    monkeypatch.setattr(sqlite3, "connect", remove_and_connect)
    engine._core.store.close()  # so that the next use opens a connection
    with pytest.raises(DatabaseGoneError, match=f"{file} was removed"):
        engine.enqueue(receipt("lost"), allow_unknown=True)

    assert not file.exists()


def test_a_stop_does_not_wait_for_outcomes_that_cannot_be_written(make_engine: MakeEngine, file: Path) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("running"))
    handler.wait_begun("running")
    bring_back = remove(file)
    eventually(lambda: engine.health().stuck)
    handler.let_go()

    assert not engine.stop(timeout=None)

    bring_back()
    following = make_engine(Plugin(receipts(again := Scripted())))
    with following:  # in this process, whose lock says that the first engine is still there
        assert [task.state for task in following.tasks()] == [TaskState.RUNNING]
    assert again.played == []


def test_a_file_that_was_replaced_between_migrate_and_start_is_refused(
    make_engine: MakeEngine, file: Path
) -> None:
    engine = make_engine()
    engine.migrate()
    replace(file)

    with pytest.raises(DatabaseGoneError, match=rf"{file} was replaced"):
        engine.start()


def test_no_new_file_is_made_beside_the_log_of_one_that_was_removed(
    make_engine: MakeEngine, callboard_database: str, file: Path
) -> None:
    """SQLite would delete the log, and with it what only the log has."""
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; from callboard import Engine\n"
            f"Engine({callboard_database!r}, plugins=[]).migrate(); os._exit(0)",
        ]
    )
    assert ended.returncode == 0
    remove(file)
    before = contents(file.parent)
    assert before[f"{file.name}-wal"]
    engine = make_engine()

    for use in (engine.migrate, engine.start, engine.tasks):
        with pytest.raises(DatabaseUnavailableError, match=rf"{file} is missing, but its log {file}-wal is there"):
            use()

    assert contents(file.parent) == before


def test_a_host_that_changes_its_folder_keeps_its_file(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    engine = make_engine(database="sqlite:///service.db")

    monkeypatch.chdir(elsewhere)
    engine.enqueue(receipt("read"), allow_unknown=True)

    assert (here / "service.db").exists()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits")
def test_a_file_that_becomes_read_only_halts_the_engine_until_it_is_writable(
    make_engine: MakeEngine, unprivileged: Path, callboard_clock: FakeClock
) -> None:
    file = unprivileged / "callboard.db"
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)), database=f"sqlite:///{file}")
    engine.start()
    engine.enqueue(receipt("later"), not_before=HOUR)

    with logged("INFO") as lines:
        file.chmod(0o444)
        eventually(lambda: engine.health().database_error)
        callboard_clock.advance(HOUR)
        assert not engine.wait_idle(0.2)
        assert f"{file} is read-only; make the file and its folder writable" in str(engine.health().database_error)
        assert not engine.health().stuck
        assert handler.played == []

        file.chmod(0o644)
        assert engine.wait_idle(WAIT_S)

    assert handler.played == ["later"]
    assert [line.split()[0] for line in lines if "database" in line] == ["ERROR", "INFO"]
    engine.stop()


def test_a_damaged_page_ends_the_use_of_the_file(make_engine: MakeEngine, file: Path) -> None:
    handler = Scripted()
    engine = make_engine(Plugin(receipts(handler)))
    engine.start()
    engine.enqueue(receipt("later"), not_before=HOUR)
    assert engine.wait_idle(WAIT_S)

    with logged("INFO") as lines:
        damage(file, "callboard_task_due")
        eventually(lambda: engine.health().stuck)
        assert f"{file} is damaged; restore it from a backup" in str(engine.health().database_error)
        for use in (engine.tasks, lambda: engine.enqueue(receipt("refused"))):
            with pytest.raises(NotADatabaseError, match=rf"{file} is damaged"):
                use()
        with pytest.raises(NotADatabaseError, match=rf"{file} is damaged"):
            engine.wait_idle(WAIT_S)
        assert engine.stop(timeout=None)

    assert [line.split()[0] for line in lines if "is damaged" in line] == ["ERROR", "WARNING"]
    assert handler.played == []
    assert file.exists()


def test_damage_that_an_enqueue_meets_stops_the_claims_too(make_engine: MakeEngine, file: Path) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    engine.start()
    assert engine.wait_idle(WAIT_S)
    damage(file, "callboard_task_identity")

    with pytest.raises(NotADatabaseError, match=rf"{file} is damaged"):
        engine.enqueue(receipt("refused"))

    eventually(lambda: engine.health().stuck)


def test_json_that_is_malformed_is_no_damage() -> None:
    """SQLite's two complaints have a word in common."""
    assert not isinstance(translate(sqlite3.OperationalError("malformed JSON"), "database x"), NotADatabaseError)
