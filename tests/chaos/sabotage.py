"""Break a process on purpose, to show that the ledger would tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from tests.chaos import database, work
from tests.ledger import Came

from callboard import Done, Outcome
from callboard._store.interface import Session
from callboard._store.opening import open_store
from callboard._store.task_table import Held

SABOTAGES = ("effects", "tokens")


def commit(what: str, url: str) -> None:
    """Have this process do wrong.

    Args:
        what: `effects` are committed beside `ctx.complete`, before the outcome; or `tokens` are not compared.
        url: The engine's database.
    """
    match what:
        case "effects":
            _commit_effects_beside(url)
        case "tokens":
            _believe_every_token(url)
        case _:
            raise ValueError(what)


def _commit_effects_beside(url: str) -> None:
    def effect(act: work.Act) -> Outcome:
        with database.transaction(url) as connection:
            database.execute(connection, "INSERT INTO effect VALUES (?, ?)", act.text, act.ref)
            connection.execute("COMMIT")
        act.end(Came.DONE, completed=True)
        return Done()

    work.SORTS["effect"] = effect


def _believe_every_token(url: str) -> None:
    store: Any = open_store(url, "NORMAL")
    table = type(store.tasks)
    hold = table.hold

    def believing(tasks: Any, session: Session, ids: Sequence[int], *, wait: bool) -> dict[int, Held | None]:
        held: dict[int, Held | None] = dict.fromkeys(ids, Held(mock.ANY, 1, 0))
        real = hold(tasks, session, ids, wait=wait)
        return held | {task_id: row and row._replace(token=mock.ANY) for task_id, row in real.items()}

    table.hold = believing
