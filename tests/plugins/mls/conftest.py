"""An engine on a real database with the MLS kinds, and a fake MLS stack under them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loguru import logger
from tests.plugins.mls.fake_backend import FakeBackend

from callboard import Engine
from callboard.testing import FakeClock
from callboard_mls import Backend


@pytest.fixture
def backend(callboard_clock: FakeClock) -> FakeBackend:
    return FakeBackend(callboard_clock)


@pytest.fixture
def mls_engine(make_engine: Callable[..., Engine], backend: FakeBackend) -> Callable[..., Engine]:
    """Return a maker of engines with the named plugins, found as installed entry points."""

    def make(*names: str, **options: Any) -> Engine:
        return make_engine(*names, services={Backend: backend}, **options)

    return make


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What the plugins log above DEBUG, once a host asked for it."""
    lines: list[str] = []
    sink = logger.add(
        lambda line: lines.append(line.rstrip()), level="INFO", format="{level} {message}", filter="callboard_mls"
    )
    logger.enable("callboard_mls")
    yield lines
    logger.disable("callboard_mls")
    logger.remove(sink)
