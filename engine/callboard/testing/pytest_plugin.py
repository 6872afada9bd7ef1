"""Fixtures for tests of hosts and plugins; pytest finds them where Callboard is installed.

Everything is imported inside the fixtures, so that a test run which uses none of them pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from callboard import Engine
    from callboard.testing import FakeClock
    from callboard.testing.contract._processes import Processes
    from callboard.testing.contract._trials import Trials

_BARE = Path(__file__).with_name("contract") / "_bare.py"

# So that a store that breaks the contract is shown with the values that tell.
pytest.register_assert_rewrite("callboard.testing.store_contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin contract."""
    group = parser.getgroup("callboard")
    group.addoption(
        "--callboard-contract",
        metavar="NAME",
        help="Run the plugin contract, and nothing else, on the plugin with the entry point NAME.",
    )
    group.addoption(
        "--callboard-contract-fault",
        metavar="FAULT",
        help="Of its faults try only this one, as a report names it.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what the options of the contract cannot mean."""
    name = config.getoption("callboard_contract")
    fault = config.getoption("callboard_contract_fault")
    if name == "":
        raise pytest.UsageError("--callboard-contract: give the name of the plugin's entry point")
    if name is None and not fault:
        return
    try:
        from callboard.testing.contract._fault import parsed
    except ImportError as error:  # which says what to install
        raise pytest.UsageError(str(error)) from error
    try:
        if fault:
            parsed(fault)
    except ValueError as error:
        raise pytest.UsageError(f"--callboard-contract-fault: {error}") from error


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave the contract of the plugin that the option names: its author's, or else the bare one."""
    name = config.getoption("callboard_contract")
    if not name:
        return
    from callboard.testing.contract import PluginContract

    def is_its(item: pytest.Item) -> bool:
        tests = getattr(item, "cls", None)
        return isinstance(tests, type) and issubclass(tests, PluginContract) and tests.plugin == name

    kept = [item for item in items if is_its(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    # Not by its path among pytest's arguments: pytest does not look into a virtual environment in the checkout.
    items[:] = kept or session.genitems(pytest.Module.from_parent(session, path=_BARE))


@pytest.fixture(scope="session")
def callboard_contract_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Return where the contract runs handlers: one set of processes for all plugins."""
    from callboard.testing.contract._processes import Processes

    processes = Processes(tmp_path_factory.mktemp("contract"))
    yield processes
    processes.close()


@pytest.fixture(scope="class")
def callboard_contract(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    callboard_contract_processes: Processes,
) -> Trials:
    """Return the trials of the plugin whose `PluginContract` the test belongs to."""
    from callboard import _pins
    from callboard.testing.contract._fault import parsed
    from callboard.testing.contract._trials import Trials

    given = request.cls()
    fault = request.config.getoption("callboard_contract_fault")
    only = parsed(fault) if fault else None
    name = given.plugin if isinstance(given.plugin, str) else getattr(given.plugin, "__name__", "plugin")
    pins = _pins.default_file(name, request.config.rootpath) if given.pins is None else Path(given.pins)
    return Trials(given, callboard_contract_processes, tmp_path_factory.mktemp("contract"), pins, only)


@pytest.fixture
def callboard_clock() -> FakeClock:
    """Return a clock that only the test moves."""
    from callboard.testing import FakeClock

    return FakeClock()


@pytest.fixture
def callboard_database(tmp_path: Path) -> str:
    """Return the URL of an SQLite file of the test's own, which does not exist yet."""
    return f"sqlite:///{tmp_path / 'callboard.db'}"


@pytest.fixture
def make_engine(callboard_database: str, callboard_clock: FakeClock) -> Iterator[Callable[..., Engine]]:
    """Return a maker of engines on the test's database and clock; every engine is stopped afterwards.

    `make_engine(plugin, another, services={...})` loads these plugins only, `make_engine(plugins=None)` all that
    are installed. It takes what `Engine` takes, and `inline=True` for a `callboard.testing.InlineEngine`.
    """
    from callboard import Engine
    from callboard.testing import InlineEngine

    made: list[Engine] = []

    def make(*plugins: Any, inline: bool = False, **options: Any) -> Engine:
        options.setdefault("clock", callboard_clock)
        options.setdefault("plugins", list(plugins))
        kind = InlineEngine if inline else Engine
        engine = kind(options.pop("database", callboard_database), **options)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.stop(timeout=5)
