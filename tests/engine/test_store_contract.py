"""Our own store keeps the contract, however its file is opened; and the contract tells when one does not."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import peewee
import pytest
from hypothesis import settings

from callboard._store.sqlite import SqliteStore, open_sqlite
from callboard.stores import Store
from callboard.testing.store_contract import MakeStore, StoreContract


class TestAFileByUrl(StoreContract):
    examples = settings().max_examples

    @pytest.fixture
    def make_store(self, callboard_database: str) -> Iterator[MakeStore]:
        made: list[Store] = []

        def make() -> Store:
            made.append(open_sqlite(callboard_database, "FULL"))
            return made[-1]

        yield make
        for store in made:
            store.close()


class HostsFile(StoreContract):
    """A file of the host's, in the mode that the host has given it."""

    journal_mode: str
    examples = 20  # of what does not depend on the file's mode

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        path = str(tmp_path / "host.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode = {self.journal_mode}")

        def make() -> Store:
            database = peewee.SqliteDatabase(path, pragmas={"synchronous": 1})
            return SqliteStore(lambda: database)

        return make


@pytest.mark.campaign
class TestAHostsFileWithWal(HostsFile):
    journal_mode = "wal"


@pytest.mark.campaign
class TestAHostsFileWithoutWal(HostsFile):
    journal_mode = "delete"


def run_python(source: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)


def test_importing_callboard_testing_imports_no_test_library() -> None:
    done = run_python(
        "import sys, callboard.testing, callboard.stores; print({'pytest', 'hypothesis'} & {*sys.modules})"
    )
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_the_contract_says_what_to_install(missing: str) -> None:
    done = run_python(f"import sys; sys.modules[{missing!r}] = None; import callboard.testing.store_contract")
    assert "the store contract needs pytest and Hypothesis: pip install 'callboard[testing]'" in done.stderr
