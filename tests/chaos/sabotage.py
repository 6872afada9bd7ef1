"""Break a process on purpose, to show that the ledger would tell."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from unittest import mock

from tests.chaos import work
from tests.ledger import Came

from callboard import Done, Outcome
from callboard._store.interface import Session
from callboard._store.sqlite_tasks import SqliteTasks
from callboard._store.task_table import Held

SABOTAGES = ("effects", "tokens")


def commit(what: str, database: str) -> None:
    """Have this process do wrong.

    Args:
        what: `effects` are committed beside `ctx.complete`, before the outcome; or `tokens` are not compared.
        database: The engine's file.
    """
    match what:
        case "effects":
            _commit_effects_beside(database)
        case "tokens":
            _believe_every_token()
        case _:
            raise ValueError(what)


def _commit_effects_beside(database: str) -> None:
    def effect(act: work.Act) -> Outcome:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("INSERT INTO effect VALUES (?, ?)", (act.text, act.ref))
        act.end(Came.DONE, completed=True)
        return Done()

    work.SORTS["effect"] = effect


def _believe_every_token() -> None:
    still_running = SqliteTasks.still_running

    def believing(tasks: SqliteTasks, session: Session, ids: Sequence[int]) -> dict[int, Held]:
        held = dict.fromkeys(ids, Held(mock.ANY, 1, 0))
        real = still_running(tasks, session, ids)
        return held | {task_id: row._replace(token=mock.ANY) for task_id, row in real.items()}

    SqliteTasks.still_running = believing  # type: ignore[method-assign, assignment]
