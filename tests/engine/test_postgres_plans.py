"""What claims read on PostgreSQL, counted in pages, where the planner knows the table only as it was when empty.

That is how queues are: empty when they are analyzed, and full a second later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from playhouse.pool import PooledPostgresqlDatabase
from tests.postgres import postgres_url

from callboard._actors.claiming import BATCH, PARK_BATCH
from callboard._store import listing
from callboard._store.postgres import PostgresStore, open_postgres
from callboard.stores import LOOK, NewTask, Row, Session

__all__ = ["postgres_url"]

KIND = "acme.Note"
NOW_NS = 10**18
GROUPS = [b"%d" % number for number in range(10)]


class Counting:
    """A session that counts the pages that its statements read, by having each explained and undone first.

    Attributes:
        pages: how many were read.
        indexes: the indexes that were used.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.pages = 0
        self.indexes: set[str] = set()

    def _explain(self, sql: str, params: Any) -> None:
        self._session.run("SAVEPOINT explained")
        [(text,)] = self._session.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
        self._session.run("ROLLBACK TO explained")
        [found] = json.loads(text) if isinstance(text, str) else text
        self.pages += found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"]
        plans = [found["Plan"]]
        while plans:
            plan = plans.pop()
            plans += plan.get("Plans", ())
            self.indexes.add(plan.get("Index Name", ""))

    def rows(self, sql: str, params: Any = ()) -> list[Row]:
        self._explain(sql, params)
        return self._session.rows(sql, params)

    def run(self, sql: str, params: Any = ()) -> int:
        self._explain(sql, params)
        return self._session.run(sql, params)


@pytest.fixture(params=["its own connections", "a pool of the host's"])
def store(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    hosts = request.param == "a pool of the host's"
    pool = PooledPostgresqlDatabase(postgres_url, prefer_psycopg3=True)  # type: ignore[no-untyped-call]
    store = open_postgres(pool if hosts else postgres_url)
    store.prepare(0)
    with store.transaction() as session:
        session.run("ANALYZE callboard_task")
    with store.thread():  # as the scheduler's does
        yield store
    store.close()


def test_the_settings_of_a_hosts_connections_stay_the_hosts(postgres_url: str) -> None:
    pool = PooledPostgresqlDatabase(postgres_url, prefer_psycopg3=True)  # type: ignore[no-untyped-call]
    store = open_postgres(pool)
    store.prepare(0)
    with store.thread():
        with store.transaction() as session:
            assert session.rows("SHOW enable_seqscan") == [("off",)]
        with store.reading() as session:
            assert session.rows("SHOW enable_seqscan") == [("on",)]
    with store.transaction() as session:  # of one of the host's threads
        assert session.rows("SHOW enable_seqscan") == [("on",)]
    pool.close_all()  # type: ignore[no-untyped-call]


def enqueue(store: PostgresStore, numbers: range) -> None:
    new = []
    for number in numbers:
        identity = hashlib.sha256(b"%d" % number).digest()
        group_id = GROUPS[number % len(GROUPS)]
        policy = (20, 0, NOW_NS * 2, number, None, None, None, None)
        new.append(NewTask(KIND, group_id, identity, b"\0", identity, *policy))
    with store.transaction() as session:
        store.tasks.enqueue_many(session, new, (), [])


@pytest.mark.parametrize("among_others", [False, True])
def test_a_claim_reads_as_much_of_a_long_table_as_of_a_short_one(store: PostgresStore, among_others: bool) -> None:
    store.tasks._among_others_until_s = float("inf") if among_others else 0.0
    pages = []
    for numbers in (range(2 * BATCH), range(2 * BATCH, 20 * BATCH)):
        enqueue(store, numbers)
        with store.transaction() as session:
            counting: Any = Counting(session)
            assert len(store.tasks.due(counting, [KIND], 1, NOW_NS, BATCH, grouped_only=False)) == BATCH
        pages.append(counting.pages)

    assert pages[1] < 1.5 * pages[0], pages


def test_a_claim_beside_groups_reads_as_much_of_a_long_table_as_of_a_short_one(store: PostgresStore) -> None:
    pages = []
    for numbers in (range(2 * LOOK), range(2 * LOOK, 4 * LOOK)):
        enqueue(store, numbers)
        with store.transaction() as session:
            counting: Any = Counting(session)
            assert store.tasks.due_beside(counting, KIND, GROUPS, 1, NOW_NS, BATCH) == []
            assert len(store.tasks.due_beside(counting, KIND, GROUPS[1:], 1, NOW_NS, 32)) == 32
        pages.append(counting.pages)

    assert pages[1] < 1.5 * pages[0], pages


@pytest.mark.parametrize("step", ["still_running", "hold", "spare", "hand_back"])
def test_runs_are_found_by_their_ids_and_not_among_all_that_run(store: PostgresStore, step: str) -> None:
    """The index of running rows seems short, as none ran when it was analyzed: 60 ms for two thousand."""
    enqueue(store, range(2 * BATCH))
    options: dict[str, dict[str, Any]] = {"spare": {"node_id": 1}, "hold": {"wait": False}}
    with store.transaction() as session:
        ids = [row[0] for row in session.rows("SELECT id FROM callboard_task")]
        store.tasks.start(session, ids, NOW_NS, 1)
        counting: Any = Counting(session)
        getattr(store.tasks, step)(counting, ids[:BATCH], **options.get(step, {}))

    assert "callboard_task_pkey" in counting.indexes
    assert "callboard_task_running" not in counting.indexes


def test_parking_reads_each_row_a_few_times(store: PostgresStore) -> None:
    """With `id IN (SELECT ...)` it read as many as there are, for each: 20,000 rows took a minute."""
    count = 5_000
    enqueue(store, range(count))
    with store.transaction() as session:
        counting: Any = Counting(session)
        store.tasks.park_more(counting, KIND, GROUPS, NOW_NS, PARK_BATCH)
        assert session.rows("SELECT count(*) FROM callboard_task WHERE parked = 1") == [(count,)]

    assert counting.pages < 30 * count


def test_a_listing_of_a_rare_kind_reads_few_pages(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "NEARBY", 10)
    enqueue(store, range(10_000))
    with store.transaction() as session:
        for asked in ({"kind": "acme.Absent"}, {"state": "deferred"}, {"state": "running"}):
            counting: Any = Counting(session)
            found = listing.tasks(counting, asked.get("kind"), None, asked.get("state"), 100, 0)
            assert found == []
            assert counting.pages < 50, (asked, counting.pages)
