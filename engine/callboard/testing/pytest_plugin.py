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

# So that a store that breaks the contract is shown with the values that tell.
pytest.register_assert_rewrite("callboard.testing.store_contract")


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
