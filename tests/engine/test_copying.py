"""`copy` moves every row as it is, may be repeated and interrupted, and refuses what it would spoil."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.acting import MakeEngine, Plugin, Scripted, receipt, receipts
from tests.engine.rows import path_of
from tests.engine.rows import sql as sqlite_sql
from tests.postgres import new_database, postgres_url, psycopg
from tests.postgres import sql as postgres_sql

from callboard import ConfigurationError, Engine, StoreError
from callboard._store.copying import CopiedTable, Progress, copy
from callboard._store.copying_tables import (
    DEAD_TASK,
    GROUP,
    INBOX,
    MEMBER,
    PENDING_REMOVE,
    TABLES,
    TASK,
    Checksum,
    Table,
)
from callboard._store.opening import open_store
from callboard.cli._database import open_for_reading

__all__ = ["postgres_url"]

ODD = "a\"b'c\\d\r\n\t☃ 𝄞 \u202e e\u0301 %s ?1 \x01 {}"
BIG, SMALL = 2**63 - 1, -(2**63)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'source.db'}"


@pytest.fixture
def other_sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'other.db'}"


@pytest.fixture
def other_postgres_url(postgres_url: str) -> Iterator[str]:
    with new_database() as url:
        yield url


ACROSS = ["sqlite to postgresql", "postgresql to sqlite"]
ALIKE = ["sqlite to sqlite", "postgresql to postgresql"]


@pytest.fixture(params=ACROSS)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Source, migrated, and target."""
    source, target = request.param.split(" to ")
    urls = {"sqlite": ["sqlite_url", "other_sqlite_url"], "postgresql": ["postgres_url", "other_postgres_url"]}
    names = [urls[source].pop(0), urls[target].pop(0)]
    found = [request.getfixturevalue(name) for name in names]
    migrate(found[0])
    return found[0], found[1]


of_every_kind = pytest.mark.parametrize("pair", ACROSS + ALIKE, indirect=True)


def migrate(url: str) -> None:
    store = open_store(url, "FULL")
    store.prepare(0)
    store.close()


def run_copy(source: str, target: str, **options: Any) -> dict[str, CopiedTable]:
    reading, writing = open_for_reading(source), open_store(target, "FULL")
    try:
        return {table.table: table for table in copy(reading, writing, now_ns=1, **options)}
    finally:
        reading.close()
        writing.close()


def sql(url: str, statement: str, *params: Any) -> list[Any]:
    if url.startswith("sqlite"):
        return sqlite_sql(url, statement, *params)
    return postgres_sql(url, statement.replace("?", "%s"), *params)


def write(url: str, table: Table, rows: list[tuple[Any, ...]]) -> None:
    marks = ", ".join("?" * len(table.types))
    statement = f"INSERT INTO {table.name} ({', '.join(table.types)}) VALUES ({marks})"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_of(url))) as connection, connection:
            connection.executemany(statement, rows)
    else:
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)


def read(url: str, table: Table) -> list[tuple[Any, ...]]:
    rows = sql(url, f"SELECT {', '.join(table.types)} FROM {table.name}")
    flags = [kind == "boolean" for kind in table.types.values()]
    plain = [tuple(bool(v) if flag else v for v, flag in zip(row, flags, strict=True)) for row in rows]
    return sorted(plain, key=lambda row: row[: len(table.key)])


def everything(url: str) -> dict[str, Any]:
    return {table.name: read(url, table) for table in TABLES}


def values(table: Table, **given: Any) -> tuple[Any, ...]:
    """Return a row with these values, and ordinary ones elsewhere."""
    usual = {"bigint": 1, "text": "text", "bytea": b"bytes", "double precision": 1.5, "boolean": True}
    row = {name: usual[kind] for name, kind in table.types.items()} | given
    return tuple(row.values())


def task(number: int, **given: Any) -> tuple[Any, ...]:
    return values(
        TASK, **({"id": number, "identity": b"%032d" % number, "state": "pending", "owner": None} | given)
    )


FILLED = {
    GROUP: [
        values(GROUP, group_id=b"\x00\xff", own_inbox_id=ODD),
        values(GROUP, group_id=b"b", own_inbox_id=None),
    ],
    MEMBER: [values(MEMBER, inbox_id=ODD), values(MEMBER, inbox_id="", is_super_admin=False)],
    PENDING_REMOVE: [values(PENDING_REMOVE, message_id=b"", requested_at_ns=BIG)],
    DEAD_TASK: [
        values(DEAD_TASK, id=7, last_error=ODD, reason=ODD, died_at_ns=BIG, backoff_factor=None),
        values(DEAD_TASK, id=8, group_id=None, last_error=None, origin=None, max_attempts=None),
    ],
    TASK: [
        task(1, kind=ODD, origin=ODD, last_error=ODD, data=bytes(range(256)), group_id=None),
        task(2, next_attempt_at_ns=BIG, created_at_ns=SMALL, token=BIG, requests=BIG, attempts=SMALL),
        task(3, max_attempts=None, initial_backoff_ns=None, backoff_factor=None, max_backoff_ns=None),
        task(4, pulled_in_ns=None, last_attempted_at_ns=None, origin=None, last_error=None, state="deferred"),
        task(5, backoff_factor=1e308, data=b"", kind="", parked=1, cancelled=3, alone=2, crashes=4, outages=9),
        task(6, backoff_factor=0.1, data=b"x" * 100_000),
    ],
}


def fill(url: str) -> None:
    for table, rows in FILLED.items():
        write(url, table, rows)


@of_every_kind
def test_every_value_survives(pair: tuple[str, str]) -> None:
    source, target = pair
    fill(source)

    copied = run_copy(source, target)

    assert everything(target) == everything(source) == {table.name: sorted(FILLED[table]) for table in TABLES}
    assert {name: (table.rows, table.written) for name, table in copied.items() if name != INBOX.name} == {
        table.name: (len(rows), len(rows)) for table, rows in FILLED.items()
    }


def test_the_columns_are_those_of_both_databases(sqlite_url: str, postgres_url: str) -> None:
    migrate(sqlite_url)
    migrate(postgres_url)
    for table in (*TABLES, INBOX):
        found = postgres_sql(
            postgres_url,
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s",
            table.name,
        )
        assert dict(found) == table.types
    for table in TABLES:
        names = {row[1] for row in sqlite_sql(sqlite_url, f"PRAGMA table_info({table.name})")}
        assert names - {"dormant"} == set(table.types)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
OF_KIND: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(SMALL, BIG) | st.integers(-2, 3),
    "text": TEXTS,
    "bytea": st.binary(max_size=8),
    "double precision": st.floats(allow_nan=False) | st.just(-0.0),
    "boolean": st.booleans(),
}
MAY_BE_NULL = {
    "group_id", "max_attempts", "initial_backoff_ns", "backoff_factor", "max_backoff_ns", "origin", "last_error",
    "last_attempted_at_ns", "pulled_in_ns", "owner", "own_inbox_id",
}  # fmt: skip


def rows_of(table: Table) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    columns = [
        st.none() | OF_KIND[kind] if name in MAY_BE_NULL and name not in table.key else OF_KIND[kind]
        for name, kind in table.types.items()
    ]
    place = list(table.types).index("identity") if table is TASK else None
    return st.lists(
        st.tuples(*columns),
        max_size=5,
        unique_by=(lambda row: row[: len(table.key)], lambda row: row if place is None else row[place]),
    )


def without_nul(value: Any) -> Any:
    return value.replace("\0", "\\x00") if isinstance(value, str) else value


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_row_goes_to_postgresql_and_back(
    sqlite_url: str, other_sqlite_url: str, postgres_url: str, data: st.DataObject
) -> None:
    for url in (sqlite_url, other_sqlite_url, postgres_url):
        migrate(url)
        for name in ("callboard_stamp", *(table.name for table in TABLES)):
            sql(url, f"DELETE FROM {name}")
    expected = {}
    for table in TABLES:
        rows = data.draw(rows_of(table))
        write(sqlite_url, table, rows)
        owner = list(table.types).index("owner") if table is TASK else None
        expected[table.name] = sorted(
            (
                tuple(
                    -abs(value) if place == owner and value is not None else without_nul(value)
                    for place, value in enumerate(row)
                )
                for row in read(sqlite_url, table)
            ),
            key=lambda row: row[: len(table.key)],
        )

    run_copy(sqlite_url, postgres_url)
    assert everything(postgres_url) == expected
    run_copy(postgres_url, other_sqlite_url)
    assert everything(other_sqlite_url) == expected
    assert all(table.written == 0 for table in run_copy(sqlite_url, postgres_url).values())


def test_a_text_that_is_not_utf_8_is_written_out_for_postgresql_and_kept_for_sqlite(
    sqlite_url: str, other_sqlite_url: str, postgres_url: str
) -> None:
    migrate(sqlite_url)
    write(sqlite_url, TASK, [task(1)])
    write(sqlite_url, MEMBER, [values(MEMBER)])
    sqlite_sql(sqlite_url, "UPDATE callboard_task SET origin = CAST(x'41ff00c3' AS TEXT)")
    sqlite_sql(sqlite_url, "UPDATE callboard_group_member SET inbox_id = CAST(x'ed00ff' AS TEXT)")
    for target in (postgres_url, other_sqlite_url):
        assert [sum(table.written for table in run_copy(sqlite_url, target).values()) for _ in range(2)] == [2, 0]

    assert postgres_sql(postgres_url, "SELECT origin FROM callboard_task") == [("A\\xff\\x00\\xc3",)]
    assert postgres_sql(postgres_url, "SELECT inbox_id FROM callboard_group_member") == [("\\xed\\x00\\xff",)]
    assert sqlite_sql(other_sqlite_url, "SELECT CAST(origin AS BLOB) FROM callboard_task") == [(b"A\xff\0\xc3",)]
    assert sqlite_sql(other_sqlite_url, "SELECT CAST(inbox_id AS BLOB) FROM callboard_group_member") == [
        (b"\xed\0\xff",)
    ]


def test_nan_becomes_null_in_sqlite(postgres_url: str, sqlite_url: str, other_postgres_url: str) -> None:
    migrate(postgres_url)
    write(postgres_url, TASK, [task(1, backoff_factor=float("nan")), task(2, backoff_factor=float("inf"))])
    for target in (sqlite_url, other_postgres_url):
        run_copy(postgres_url, target)
        assert run_copy(postgres_url, target)[TASK.name].written == 0
    assert sqlite_sql(sqlite_url, "SELECT backoff_factor FROM callboard_task ORDER BY id") == [
        (None,),
        (float("inf"),),
    ]


def test_one_schema_of_a_database_is_copied_to_another(postgres_url: str) -> None:
    source, target = (f"{postgres_url}&options=-csearch_path%3D{name}" for name in ("one", "two"))
    sql(postgres_url, "CREATE SCHEMA one")
    sql(postgres_url, "CREATE SCHEMA two")
    migrate(source)
    fill(source)

    run_copy(source, target)

    assert everything(target) == everything(source)
    with pytest.raises(ConfigurationError, match="both source and target"):
        run_copy(source, source)


@of_every_kind
def test_a_second_copy_writes_what_is_missing_and_nothing_else(pair: tuple[str, str]) -> None:
    source, target = pair
    fill(source)
    run_copy(source, target)
    sql(target, "DELETE FROM callboard_task WHERE id = 2")
    sql(target, "DELETE FROM callboard_group_member WHERE inbox_id = ''")
    write(source, TASK, [task(60)])

    copied = run_copy(source, target)

    assert {name: table.written for name, table in copied.items() if table.written} == {
        TASK.name: 2,
        MEMBER.name: 1,
    }
    assert everything(target) == everything(source)


def test_the_source_is_left_as_it_is(sqlite_url: str, postgres_url: str, other_postgres_url: str) -> None:
    migrate(sqlite_url)
    fill(sqlite_url)
    before = Path(path_of(sqlite_url)).read_bytes()
    run_copy(sqlite_url, postgres_url)
    assert Path(path_of(sqlite_url)).read_bytes() == before

    reading = open_for_reading(postgres_url)
    with reading.reading() as session, pytest.raises(StoreError, match="read-only"):
        session.run("DELETE FROM callboard_task")


@of_every_kind
def test_no_id_is_given_twice(pair: tuple[str, str], make_engine: MakeEngine) -> None:
    source, target = pair
    write(source, TASK, [task(1), task(900)])
    write(source, DEAD_TASK, [values(DEAD_TASK, id=50)])
    if source.startswith("sqlite"):
        write(source, TASK, [task(1000)])
        sql(source, "DELETE FROM callboard_task WHERE id = 1000")
    else:
        sql(source, "SELECT setval(pg_get_serial_sequence('callboard_task', 'id'), 1000)")

    run_copy(source, target)

    engine = make_engine(Plugin(receipts(Scripted())), database=target)
    task_id = engine.enqueue(receipt("new")).task_id
    assert task_id == 1001
    engine.cancel(task_id)
    assert [dead.id for dead in engine.dead_tasks()] == [50, 51]


def test_what_was_running_is_rescued_by_the_first_engine(
    sqlite_url: str, postgres_url: str, make_engine: MakeEngine
) -> None:
    scripted = Scripted()
    before = make_engine(Plugin(receipts(scripted)), database=sqlite_url)
    for text in ("was running", "was cancelled"):
        before.enqueue(receipt(text))
    before.stop()
    sqlite_sql(sqlite_url, "UPDATE callboard_task SET state = 'running', owner = 1, token = 5")
    sqlite_sql(sqlite_url, "UPDATE callboard_task SET cancelled = 1 WHERE id = 2")

    run_copy(sqlite_url, postgres_url)

    assert postgres_sql(postgres_url, "SELECT state, owner FROM callboard_task") == [("running", -1)] * 2
    # Its node has the number that the one had which is gone.
    with make_engine(Plugin(receipts(scripted)), database=postgres_url) as engine:
        assert [node.id for node in engine.nodes()] == [1]
        assert engine.wait_idle(timeout=20)
        assert [(dead.task_id, dead.reason) for dead in engine.dead_tasks()] == [(2, "cancelled")]
        assert engine.tasks() == []
    assert scripted.played == ["was running"]


def test_accepted_rows_go_to_postgresql(
    postgres_url: str, other_postgres_url: str, make_engine: MakeEngine
) -> None:
    engine = make_engine(Plugin(receipts(Scripted())), database=postgres_url)
    engine.migrate()
    with psycopg.connect(postgres_url) as connection:
        engine.enqueue(receipt("accepted"), connection=connection)
    engine.stop()

    assert run_copy(postgres_url, other_postgres_url)[INBOX.name].written == 1

    scripted = Scripted()
    with make_engine(Plugin(receipts(scripted)), database=other_postgres_url) as moved:
        assert moved.wait_idle(timeout=20)
    assert scripted.played == ["accepted"]


# Refusals


def refused(source: str, target: str, message: str, **options: Any) -> None:
    with pytest.raises(StoreError, match=message):
        run_copy(source, target, **options)


def is_untouched(url: str) -> bool:
    if url.startswith("sqlite"):
        return not Path(path_of(url)).exists()
    return postgres_sql(url, "SELECT 1 FROM pg_tables WHERE tablename LIKE 'callboard%'") == []


def test_a_source_at_work_is_refused_by_node(pair: tuple[str, str], make_engine: MakeEngine) -> None:
    source, target = pair
    with make_engine(database=source) as engine:
        [node] = engine.nodes()
        refused(source, target, rf"in use by node {node.id} \(process {node.pid} on .*\); stop it first")
        assert is_untouched(target)
    run_copy(source, target)


def test_a_node_that_is_gone_is_said_to_be(pair: tuple[str, str]) -> None:
    source, target = pair
    write(source, TASK, [task(1, state="running", owner=41)])
    sql(
        source,
        "INSERT INTO callboard_node (id, host, pid, version, kinds, lease_ns, started_at_ns, heartbeat_at_ns)"
        " VALUES (41, 'elsewhere', 17, '0', '', 1, 1, 1)",
    )
    refused(source, target, r"node 41 \(process 17 on elsewhere\).*say --gone 41")
    refused(source, target, "node 41", gone=[40])
    assert is_untouched(target)

    run_copy(source, target, gone=[41])

    assert sql(target, "SELECT owner FROM callboard_task") == [(-41,)]


def test_a_target_at_work_is_refused(pair: tuple[str, str], make_engine: MakeEngine) -> None:
    source, target = pair
    with make_engine(database=target):
        refused(source, target, r"in use by node 1 \(process \d+ on .*\); stop it first$")


@pytest.mark.parametrize("table", FILLED, ids=lambda table: table.name)
def test_a_target_with_other_rows_is_refused(pair: tuple[str, str], table: Table) -> None:
    source, target = pair
    migrate(target)
    write(target, table, FILLED[table])
    write(source, TASK, [task(90)])
    before = everything(target)

    refused(source, target, f"has rows in {table.name} that no copy has written; give an empty database")

    assert everything(target) == before
    assert sql(target, "SELECT * FROM callboard_stamp") == []


def test_accepted_rows_of_the_target_are_other_rows(sqlite_url: str, postgres_url: str) -> None:
    for url in (sqlite_url, postgres_url):
        migrate(url)
    row = values(INBOX)
    write(postgres_url, INBOX, [row])
    refused(sqlite_url, postgres_url, "has rows in callboard_inbox")
    postgres_sql(postgres_url, "DELETE FROM callboard_inbox")
    run_copy(sqlite_url, postgres_url)
    write(postgres_url, INBOX, [row])
    refused(sqlite_url, postgres_url, r"has 1 row\(s\) in callboard_inbox that")


def test_accepted_rows_have_no_place_in_sqlite(postgres_url: str, sqlite_url: str) -> None:
    migrate(postgres_url)
    write(postgres_url, INBOX, [values(INBOX)])
    refused(
        postgres_url, sqlite_url, "tasks in callboard_inbox, for which the target has no place; start an engine"
    )
    assert is_untouched(sqlite_url)


@pytest.mark.parametrize("change", ["more", "other"])
def test_a_copy_that_was_written_to_is_refused(pair: tuple[str, str], change: str) -> None:
    source, target = pair
    fill(source)
    run_copy(source, target)
    if change == "more":
        write(target, TASK, [task(70)])
    else:
        sql(target, "UPDATE callboard_task SET requests = 2 WHERE id = 3")
    write(source, DEAD_TASK, [values(DEAD_TASK, id=99)])
    before = everything(target)

    refused(source, target, r"has (1 row\(s\)|a row) in callboard_task that")

    assert everything(target) == before


@of_every_kind
@pytest.mark.parametrize("works", ["started", "run_due"])
def test_a_copy_that_an_engine_has_worked_on_is_refused(
    pair: tuple[str, str], make_engine: MakeEngine, works: str
) -> None:
    source, target = pair
    write(source, TASK, [task(1)])
    run_copy(source, target)
    engine = make_engine(database=target)
    if works == "started":
        engine.start()
    else:
        engine.run_due()
    engine.stop()
    sql(target, "DELETE FROM callboard_task")

    refused(source, target, "an engine has worked on .* since it was copied to.*would run again")

    assert read(target, TASK) == []


def test_an_empty_target_may_have_been_used_before(pair: tuple[str, str], make_engine: MakeEngine) -> None:
    source, target = pair
    fill(source)
    with make_engine(database=target):
        pass
    run_copy(source, target)
    assert run_copy(source, target)[TASK.name].written == 0


def test_source_and_target_are_two(sqlite_url: str, postgres_url: str, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    for url in (sqlite_url, postgres_url):
        migrate(url)
    link.symlink_to(path_of(sqlite_url))
    for source, target in (
        (sqlite_url, sqlite_url),
        (f"sqlite:///{link}", sqlite_url),
        (postgres_url, postgres_url),
    ):
        with pytest.raises(ConfigurationError, match="is both source and target"):
            run_copy(source, target)


# What happens meanwhile


def meanwhile(step: str, act: Callable[[], Any]) -> Callable[[Progress], None]:
    """Return a `progress` that acts once, when a step has come to the tasks."""
    acted: list[Progress] = []

    def progress(progress: Progress) -> None:
        if (progress.step, progress.table) == (step, TASK.name) and not acted:
            acted.append(progress)
            act()

    return progress


@pytest.mark.parametrize(
    "change",
    ["UPDATE callboard_task SET origin = 'other' WHERE id = 3", "DELETE FROM callboard_task WHERE id = 3"],
)
@pytest.mark.parametrize("side", [0, 1])
def test_sides_that_differ_in_the_end_are_an_error(pair: tuple[str, str], side: int, change: str) -> None:
    fill(pair[0])
    act = meanwhile("copy", lambda: sql(pair[side], change))
    refused(
        *pair, "callboard_task is not the same on both sides: .* copy again to an empty database", progress=act
    )


@pytest.mark.parametrize("side", [0, 1])
def test_an_engine_that_works_meanwhile_is_an_error(
    pair: tuple[str, str], make_engine: MakeEngine, side: int
) -> None:
    def work() -> None:
        with make_engine(database=pair[side]):
            pass

    refused(*pair, "an engine has worked on", progress=meanwhile("copy", work))


def test_one_that_stays_is_named(pair: tuple[str, str], make_engine: MakeEngine) -> None:
    refused(*pair, "in use by node", progress=meanwhile("copy", lambda: make_engine(database=pair[0]).start()))


@of_every_kind
def test_an_exception_in_the_middle_leaves_a_copy_to_go_on_with(pair: tuple[str, str]) -> None:
    source, target = pair
    write(source, TASK, [task(number) for number in range(1, 2_501)])

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_copy(source, target, progress=meanwhile("copy", interrupt))

    assert len(read(target, TASK)) == 1_000
    assert run_copy(source, target)[TASK.name] == (TASK.name, 2_500, 1_500, checksum(read(source, TASK)))
    assert everything(target) == everything(source)


def checksum(rows: list[tuple[Any, ...]]) -> str:
    of = Checksum()
    for row in reversed(rows):  # the order is none of its business
        of.add(row)
    return of.hash


def test_large_payloads_travel_a_few_at_a_time(sqlite_url: str, postgres_url: str) -> None:
    migrate(sqlite_url)
    write(sqlite_url, TASK, [task(number, data=b"x" * 1_500_000) for number in range(1, 8)])
    seen: list[int] = []
    run_copy(sqlite_url, postgres_url, progress=lambda at: seen.append(at.rows) if at.step == "copy" else None)
    assert seen[-3:] == [3, 6, 7]


def test_an_engine_goes_on_where_the_other_stopped(
    sqlite_url: str, postgres_url: str, make_engine: MakeEngine
) -> None:
    scripted = Scripted()
    plugin = Plugin(receipts(scripted))
    before: Engine = make_engine(plugin, database=sqlite_url)
    before.enqueue_many([receipt(str(number), b"group") for number in range(20)])
    before.group(b"group").created("me", members=["me", "you"], super_admins=["me"], consent="allowed")
    state = before.group(b"group").state()
    before.stop()

    run_copy(sqlite_url, postgres_url)

    after = make_engine(plugin, database=postgres_url)
    assert after.group(b"group").state() == state
    assert after.run_due() == 20
    assert len(scripted.played) == 20
