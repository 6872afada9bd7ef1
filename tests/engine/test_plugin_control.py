"""What a host and a plugin can say of each other: one is blocked, one needs another API, one is gone."""

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import pytest
from tests.engine.acting import RECEIPT, MakeEngine, Plugin, Scripted, logged, receipt, receipts, thread, threads
from tests.engine.rows import sql
from tests.engine.test_bad_plugins import GOOD, install
from tests.engine.test_cli.invoking import callboard, printed

import callboard as api
from callboard import ConfigurationError, Engine, PluginHealth, TaskState, UnknownKindError
from callboard.testing import FakeClock

VARIABLE = "CALLBOARD_BLOCK_PLUGINS"
LOUD = "raise AssertionError('it was imported')"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on Python's path, whose modules go with it."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for module in ("acme_good", "acme_loud"):
        sys.modules.pop(module, None)


def of(engine: Engine, name: str) -> PluginHealth:
    engine.load_plugins()
    [found] = [plugin for plugin in engine.health().plugins if plugin.name == name]
    return found


# Blocked plugins


def by_argument(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"block": ["acme-loud"]}


def by_variable(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv(VARIABLE, " acme-loud , ,other")
    return {}


@pytest.mark.parametrize("plugins", [None, ["acme-good", "acme-loud"]], ids=["all", "by-name"])
@pytest.mark.parametrize("block", [by_argument, by_variable])
def test_a_blocked_plugin_is_not_imported_and_is_shown_as_blocked(
    make_engine: MakeEngine,
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: Callable[[pytest.MonkeyPatch], dict[str, Any]],
    plugins: Any,
) -> None:
    install(site, "acme-good", "acme_good", acme_good=GOOD)
    install(site, "acme-loud", "acme_loud", acme_loud=LOUD)
    engine = make_engine(plugins=plugins, **block(monkeypatch))

    assert of(engine, "acme-loud") == PluginHealth("acme-loud", blocked=True)
    assert of(engine, "acme-good").loaded
    assert "acme_loud" not in sys.modules


def test_a_plugin_given_as_an_object_is_blocked_by_its_name(make_engine: MakeEngine) -> None:
    bad, good = Plugin(receipts(Scripted()), name="bad"), Plugin(threads(Scripted()), name="good")
    engine = make_engine(bad, good, block=["bad"])

    assert of(engine, "bad").blocked
    assert of(engine, "good").kinds
    with pytest.raises(UnknownKindError):
        engine.enqueue(receipt("read"))


def test_the_tasks_of_a_blocked_plugin_stay_deferred_and_run_when_it_is_not_blocked_any_more(
    make_engine: MakeEngine,
) -> None:
    sent = Scripted()
    plugin = Plugin(receipts(sent), name="acme")
    make_engine(plugin).enqueue(receipt("read"))

    with logged("WARNING") as log:
        blocking = make_engine(plugin, block=("acme",))
        assert blocking.run_due() == 0
    [task] = blocking.tasks()
    assert (task.state, task.attempts) == (TaskState.DEFERRED, 0)
    [line] = [str(each) for each in log if "deferred" in each]
    assert "or unblock it (blocked here: acme)" in line

    assert make_engine(plugin).run_due() == 1
    assert sent.played == ["read"]


def test_blocking_what_is_not_installed_is_warned_of_and_no_error(make_engine: MakeEngine, site: Path) -> None:
    install(site, "acme-good", "acme_good", acme_good=GOOD)
    with logged("WARNING") as log:
        assert of(make_engine(plugins=["acme-good"], block=["acme-god"]), "acme-good").loaded

    [line] = log
    assert str(line).startswith("WARNING no plugin 'acme-god' is installed, so that blocking it has no effect")
    assert "acme-good" in line


def test_a_blocked_name_may_be_asked_for_without_being_installed(make_engine: MakeEngine) -> None:
    engine = make_engine(plugins=["acme-god"], block=["acme-god"])

    assert of(engine, "acme-god").blocked


@pytest.mark.parametrize("block", ["acme", [5], b"acme"])
def test_a_block_that_is_no_list_of_names_is_refused(make_engine: MakeEngine, block: Any) -> None:
    with pytest.raises(ConfigurationError, match="block takes a list of plugins' names"):
        make_engine(block=block)


def test_callboard_plugins_shows_what_the_variable_blocks(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "acme-loud", "acme_loud", acme_loud=LOUD)
    monkeypatch.setenv(VARIABLE, "acme-loud")

    [found] = [each for each in printed("plugins", "--json")["plugins"] if each["name"] == "acme-loud"]
    assert (found["blocked"], found["loaded"], found["problems"]) == (True, False, {})
    [line] = [line for line in callboard("plugins").output.splitlines() if "acme-loud" in line]
    assert line.split()[-1] == "blocked"
    assert "acme_loud" not in sys.modules


# The version of the plugin API


def needing(version: Any) -> Plugin:
    plugin = Plugin(receipts(Scripted()), name="acme")
    plugin.callboard_api = version  # type: ignore[attr-defined]
    return plugin


MAJOR, MINOR = api.API_VERSION


@pytest.mark.parametrize("version", [None, (MAJOR, 0), (MAJOR, MINOR)])
def test_a_plugin_for_this_api_is_loaded_and_so_is_one_that_says_nothing(
    make_engine: MakeEngine, version: Any
) -> None:
    assert of(make_engine(needing(version)), "acme") == PluginHealth("acme", loaded=True, kinds=[RECEIPT])


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ((MAJOR, MINOR + 1), "upgrade callboard"),
        ((MAJOR + 1, 0), "upgrade callboard"),
        ((MAJOR - 1, 9), f"upgrade the plugin to one for version {MAJOR}"),
    ],
)
def test_a_plugin_for_another_api_is_refused_and_its_tasks_stay_deferred(
    make_engine: MakeEngine, version: tuple[int, int], remedy: str
) -> None:
    make_engine(Plugin(receipts(Scripted()))).enqueue(receipt("read"))
    engine = make_engine(needing(version), Plugin(threads(quick := Scripted()), name="good"))
    engine.enqueue(thread("other"))
    assert engine.run_due() == 1

    health = of(engine, "acme")
    assert (health.loaded, health.kinds) == (False, [])
    assert health.problems == {
        "api": f"it needs version {version[0]}.{version[1]} of the plugin API, and this callboard has"
        f" {MAJOR}.{MINOR}; {remedy}"
    }
    assert [task.state for task in engine.tasks()] == [TaskState.DEFERRED]
    assert quick.played == ["other"]


# A plugin that is gone, and comes back

KEEPER = """
from datetime import timedelta
from tests.engine.acting import receipts
from callboard import hookimpl
sent = []

@hookimpl
def callboard_task_kinds():
    return [receipts(lambda message, ctx: sent.append(message.text))]

@hookimpl
def callboard_startup(engine):
    with engine.transaction() as tx:
        tx.connection.execute("CREATE TABLE IF NOT EXISTS acme_good_note (text TEXT)")
        tx.connection.execute("INSERT INTO acme_good_note VALUES ('kept')")
"""


def test_a_plugin_that_is_removed_leaves_its_rows_deferred_and_its_tables_alone_and_goes_on_when_it_is_back(
    make_engine: MakeEngine,
    callboard_database: str,
    callboard_clock: FakeClock,
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(site, "acme-good", "acme_good", acme_good=KEEPER)
    with_it = make_engine(plugins=["acme-good"])
    assert with_it.run_due() == 0
    with_it.enqueue(receipt("before"), not_before=timedelta(minutes=1))
    before = with_it.tasks()

    away = site.parent / "away"
    site.rename(away)  # as `pip uninstall` leaves it
    sys.modules.pop("acme_good", None)
    invalidate_caches()
    callboard_clock.advance(timedelta(minutes=2))
    without = make_engine(Plugin(threads(other := Scripted())))
    without.enqueue(thread("other"))
    assert without.run_due() == 1
    [task] = without.tasks()
    assert (task.state, task.attempts, task.data) == (TaskState.DEFERRED, 0, before[0].data)
    assert other.played == ["other"]
    assert sql(callboard_database, "SELECT text FROM acme_good_note") == [("kept",)]

    away.rename(site)
    invalidate_caches()
    back = make_engine(plugins=["acme-good"])
    assert back.run_due() == 1
    assert sys.modules["acme_good"].sent == ["before"]
    assert back.tasks() == []
    assert sql(callboard_database, "SELECT text FROM acme_good_note") == [("kept",), ("kept",)]
