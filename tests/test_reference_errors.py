"""The page of errors has every class, what it is, when it is raised and what to do."""

from __future__ import annotations

import inspect
import sqlite3

import pytest
from tests import pages

import callboard
from callboard import errors
from callboard._store import failures

PAGE = "docs/reference/errors.md"
CLASSES = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}


def test_every_error_is_on_the_page_with_its_remedy() -> None:
    rows = pages.table(PAGE, "error")

    assert pages.column(rows, "error") == list(CLASSES)
    assert all(row["raised when"] and row["what to do"] for row in rows)


def test_every_error_is_what_the_page_says_and_can_be_imported_from_callboard() -> None:
    for row in pages.table(PAGE, "error"):
        error = CLASSES[pages.plain(row["error"])]
        assert ", ".join(base.__name__ for base in error.__bases__) == pages.plain(row["is a"])
        assert getattr(callboard, error.__name__) is error
        assert error.__name__ in callboard.__all__


def test_what_sqlite_says_is_on_the_page() -> None:
    shown = pages.pairs(pages.table(PAGE, "message"), "message", "error")
    for sign, error, _ in failures._SQLITE:
        said = failures.translate(sqlite3.OperationalError(sign), "database x")
        assert type(said) is error
        assert [name for text, name in shown.items() if text in str(said)] == [error.__name__]


def test_what_postgres_says_is_on_the_page() -> None:
    psycopg = pytest.importorskip("psycopg")
    from callboard._store.postgres_session import translate

    shown = pages.pairs(pages.table(PAGE, "message"), "message", "error")
    raised = [
        psycopg.errors.UndefinedColumn("x"),
        psycopg.errors.UndefinedTable("x"),
        psycopg.errors.InsufficientPrivilege("x"),
        psycopg.errors.DuplicateTable("x"),
        psycopg.errors.InvalidSchemaName("x"),
        psycopg.errors.DeadlockDetected("x"),
        psycopg.errors.InvalidPassword("x"),
        psycopg.errors.DiskFull("x"),
        psycopg.errors.ReadOnlySqlTransaction("x"),
        psycopg.OperationalError("sorry, too many clients already"),
        psycopg.OperationalError("connection refused"),
    ]
    for error in raised:
        said = translate(error, "database x")
        assert [name for text, name in shown.items() if text in str(said)] == [type(said).__name__]


@pytest.mark.parametrize("message", pages.column(pages.table(PAGE, "message"), "message"))
def test_every_message_of_the_page_is_one_of_the_engine(message: str) -> None:
    stores = (pages.ROOT / "engine/callboard/_store").glob("*.py")

    assert any(message in file.read_text(encoding="utf-8") for file in stores)
