"""A plugin's tables in the engine's database, on both: made and changed once, refused alone, never lost."""

import importlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peewee
import pytest
import sqlalchemy
from tests.engine.acting import (
    MakeEngine,
    Plugin,
    Scripted,
    eventually,
    logged,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.either_store import callboard_database
from tests.engine.rows import is_postgres, path_of, sql

from callboard import (
    Engine,
    GroupCreated,
    Migration,
    PluginError,
    StoreError,
    TaskContext,
    Transaction,
    read_migrations,
)
from callboard._store.sqlite import SqliteStore, open_sqlite

__all__ = ["callboard_database"]

NOTES = "CREATE TABLE acme_note (text TEXT)"
ADDED = "ALTER TABLE acme_note ADD COLUMN author TEXT"
RECORDS = (
    "SELECT name, number, title, compatible_with FROM callboard_migration WHERE name <> 'callboard' ORDER BY 1, 2"
)


def steps(*scripts: str, compatible_with: int | None = None) -> list[Migration]:
    """Return a series of these scripts, the same for both databases."""
    return [
        Migration(database, number, f"step {number}", script, compatible_with or number)
        for number, script in enumerate(scripts, 1)
        for database in ("sqlite", "postgres")
    ]


def acme(*scripts: str, handler: Any = None, name: str = "acme", **hooks: Any) -> Plugin:
    """Return a plugin with these migrations."""
    kinds = [receipts(handler)] if handler else []
    return Plugin(*kinds, name=name, migrations=lambda: steps(*scripts), **hooks)


def problems(engine: Engine) -> dict[str, dict[str, str]]:
    return {plugin.name: plugin.problems for plugin in engine.health().plugins if plugin.problems}


def notes(url: str) -> list[Any]:
    return sql(url, "SELECT text FROM acme_note ORDER BY text")


def tables(url: str) -> set[str]:
    catalogue = (
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        if is_postgres(url)
        else "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'sqlite_sequence'"
    )
    return {name for (name,) in sql(url, catalogue) if not name.startswith("callboard_")}


# What is run


def test_migrations_are_run_in_order_after_the_engines_and_recorded_under_the_plugins_name(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    plugin = Plugin(name="acme", migrations=lambda: reversed(steps(NOTES, ADDED)))
    engine = make_engine(plugin, acme("CREATE TABLE beta_note (text TEXT);", name="beta"))

    assert engine.migrate()[1:] == ["acme 0001 step 1", "acme 0002 step 2", "beta 0001 step 1"]
    assert engine.migrate() == []
    assert sql(callboard_database, RECORDS) == [
        ("acme", 1, "step 1", 1),
        ("acme", 2, "step 2", 2),
        ("beta", 1, "step 1", 1),
    ]
    assert sql(callboard_database, "SELECT text, author FROM acme_note") == []
    assert problems(engine) == {}


def test_a_later_version_runs_only_what_is_new(make_engine: MakeEngine, callboard_database: str) -> None:
    make_engine(acme(NOTES)).migrate()
    sql(callboard_database, "INSERT INTO acme_note VALUES ('kept')")

    assert make_engine(acme(NOTES, ADDED)).migrate() == ["acme 0002 step 2"]
    assert sql(callboard_database, "SELECT text, author FROM acme_note") == [("kept", None)]


def test_startup_finds_the_tables(make_engine: MakeEngine, callboard_database: str) -> None:
    def startup(engine: Engine) -> None:
        with engine.transaction() as tx:
            tx.run("INSERT INTO acme_note VALUES (?)", ("started",))

    with make_engine(acme(NOTES, startup=startup)):
        assert notes(callboard_database) == [("started",)]


def test_a_script_is_run_as_it_is_written(make_engine: MakeEngine, callboard_database: str) -> None:
    """Several statements on a line, one without an end, marks and semicolons in texts and comments."""
    script = (
        "-- what; is this?\n"
        "CREATE TABLE acme_note (text TEXT DEFAULT 'why?; 100%?1'); INSERT INTO acme_note DEFAULT VALUES;\n"
        "/* nothing; */ INSERT INTO acme_note VALUES ('and')"
    )

    engine = make_engine(acme(script))
    engine.migrate()

    assert problems(engine) == {}
    assert notes(callboard_database) == [("and",), ("why?; 100%?1",)]


def test_a_trigger_is_one_statement(make_engine: MakeEngine, tmp_path: Path) -> None:
    script = NOTES + (
        ";\nCREATE TRIGGER acme_twice AFTER INSERT ON acme_note WHEN NEW.text = 'one'\n"
        "BEGIN\n  INSERT INTO acme_note VALUES ('two');\n  INSERT INTO acme_note VALUES ('three');\nEND;\n"
    )
    url = f"sqlite:///{tmp_path / 'acme.db'}"
    make_engine(acme(script), database=url).migrate()

    sql(url, "INSERT INTO acme_note VALUES ('one')")

    assert notes(url) == [("one",), ("three",), ("two",)]


def test_functions_have_bodies_of_statements(make_engine: MakeEngine, callboard_database: str) -> None:
    if not is_postgres(callboard_database):
        pytest.skip("SQLite has no functions in SQL")
    script = NOTES + (
        ";\nCREATE FUNCTION acme_one() RETURNS text BEGIN ATOMIC SELECT 'a';"
        " SELECT CASE WHEN 1 = 1 THEN 'one' END; END;"
        "\nCREATE FUNCTION acme_two() RETURNS text LANGUAGE plpgsql AS $two$ BEGIN RETURN 'two'; END; $two$;"
        "\nINSERT INTO acme_note VALUES (acme_one()), (acme_two())"
    )
    engine = make_engine(acme(script))
    engine.migrate()

    assert problems(engine) == {}
    assert notes(callboard_database) == [("one",), ("two",)]


def test_an_engine_that_only_enqueues_makes_them_too_for_its_group_events(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    def group_event(tx: Transaction, event: GroupCreated) -> None:
        tx.run("INSERT INTO acme_note VALUES (?)", (event.group_id.decode(),))

    make_engine(acme(NOTES, group_event=group_event), execute=False).group(b"climbing").created("alice")

    assert notes(callboard_database) == [("climbing",)]


def test_tables_made_in_a_transaction_that_is_rolled_back_are_made_again(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    engine = make_engine(acme(NOTES, handler=Scripted()))
    with pytest.raises(ZeroDivisionError), engine._core.store.transaction():
        engine.enqueue(receipt("lost"))
        1 / 0  # noqa: B018

    engine.enqueue(receipt("kept"))

    assert notes(callboard_database) == []
    assert problems(engine) == {}


MIGRATING = """
import sys
from callboard import Engine, Migration, hookimpl

class Acme:
    __name__ = "acme"

    @hookimpl
    def callboard_migrations(self):
        scripts = ["CREATE TABLE acme_note (text TEXT)"] + ["INSERT INTO acme_note VALUES ('once')"] * 20
        return [
            Migration(sort, number, "a step", script, number)
            for number, script in enumerate(scripts, 1) for sort in ("sqlite", "postgres")
        ]

engine = Engine(sys.argv[1], plugins=[Acme()])
engine.load_plugins()
print("ready", flush=True)
sys.stdin.readline()
done = engine.migrate()
print(len(done), [plugin.problems for plugin in engine.health().plugins if plugin.problems])
engine.stop()
"""


def test_processes_that_migrate_at_once_do_each_step_once(callboard_database: str) -> None:
    command = [sys.executable, "-W", "error", "-c", MIGRATING, callboard_database]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:  # all are loaded, so they begin at once
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].split(maxsplit=1) for process in processes]

    assert [problem.strip() for _, problem in answers] == ["[]"] * 3
    engines_own = 1
    assert sum(int(count) for count, _ in answers) == engines_own + 21
    assert sql(callboard_database, "SELECT count(*) FROM acme_note") == [(20,)]


# What is refused


def test_one_that_fails_is_undone_whole_and_its_plugin_alone_is_disabled(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    called: list[str] = []
    bad = Plugin(
        receipts(sent := Scripted()),
        name="bad",
        migrations=lambda: steps(
            NOTES, "CREATE TABLE acme_other (id INTEGER); INSERT INTO nowhere VALUES (1)", ADDED
        ),
        startup=lambda engine: called.append("startup"),
        reconcile=lambda engine, reason: called.append(reason),
        event=lambda engine, event: called.append(event),
        group_event=lambda tx, event: called.append("group event"),
        tasks_finished=lambda engine, finished: called.append("finished"),
    )
    good = Plugin(
        threads(done := Scripted()), name="good", migrations=lambda: steps("CREATE TABLE good_note (id INT)")
    )
    with logged("WARNING") as log, make_engine(bad, good) as engine:
        task_id = engine.enqueue(receipt("waits")).task_id
        engine.enqueue(thread("runs"))
        engine.group(b"climbing").created("alice")
        engine.publish("an event")
        assert engine.wait_idle(20)

        task = engine.task(task_id or 0)
        assert task is not None and (task.state, task.attempts) == ("deferred", 0)
        assert (sent.played, done.played, called) == ([], ["runs"], [])
        [(plugin, found)] = problems(engine).items()
        assert (plugin, list(found)) == ("bad", ["migration 0002"])
        assert "nowhere" in found["migration 0002"]
    assert log[0].startswith("ERROR plugin bad: migration 0002 failed, and the engine goes on: callboard.errors.")
    assert "mend plugin bad" in log[1]
    assert tables(callboard_database) == {"acme_note", "good_note"}
    assert sql(callboard_database, RECORDS) == [("bad", 1, "step 1", 1), ("good", 1, "step 1", 1)]

    mended = acme(NOTES, "CREATE TABLE acme_other (id INTEGER)", ADDED, name="bad", handler=sent)
    with make_engine(mended) as engine:
        assert engine.wait_idle(20)
        assert sent.played == ["waits"]


@pytest.mark.parametrize("words", ["locked_table", "busy", "full", "readonly", "unable to open"])
def test_the_words_of_a_wrong_script_are_not_taken_for_a_fault_of_the_database(
    make_engine: MakeEngine, callboard_database: str, words: str
) -> None:
    engine = make_engine(acme(f'INSERT INTO "{words}" VALUES (1)', handler=Scripted()))

    engine.migrate()

    assert words in problems(engine)["acme"]["migration 0001"]


@pytest.mark.parametrize(
    ("migrations", "complaint"),
    [
        (steps(NOTES)[:1] + steps(NOTES, ADDED, ADDED)[4:], "migration 0003 for .* comes where 000[12] is due"),
        (steps(NOTES, NOTES)[2:], "migration 0002 for .* comes where 0001 is due; .* from 1 without a gap"),
        (steps(NOTES) * 2, "migration 0001 for .* comes where 0002 is due"),
        ([Migration("oracle", 1, "t", NOTES, 1)], "no migrations for (sqlite|postgres), only for oracle"),
        (steps(NOTES, compatible_with=2), "compatible-with must be from 1 to 1, not 2"),
        (["0001_notes.sql"], "must return Migration objects, not '0001_notes.sql'"),
        (7, "must return a list of Migration, not 7"),
        (
            steps("CREATE TABLE IF NOT EXISTS callboard_note (id INT)"),
            "makes or changes callboard_note; .* a prefix",
        ),
        (steps(NOTES + ";\ndrop table main.callboard_task"), "changes callboard_task"),
        (steps('ALTER TABLE "callboard_task" ADD COLUMN x INT'), "changes callboard_task"),
        (steps("CREATE UNIQUE INDEX acme_i ON callboard_task (kind)"), "changes callboard_task"),
        (steps("ALTER TABLE acme_note RENAME TO callboard_note"), "changes callboard_note"),
        (steps(NOTES + "; COMMIT"), "has its own COMMIT; take it out"),
        (steps("rollback;" + NOTES), "has its own ROLLBACK"),
        (steps(NOTES + "; END;"), "has its own END"),
        (steps(f"BEGIN; {NOTES}; END"), "has its own BEGIN"),
        (steps(f"start transaction; {NOTES}"), "has its own START TRANSACTION"),
        (steps("/* */ Abort;"), "has its own ABORT"),
        (steps(f"{NOTES} /* it's */; COMMIT -- isn't it"), "has its own COMMIT"),
    ],
)
def test_a_series_that_cannot_work_is_refused_before_anything_is_run(
    make_engine: MakeEngine, callboard_database: str, migrations: Any, complaint: str
) -> None:
    plugin = Plugin(receipts(Scripted()), name="bad", migrations=lambda: migrations)
    engine = make_engine(plugin)
    task_id = engine.enqueue(receipt("waits")).task_id
    engine.run_due()

    [(where, problem)] = problems(engine)["bad"].items()
    assert where == "callboard_migrations"
    assert re.search(complaint, problem), problem
    assert tables(callboard_database) == set()
    task = engine.task(task_id or 0)
    assert task is not None and task.state == "deferred"


@pytest.mark.parametrize(
    "script",
    [
        "-- no callboard_task here; COMMIT\n" + NOTES,
        "CREATE TABLE acme_note (text TEXT DEFAULT 'one; COMMIT; -- two''; END')",
        NOTES
        + ";/* it's */ CREATE VIEW acme_end AS SELECT CASE WHEN text = ';' THEN 1 END AS size FROM acme_note",
        "CREATE VIEW acme_note AS SELECT kind AS text FROM callboard_task",
        "CREATE TABLE acme_note (text TEXT, task_id INTEGER /* of callboard_task */)",
        "CREATE TABLE acme_note AS SELECT 'x' AS text WHERE EXISTS (SELECT 1 FROM callboard_dead_task)",
        NOTES + "; SAVEPOINT acme; INSERT INTO acme_note VALUES ('x'); ROLLBACK TO acme",
    ],
)
def test_a_script_may_read_the_engines_tables_and_name_them(
    make_engine: MakeEngine, callboard_database: str, script: str
) -> None:
    engine = make_engine(acme(script))
    engine.migrate()

    assert problems(engine) == {}
    assert notes(callboard_database) == []


def test_a_hook_that_raises_disables_its_plugin(make_engine: MakeEngine) -> None:
    def migrations() -> list[Migration]:
        raise LookupError("no such folder")

    engine = make_engine(Plugin(receipts(sent := Scripted()), migrations=migrations))
    engine.enqueue(receipt("waits"))
    engine.run_due()

    assert problems(engine) == {"acme": {"callboard_migrations": "LookupError: no such folder"}}
    assert sent.played == []


def test_a_plugin_cannot_take_the_engines_name(make_engine: MakeEngine, callboard_database: str) -> None:
    engine = make_engine(acme(NOTES, name="callboard"))
    engine.migrate()

    assert (
        "a plugin named callboard can have no migrations" in problems(engine)["callboard"]["callboard_migrations"]
    )
    assert tables(callboard_database) == set()
    assert make_engine().migrate() == []


def test_of_two_plugins_of_one_name_neither_has_any(make_engine: MakeEngine, callboard_database: str) -> None:
    """Which of them the recorded ones are of would depend on the order in which they are found."""
    engine = make_engine(acme(NOTES), acme("CREATE TABLE acme_other (id INT)"))
    engine.migrate()

    assert list(problems(engine)) == ["acme", "acme (2)"]
    for found in problems(engine).values():
        assert "another has it; rename one" in found["callboard_migrations"]
    assert tables(callboard_database) == set()


def test_plugins_are_looked_after_in_one_statement(make_engine: MakeEngine, callboard_database: str) -> None:
    engine = make_engine(acme(NOTES), acme("CREATE TABLE beta_note (text TEXT)", name="beta"))
    engine.migrate()
    store: Any = engine._core.store
    answer, asked = store.recorded, list[str]()

    def recorded() -> Any:
        asked.append("recorded")
        return answer()

    store.recorded = recorded
    engine._core.plugin_tables.check()

    assert asked == ["recorded"]


def test_a_table_of_migrations_that_cannot_be_read_disables_nobody(make_engine: MakeEngine) -> None:
    engine = make_engine(acme(NOTES, handler=Scripted()))
    engine.migrate()
    store: Any = engine._core.store
    answer = store.recorded

    def refused() -> Any:
        raise StoreError("permission denied")

    store.recorded = refused
    with pytest.raises(StoreError, match="permission denied"):
        engine._core.plugin_tables.check()
    store.recorded = answer

    engine.enqueue(receipt("runs"))
    assert engine.run_due() == 1
    assert problems(engine) == {}


def test_a_store_that_takes_no_tables_of_plugins_says_so(make_engine: MakeEngine, tmp_path: Path) -> None:
    # Somebody's store, which has what `Store` names and no more.
    more = {"dialect", "recorded", "migrate_plugin", "__dict__", "__weakref__", "__init__"}
    bare = type("Bare", (), {name: value for name, value in vars(SqliteStore).items() if name not in more})
    store: Any = bare()
    vars(store).update(vars(open_sqlite(f"sqlite:///{tmp_path / 'bare.db'}", "FULL")))
    engine = make_engine(acme(NOTES), Plugin(receipts(sent := Scripted()), name="good"), database=store)
    engine.enqueue(receipt("runs"))
    engine.run_due()

    assert "takes no tables of plugins (callboard.stores.PluginTables)" in str(problems(engine)["acme"])
    assert sent.played == ["runs"]


# Versions


def of_a_newer_version(url: str, compatible_with: int) -> None:
    sql(url, "INSERT INTO callboard_migration VALUES ('acme', 7, 'what is to come', ?, 1)", compatible_with)


def test_tables_of_a_newer_version_are_refused(make_engine: MakeEngine, callboard_database: str) -> None:
    make_engine(acme(NOTES)).migrate()
    of_a_newer_version(callboard_database, compatible_with=7)
    engine = make_engine(acme(NOTES, handler=(sent := Scripted())), Plugin(threads(Scripted()), name="good"))
    engine.enqueue(receipt("waits"))
    engine.run_due()

    [problem] = problems(engine)["acme"].values()
    assert (
        "was written by a newer version of plugin acme (tables 7, this build knows 1); upgrade its package"
        in problem
    )
    assert sent.played == []
    assert list(problems(engine)) == ["acme"]


def test_tables_of_a_newer_version_that_says_it_is_compatible_are_used(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    make_engine(acme(NOTES)).migrate()
    of_a_newer_version(callboard_database, compatible_with=1)
    engine = make_engine(acme(NOTES, handler=(sent := Scripted())))
    engine.enqueue(receipt("runs"))
    engine.run_due()

    assert sent.played == ["runs"]
    assert engine.migrate() == []


def test_a_running_engine_notices_a_newer_version(
    make_engine: MakeEngine, callboard_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    reconciled: list[str] = []

    def reconcile(engine: Engine, reason: str) -> None:
        reconciled.append(reason)
        raise LookupError("it is wanted again")

    plugin = acme(NOTES, handler=(sent := Scripted()), reconcile=reconcile)
    with make_engine(plugin, Plugin(threads(Scripted()), name="good")) as engine:
        eventually(lambda: reconciled)
        engine.enqueue(receipt("runs"))
        eventually(lambda: sent.played)
        of_a_newer_version(callboard_database, compatible_with=7)
        eventually(lambda: "newer version" in str(problems(engine)))
        task_id = engine.enqueue(receipt("waits")).task_id
        assert engine.wait_idle(20), "a reconcile that nobody makes any more is not waited for"

        task = engine.task(task_id or 0)
        assert task is not None and task.state == "deferred"
        assert not engine.health().stuck
    assert sent.played == ["runs"]


def test_what_waits_behind_a_running_task_of_a_plugin_is_left_when_the_plugin_is_disabled(
    make_engine: MakeEngine, callboard_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is claimed and what is parked of it, while another plugin's tasks go on."""
    monkeypatch.setattr(SqliteStore, "poll_interval_s", 0.02)
    began, go_on = threading.Event(), threading.Event()
    handled: list[str] = []

    def handler(message: Any, _ctx: TaskContext) -> None:
        handled.append(message.text)
        began.set()
        assert go_on.wait(20)

    plugin = acme(NOTES, handler=handler)
    with make_engine(plugin, Plugin(threads(other := Scripted()), name="good")) as engine:
        engine.enqueue_many([receipt(str(number), b"group") for number in range(100)])
        assert began.wait(20)
        of_a_newer_version(callboard_database, compatible_with=7)
        eventually(lambda: "newer version" in str(problems(engine)))
        go_on.set()
        engine.enqueue(thread("goes on"))
        assert engine.wait_idle(20)
        left = engine.tasks(state="deferred")
    assert (handled, other.played) == (["0"], ["goes on"])
    assert len(left) == 99


def test_a_plugin_that_is_removed_leaves_its_tables_and_put_back_goes_on(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            tx.run("INSERT INTO acme_note VALUES (?)", (message.text,))

    plugin = acme(NOTES, handler=handler)
    first = make_engine(plugin)
    first.enqueue(receipt("one"))
    first.run_due()

    without = make_engine()
    without.enqueue(receipt("two"), allow_unknown=True)
    without.run_due()
    assert notes(callboard_database) == [("one",)]
    assert sql(callboard_database, RECORDS) == [("acme", 1, "step 1", 1)]

    back = make_engine(plugin)
    assert back.migrate() == []
    back.run_due()
    assert notes(callboard_database) == [("one",), ("two",)]


# Statements of a plugin's own


def test_a_run_that_fails_leaves_none_of_its_statements(make_engine: MakeEngine, callboard_database: str) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            assert tx.run("INSERT INTO acme_note VALUES (?)", (message.text,)) == 1
            assert tx.rows("SELECT text FROM acme_note WHERE text = ?", (message.text,)) == [(message.text,)]
            raise LookupError

    engine = make_engine(acme(NOTES, handler=handler))
    engine.enqueue(receipt("one"))
    engine.run_due()

    assert notes(callboard_database) == []
    assert [task.attempts for task in engine.tasks()] == [1]


def test_a_constraint_of_a_column_called_locked_is_a_failure_and_no_outage(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            tx.run("INSERT INTO acme_job VALUES (NULL)")

    engine = make_engine(acme("CREATE TABLE acme_job (locked_by TEXT NOT NULL)", handler=handler))
    engine.enqueue(receipt("one"))
    engine.run_due()

    assert [(task.attempts, task.outages) for task in engine.tasks()] == [(1, 0)]


def test_what_the_database_refuses_is_a_store_error(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for method in ("run", "rows"):
        with pytest.raises(StoreError), engine.transaction() as tx:
            getattr(tx, method)("SELECT text FROM nowhere")


def of_peewee(url: str) -> Any:
    if is_postgres(url):
        return peewee.PostgresqlDatabase(url, prefer_psycopg3=True)
    return peewee.SqliteDatabase(path_of(url))


def of_sqlalchemy(url: str) -> Any:
    engine = sqlalchemy.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sqlalchemy.NullPool
    )
    return engine.connect()


@pytest.mark.parametrize("connect", [of_peewee, of_sqlalchemy])
def test_a_group_event_on_a_hosts_connection_takes_them_whatever_its_library(
    make_engine: MakeEngine, callboard_database: str, connect: Callable[[str], Any]
) -> None:
    def group_event(tx: Transaction, event: GroupCreated) -> None:
        tx.run("INSERT INTO acme_note VALUES (?)", (event.group_id.decode(),))

    engine = make_engine(acme(NOTES, group_event=group_event))
    engine.migrate()
    connection = connect(callboard_database)
    with engine.transaction(connection=connection) as tx:
        tx.group(b"climbing").created("alice")
        assert tx.rows("SELECT text FROM acme_note") == [("climbing",)]
    if connect is of_sqlalchemy:
        connection.commit()
    connection.close()

    assert notes(callboard_database) == [("climbing",)]
    assert problems(engine) == {}


# Files


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the package `acme_files` of these files."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_files", raising=False)

    def make(**files: str) -> None:
        folder = tmp_path / "acme_files"
        folder.mkdir()
        (folder / "__init__.py").touch()
        for name, text in files.items():
            file = folder / "migrations" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()  # the folder may have been looked at in the same instant

    return make


HEADER = "-- title: the notes\n-- compatible-with: 1\n"


def test_files_are_read_from_the_package(package: Callable[..., None]) -> None:
    package(
        **{
            "sqlite/0002_more.sql": "-- title:  more \n-- compatible-with: 1\n" + ADDED,
            "sqlite/0001_notes.sql": HEADER + NOTES,
            "sqlite/README": "not one",
            "postgres/0001_notes.sql": HEADER,
            "__init__.py": "",
        }
    )

    assert {
        (each.database, each.number, each.title, each.compatible_with) for each in read_migrations("acme_files")
    } == {
        ("sqlite", 1, "the notes", 1),
        ("sqlite", 2, "more", 1),
        ("postgres", 1, "the notes", 1),
    }


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "package acme_files has no folder migrations; .* to the package's data"),
        ({"sqlite/1_notes.sql": HEADER}, "named like 0001_notes.sql, not sqlite/1_notes.sql"),
        ({"sqlite/0001_notes.sql": "-- compatible-with: 1\n"}, "sqlite/0001_notes.sql lacks its line `-- title"),
        ({"sqlite/0001_notes.sql": "-- title: x\n"}, "lacks its line `-- compatible-with"),
        (
            {"sqlite/0001_notes.sql": "-- title: x\n-- compatible-with: none\n"},
            "the number of a migration, not none",
        ),
    ],
)
def test_files_that_say_too_little_are_refused(
    package: Callable[..., None], files: dict[str, str], complaint: str
) -> None:
    package(**files)

    with pytest.raises(PluginError, match=complaint):
        read_migrations("acme_files")
