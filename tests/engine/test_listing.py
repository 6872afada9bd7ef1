"""Listings of live rows: all that are asked for, whatever is in their columns, and no others are read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.engine.either_store import callboard_database
from tests.engine.rows import is_postgres, sql, write_by_hand

from callboard import Engine, Task
from callboard._store import listing
from callboard.stores import Row, Session

__all__ = ["callboard_database"]

KINDS = ("acme.Common", "acme.Other")
STATES = ("pending", "running", "deferred", "of a newer build")
GROUP = b"\x01"


class Explaining:
    """A session that keeps how SQLite goes about each statement."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.steps: list[str] = []

    def rows(self, statement: str, params: Sequence[Any] = ()) -> list[Row]:
        self.steps += [row[3] for row in self._session.rows(f"EXPLAIN QUERY PLAN {statement}", params)]
        return self._session.rows(statement, params)


@pytest.fixture
def engine(make_engine: Callable[..., Engine], callboard_database: str) -> Engine:
    """Two rows of each kind in each state, parked and alone or not, as no engine would write many of them."""
    made = make_engine()
    made.migrate()
    for number, (state, parked, alone, kind, group_id) in enumerate(
        itertools.product(STATES, (0, 1, 2), (0, 1, 2), KINDS, (None, GROUP))
    ):
        write_by_hand(
            callboard_database,
            kind,
            b"%d" % number,
            state=state,
            parked=parked,
            alone=alone,
            group_id=group_id,
            owner=7 if state == "running" else None,
        )
    return made


@pytest.mark.parametrize("nearby", [1, 50, 1_000])
def test_listings_by_kind_group_and_state_have_every_row_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, nearby: int
) -> None:
    every = engine.tasks()
    monkeypatch.setattr(listing, "NEARBY", nearby)
    for kind, group_id, state, limit, after_id in itertools.product(
        (None, *KINDS, "acme.Absent"), (None, GROUP), (None, *STATES), (5, 1_000), (0, 70)
    ):
        wanted = [
            task
            for task in every
            if task.id > after_id
            and kind in (None, task.kind)
            and group_id in (None, task.group_id)
            and state in (None, task.state)
        ]
        found = engine.tasks(kind=kind, group_id=group_id, state=state, limit=limit, after_id=after_id)
        assert found == wanted[:limit], (kind, group_id, state, limit, after_id)


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "acme.Absent"},
        {"kind": "acme.Absent", "state": "pending"},
        {"kind": "acme.Absent", "state": "deferred"},
        {"state": "running"},
        {"state": "running", "group_id": GROUP},
        {"state": "deferred"},
        {"state": "unheard of"},
    ],
    ids=str,
)
def test_a_rare_kind_or_state_is_found_by_the_indexes(
    engine: Engine, callboard_database: str, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    if is_postgres(callboard_database):
        pytest.skip("its planner decides by statistics: tests/engine/test_postgres_plans.py counts pages")
    monkeypatch.setattr(listing, "NEARBY", 1)
    with engine._core.reading() as session:
        explaining: Any = Explaining(session)
        given = {"kind": None, "group_id": None, "state": None, **asked}
        listing.tasks(explaining, **given, limit=1_000, after_id=0)
    reads = [step for step in explaining.steps if "callboard_task" in step]
    # The first by its ids, the others by ids or an index that has no row of another state, or of another kind.
    assert reads[0] == "SEARCH callboard_task USING INTEGER PRIMARY KEY (rowid>?)"
    assert reads[1] == "SEARCH callboard_task USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
    assert len(reads) >= 4
    for step in reads[2:]:
        assert " INDEX callboard_task_" in step or step.endswith("USING INTEGER PRIMARY KEY (rowid=?)"), reads
    for index in ("due", "deferred"):
        for step in reads:
            if f"callboard_task_{index} " in f"{step} " and "kind" in asked:
                assert "(kind=?" in step


def test_what_an_engine_writes_is_in_no_index_of_its_own_for_listings(
    make_engine: Callable[..., Engine], callboard_database: str
) -> None:
    """So that the index costs nothing."""
    from tests.engine.acting import receipt

    engine = make_engine()
    engine.enqueue(receipt("hello"), allow_unknown=True)
    [task] = engine.tasks()
    assert isinstance(task, Task)
    odd = next(part.rows for part in listing._PARTS if part.name == "odd")
    assert sql(callboard_database, f"SELECT id FROM callboard_task WHERE {odd}") == []
