"""What the how-to shows is run here, with our own store's statements for the rest of its author's work."""

import re
from pathlib import Path

import pytest
from tests import pages

ACME_STORE = """
from acme_tasks import AcmeTasks
from callboard._store.sqlite import SqliteStore, own_database
from callboard._store.sqlite_tasks import SqliteTasks


class Tasks(AcmeTasks, SqliteTasks):
    pass


class AcmeStore(SqliteStore):
    tasks = Tasks()

    def __init__(self, path):
        super().__init__(lambda: own_database(str(path), "NORMAL"), owned=True)
"""


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """Return a folder with what is shown."""
    sources = {**pages.files("README.md", "docs/how-to/write-a-store.md"), "acme_store.py": ACME_STORE}
    for name, source in sources.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path


def test_the_contract_runs_as_it_is_shown(shown: Path) -> None:
    quick = "not the_rows_follow_the_model and not ten_thousand"

    said = pages.python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", quick, "test_acme_store.py", folder=shown
    )

    assert int(re.findall(r"(\d+) passed", said)[0]) > 100


def test_the_service_runs_as_it_is_shown(shown: Path) -> None:
    assert pages.python("service.py", folder=shown) == "sent: welcome, ada\n"
