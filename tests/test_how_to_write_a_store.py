"""What the how-to shows is run here, with our own store's statements for the rest of its author's work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SNIPPETS = r"^```python\n# (\S+)\n(.+?)^```$"
HOW_TO, README = (
    dict(re.findall(SNIPPETS, (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
    for page in ("docs/how-to/write-a-store.md", "README.md")
)

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
    sources = {**README, **HOW_TO, "acme_store.py": ACME_STORE}
    for name, source in sources.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path


def python(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_the_contract_runs_as_it_is_shown(shown: Path) -> None:
    quick = "not the_rows_follow_the_model and not ten_thousand"

    done = python(shown, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", quick, "test_acme_store.py")

    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 100


def test_the_service_runs_as_it_is_shown(shown: Path) -> None:
    done = python(shown, "service.py")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "sent: welcome, ada\n"
