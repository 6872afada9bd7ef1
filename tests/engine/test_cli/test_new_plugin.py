"""`callboard new-plugin` writes all of a plugin or nothing, and code that is protoc's byte for byte."""

import hashlib
import os
import resource
import subprocess
from pathlib import Path

import pytest
from tests.engine.test_cli.conftest import SCRIPT
from tests.engine.test_cli.invoking import callboard

LONGEST = "a2345678901234567890123456789012345678_0"
BY_PROTOC = {
    "acme_notes": "480c793792683f03492f7abaa047732044d8aa5fab96cd114caa9bb04e9c8492",
    "a": "fdf47f6f0408a7e7e14ebe6189b515de2d2cc9dbd6ff120f83df79c8660cb17c",
    LONGEST: "e6fdec515574e28f19bafb22fea069504e1982a99870b73d2047f2796e409f4a",
}
"""The SHA-256 of what grpcio-tools 1.49.1 writes for the plugin's `messages.proto`; in each are other lengths."""

BY_PROTOC_TOO = "8a807ede95c99e582e3cc9e8675a13aedaee6cece721bfb157ee485dd31e01a8"
"""That of its `messages_pb2.pyi`, in which the plugin's name is not."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_it_writes_a_distribution_and_says_where(here: Path) -> None:
    done = callboard("new-plugin", "acme_notes")

    assert (done.exit_code, done.output) == (
        0,
        "wrote plugin acme_notes to acme_notes; its README.md says how to go on\n",
    )
    assert files(here / "acme_notes") == [
        ".gitignore",
        "README.md",
        "acme_notes/__init__.py",
        "acme_notes/messages.proto",
        "acme_notes/messages_pb2.py",
        "acme_notes/messages_pb2.pyi",
        "acme_notes/migrations/postgres/0001_notes.sql",
        "acme_notes/migrations/sqlite/0001_notes.sql",
        "acme_notes/notes.py",
        "acme_notes/py.typed",
        "pyproject.toml",
        "setup.cfg",
        "tests/conftest.py",
        "tests/contract.py",
        "tests/test_notes.py",
        "tox.ini",
    ]
    assert not [name for name in files(here) if "{{" in (here / name).read_text(encoding="utf-8")]


def test_a_folder_that_is_empty_is_written_to(here: Path) -> None:
    (here / "mine").mkdir()

    assert callboard("new-plugin", "acme_notes", "--path", "mine").exit_code == 0
    assert (here / "mine" / "acme_notes" / "notes.py").is_file()


@pytest.mark.parametrize("name", BY_PROTOC)
def test_the_code_is_what_protoc_writes(here: Path, name: str) -> None:
    assert callboard("new-plugin", name).exit_code == 0

    package = here / name / name
    assert hashlib.sha256((package / "messages_pb2.py").read_bytes()).hexdigest() == BY_PROTOC[name]
    assert hashlib.sha256((package / "messages_pb2.pyi").read_bytes()).hexdigest() == BY_PROTOC_TOO


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("acme-notes", "cannot be the name of a plugin's package; give lower-case letters, digits and _"),
        ("acme.notes", "cannot be the name"),
        ("AcmeNotes", "cannot be the name"),
        ("1acme", "cannot be the name"),
        ("_acme", "cannot be the name"),
        ("äcme", "cannot be the name"),
        ("../acme", "cannot be the name"),
        ("acme notes", "cannot be the name"),
        ("", "cannot be the name"),
        ("acme\n", "cannot be the name"),
        (LONGEST + "0", "40 at most"),
        ("lambda", "'lambda' is a name of Python's own; give the plugin another"),
        ("json", "a name of Python's own"),
        ("callboard", "is taken"),
        ("callboard_acme", "is taken"),
        ("tests", "is taken"),
        ("conftest", "is taken"),
        ("engine", "is taken"),
        ("sqlite_notes", "is taken"),
        ("acme_", "no _ last"),
        ("click", "'click' is installed already; give the plugin another name"),
    ],
)
def test_a_name_that_cannot_be_is_refused(here: Path, name: str, complaint: str) -> None:
    done = callboard("new-plugin", name, "--path", "somewhere")

    assert done.exit_code == 2
    assert complaint in done.output
    assert done.output.count("\n") == 1
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("full", "full is not empty; give a new folder: --path DIR"),
        ("full/file", "full/file is no folder; give a new one"),
        ("absent/acme", "absent is no folder; make it first, or give another --path"),
    ],
)
def test_a_place_where_something_is_is_refused(here: Path, path: str, complaint: str) -> None:
    (here / "full").mkdir()
    (here / "full" / "file").write_text("mine")

    done = callboard("new-plugin", "acme_notes", "--path", path)

    assert done.exit_code == 2
    assert complaint in done.output
    assert done.output.count("\n") == 1
    assert files(here) == ["full/file"]


def test_its_own_folder_is_not_empty_the_second_time(here: Path) -> None:
    callboard("new-plugin", "acme_notes")
    (here / "acme_notes" / "tox.ini").write_text("changed")

    assert callboard("new-plugin", "acme_notes").exit_code == 2
    assert (here / "acme_notes" / "tox.ini").read_text() == "changed"


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "empty"])
def test_what_fails_half_way_leaves_nothing(here: Path, is_new: bool) -> None:
    callboard("new-plugin", "acme_notes", "--path", "whole")
    sizes = [(here / "whole" / name).stat().st_size for name in files(here / "whole")]
    if not is_new:
        (here / "half").mkdir()

    def keep_small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) - 1, max(sizes) - 1))

    done = subprocess.run(
        [SCRIPT, "new-plugin", "acme_notes", "--path", "half"],
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=keep_small,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: half cannot be written: File too large; nothing is left there\n"
    assert (here / "half").exists() is not is_new
    assert is_new or list((here / "half").iterdir()) == []
