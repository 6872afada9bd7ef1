"""`docs/reference/plugin-errors.md` has what each misuse of the plugin API is told, word for word."""

import re
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from tests.engine.acting import WAIT_S, MakeEngine, Plugin, logged, receipt, receipts, threads
from tests.engine.messages import SendReceipt, TaggedReceipt
from tests.engine.test_bad_plugins import install

from callboard import Engine, Migration, RetryPolicy, TaskKind, hookimpl, read_migrations

PAGE = (Path(__file__).parents[2] / "docs/reference/plugin-errors.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?P<misuse>.+?) \| `(?P<where>[^`]+)` \| (?P<text>.+) \|$", re.MULTILINE)
ROWS = {
    row["misuse"]: (row["where"], re.sub(r"\\([*_])", r"\1", row["text"]))
    for row in ROW.finditer(PAGE)
    if row["where"] != "where"
}


class Misuse(NamedTuple):
    """Something wrong, and how to make a plugin called `acme` of which it is true."""

    name: str
    make: Callable[[], Any]


def handle(message: Any, ctx: Any) -> None:
    """Handle a message of any type."""


def handle_one(message: Any) -> None:
    """Be no handler."""


def hooks(**functions: Callable[..., Any]) -> Any:
    """Return a module of these functions, marked as hooks."""
    return unmarked(**{name: hookimpl(function) for name, function in functions.items()})


def unmarked(**attributes: Any) -> Any:
    module = ModuleType("acme")
    vars(module).update(attributes)
    return module


def returning(hook: str, value: Any) -> Any:
    return hooks(**{hook: lambda: value})


def kind(*arguments: Any, **options: Any) -> Callable[[], Any]:
    """Return what makes a plugin that makes a kind when it is asked for its kinds."""
    given = arguments or (SendReceipt, handle)
    return lambda: hooks(callboard_task_kinds=lambda: [TaskKind(*given, **options)])


def needing(version: Any) -> Callable[[], Any]:
    return lambda: unmarked(callboard_api=version, callboard_startup=hookimpl(lambda: None))


def migrating(*migrations: Any) -> Callable[[], Any]:
    return lambda: returning("callboard_migrations", list(migrations))


def migration(
    number: int = 1, sql: str = "CREATE TABLE acme_note (text TEXT)", database: str = "sqlite", since: int = 1
) -> Any:
    return Migration(database, number, "the notes", sql, since)


def by_keyword(*, engine: Engine) -> None:
    """Be called without what it needs."""


def by_default(engine: Engine | None = None) -> None:
    """Be called without what it means to get."""


async def later() -> None:
    """Be awaited by nobody."""


def generator() -> Iterator[None]:
    yield


def failing() -> None:
    raise ZeroDivisionError("oops")


MISUSES = [
    Misuse("no hook at all", lambda: unmarked(task_kinds=lambda: [])),
    Misuse("a hook without `@hookimpl`", lambda: unmarked(callboard_startup=failing)),
    Misuse("a misspelt hook", lambda: hooks(callboard_task_kind=lambda: [])),
    Misuse("a hook of another project", lambda: hooks(pytest_configure=lambda: None)),
    Misuse("a hook with an argument that there is not", lambda: hooks(callboard_startup=lambda database: None)),
    Misuse("a hook with an argument that is passed by keyword only", lambda: hooks(callboard_startup=by_keyword)),
    Misuse("a hook with a default in place of what it is given", lambda: hooks(callboard_startup=by_default)),
    Misuse("a hook with `**`", lambda: hooks(callboard_startup=lambda **given: None)),
    Misuse("a hook that is a coroutine function", lambda: hooks(callboard_startup=later)),
    Misuse("a hook with `yield`", lambda: hooks(callboard_startup=generator)),
    Misuse(
        "a hook that is a wrapper",
        lambda: unmarked(callboard_startup=hookimpl(wrapper=True)(generator)),
    ),
    Misuse("`callboard_api` is no pair of numbers", needing("1.0")),
    Misuse("`callboard_api` is newer than the engine's", needing((2, 0))),
    Misuse("`callboard_api` is older than the engine's", needing((0, 3))),
    Misuse("kinds: a number", lambda: returning("callboard_task_kinds", 5)),
    Misuse("kinds: a string", lambda: returning("callboard_task_kinds", "SendReceipt")),
    Misuse("kinds: one kind without a list", lambda: returning("callboard_task_kinds", receipts(handle))),
    Misuse("kinds: a list of message types", lambda: returning("callboard_task_kinds", [SendReceipt])),
    Misuse("kinds: a coroutine", lambda: hooks(callboard_task_kinds=lambda: later())),
    Misuse("kinds: the hook raises", lambda: hooks(callboard_task_kinds=failing)),
    Misuse(
        "a kind that another plugin has registered",
        lambda: [Plugin(receipts(handle), name="first"), returning("callboard_task_kinds", [receipts(handle)])],
    ),
    Misuse("a kind twice", lambda: returning("callboard_task_kinds", [receipts(handle), receipts(handle)])),
    Misuse("`message_type` is no message type", kind(dict, handle)),
    Misuse("`message_type` has a map field", kind(TaggedReceipt, handle)),
    Misuse("`handler` is missing", kind(SendReceipt)),
    Misuse("`handler` is a name", kind(SendReceipt, "handle")),
    Misuse("`handler` takes other arguments", kind(SendReceipt, handle_one)),
    Misuse("`group_id` is no function", kind(group_id=b"group")),
    Misuse("`retry` is a number", kind(retry=3)),
    Misuse("`retry` has no attempt", kind(retry=RetryPolicy(max_attempts=0))),
    Misuse("`retry` has a fraction of an attempt", kind(retry=RetryPolicy(max_attempts=2.5))),  # type: ignore[arg-type]
    Misuse("`retry` has a factor below 1", kind(retry=RetryPolicy(factor=0.5))),
    Misuse("`retry` has a number for a duration", kind(retry=RetryPolicy(initial=2))),  # type: ignore[arg-type]
    Misuse("`retry` has a negative duration", kind(retry=RetryPolicy(cap=timedelta(seconds=-1)))),
    Misuse("`recurring` is a duration", kind(recurring=timedelta(hours=1))),
    Misuse("`timeout` is a number", kind(timeout=30)),
    Misuse("`timeout` is 0", kind(timeout=timedelta(0))),
    Misuse("`requires` is a type", kind(requires=Engine)),
    Misuse("`requires` has a name", kind(requires=("Engine",))),
    Misuse("`on_unknown_fields` is neither", kind(on_unknown_fields="skip")),
    Misuse("`concurrency` is 0", kind(concurrency=0)),
    Misuse("`pause_after` is no number", kind(pause_after=timedelta(minutes=1))),
    Misuse("an argument that there is not", kind(xyz=3)),
    Misuse("migrations: a number", lambda: returning("callboard_migrations", 5)),
    Misuse("migrations: one migration without a list", lambda: returning("callboard_migrations", migration())),
    Misuse("migrations: a list of names", migrating("0001_notes.sql")),
    Misuse("migrations: none for this database", migrating(migration(database="postgres"))),
    Misuse("migrations: a number is left out", migrating(migration(), migration(3))),
    Misuse("migrations: a table of the engine's", migrating(migration(sql="DROP TABLE callboard_task"))),
    Misuse("migrations: `compatible-with` above its own number", migrating(migration(since=2))),
    Misuse("migrations: one ends the transaction", migrating(migration(sql="COMMIT"))),
    Misuse("migrations: one ends the transaction by its other name", migrating(migration(sql="END;"))),
    Misuse(
        "a hook that uses the engine too early", lambda: hooks(callboard_task_kinds=lambda engine: engine.tasks())
    ),
    Misuse("migrations: the hook raises", lambda: hooks(callboard_migrations=failing)),
    Misuse("startup: a value", lambda: returning("callboard_startup", 5)),
    Misuse("startup: a coroutine", lambda: hooks(callboard_startup=lambda: later())),
    Misuse("startup: the hook raises", lambda: hooks(callboard_startup=failing)),
    Misuse("reconcile: a value", lambda: returning("callboard_reconcile", ["read"])),
    Misuse("reconcile: the hook raises", lambda: hooks(callboard_reconcile=failing)),
    Misuse("group event: a value", lambda: returning("callboard_group_event", True)),
    Misuse("group event: the hook raises", lambda: hooks(callboard_group_event=failing)),
    Misuse("event: a value", lambda: returning("callboard_event", "read")),
    Misuse("event: a generator", lambda: hooks(callboard_event=lambda: generator())),
    Misuse("event: the hook raises", lambda: hooks(callboard_event=failing)),
    Misuse("finished tasks: a value", lambda: returning("callboard_tasks_finished", 0)),
    Misuse("finished tasks: the hook raises", lambda: hooks(callboard_tasks_finished=failing)),
]

ENTRY_POINTS = {
    "its module is not there": ("acme_absent", ""),
    "its module lacks what it names": ("acme_bad:plugin", ""),
    "a package that it needs is missing": ("acme_bad", "import absent_package"),
    "its module raises": ("acme_bad", "raise ZeroDivisionError('oops')"),
    "its function raises": ("acme_bad:make", "def make():\n    raise ZeroDivisionError('oops')"),
    "its function takes arguments": ("acme_bad:make", "def make(engine):\n    pass"),
    "its function returns nothing": ("acme_bad:make", "def make():\n    pass"),
    "its function is a coroutine function": ("acme_bad:make", "async def make():\n    pass"),
    "it names `None`": ("acme_bad:plugin", "plugin = None"),
}

FILES = {
    "files: no folder": {},
    "files: another name": {"1_notes.sql": "-- title: x\n-- compatible-with: 1\n"},
    "files: no title": {"0001_notes.sql": "-- compatible-with: 1\n"},
    "files: no `compatible-with`": {"0001_notes.sql": "-- title: x\n"},
    "files: `compatible-with` is no number": {"0001_notes.sql": "-- title: x\n-- compatible-with: none\n"},
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on Python's path, whose module goes with it."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in ("acme_bad", "acme_files"):
        sys.modules.pop(name, None)


def told(engine: Engine, plugin: str = "acme") -> tuple[str, str]:
    """Return where the plugin's one problem is, and what it says, once all of its hooks have been called."""
    with logged("ERROR") as log, engine:
        engine.group(b"g").created("ann", members=["bo"])
        engine.publish("something happened")
        engine.enqueue(receipt("read"), allow_unknown=True)
        assert engine.wait_idle(WAIT_S)
        [health] = [health for health in engine.health().plugins if health.name == plugin]
    [(where, text)] = health.problems.items()
    lines = [str(line) for line in log if f"plugin {plugin}: " in line]
    assert lines[0].startswith(f"ERROR plugin {plugin}: {where} failed, and the engine goes on: {text}\n")
    return where, text


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: misuse.name)
def test_each_misuse_is_told_as_the_reference_says(make_engine: MakeEngine, misuse: Misuse) -> None:
    made = misuse.make()
    plugins = made if isinstance(made, list) else [made]
    ends = [] if "kind" in misuse.name else [Plugin(receipts(handle), name="good")]

    assert told(make_engine(*plugins, *ends)) == ROWS[misuse.name]


@pytest.mark.parametrize("misuse", ENTRY_POINTS)
def test_each_bad_entry_point_is_told_as_the_reference_says(
    make_engine: MakeEngine, site: Path, misuse: str
) -> None:
    target, source = ENTRY_POINTS[misuse]
    install(site, "acme", target, acme_bad=source)

    assert told(make_engine(plugins=["acme"])) == ROWS[misuse]


@pytest.mark.parametrize("misuse", FILES)
def test_files_that_say_too_little_are_told_as_the_reference_says(
    make_engine: MakeEngine, site: Path, misuse: str
) -> None:
    package = site / "acme_files"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in FILES[misuse].items():
        (package / "migrations" / "sqlite").mkdir(parents=True)
        (package / "migrations" / "sqlite" / name).write_text(text, encoding="utf-8")

    assert told(make_engine(hooks(callboard_migrations=lambda: read_migrations("acme_files")))) == ROWS[misuse]


def test_one_object_given_twice_is_told_as_the_reference_says(make_engine: MakeEngine) -> None:
    plugin = Plugin(threads(handle))

    assert told(make_engine(plugin, plugin), "acme (2)") == ROWS["the same object twice"]


@pytest.mark.parametrize("plugin", ["acme", "acme (2)"])
def test_two_plugins_of_one_name_with_tables_are_told_as_the_reference_says(
    make_engine: MakeEngine, plugin: str
) -> None:
    engine = make_engine(migrating(migration())(), migrating(migration())())

    assert told(engine, plugin) == ROWS["migrations: two plugins have one name"]


def test_a_plugin_of_the_engines_name_with_tables_is_told_as_the_reference_says(make_engine: MakeEngine) -> None:
    plugin = migrating(migration())()
    plugin.__name__ = "callboard"

    assert told(make_engine(plugin), "callboard") == ROWS["migrations: the plugin is called as the engine is"]


def test_the_reference_has_no_other_misuse() -> None:
    told_apart = {
        "the same object twice",
        "migrations: two plugins have one name",
        "migrations: the plugin is called as the engine is",
    }
    assert set(ROWS) == {misuse.name for misuse in MISUSES} | {*ENTRY_POINTS, *FILES} | told_apart


def test_a_hook_that_returns_a_value_has_done_its_work_and_is_told_of_it_once(make_engine: MakeEngine) -> None:
    events: list[object] = []

    def event(event: object) -> int:
        events.append(event)
        return 5

    with logged("ERROR") as log, make_engine(Plugin(event=event)) as engine:
        for number in range(10):
            engine.publish(number)
        assert engine.wait_idle(WAIT_S)
    assert events == list(range(10))
    assert len(log) == 1


def test_a_reconcile_whose_work_was_not_done_is_tried_again(make_engine: MakeEngine) -> None:
    calls: list[str] = []

    def reconcile(reason: str) -> Any:
        calls.append(reason)
        return later()

    engine = make_engine(Plugin(reconcile=reconcile))
    engine.run_due()
    assert calls == ["start"]
    assert "nobody runs" in engine.health().plugins[0].problems["callboard_reconcile"]
