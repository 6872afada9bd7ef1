"""The page of the configuration has every argument, variable and option, with the defaults of the code."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from typing import Any

import pytest
from tests import pages

from callboard import Engine, RetryPolicy, TaskContext, TaskKind, Transaction
from callboard._actors import claiming, hooks, rounds, router, runner, workload
from callboard._clock import nanoseconds
from callboard._kinds import MAX_GROUP_ID_BYTES
from callboard._store import sqlite
from callboard.testing import CRASH_ENVIRONMENT

PAGE = "docs/reference/configuration.md"
POSTGRES = pages.read("engine/callboard/_store/postgres.py")  # which not everybody can import


def in_words(default: object) -> str:
    """Return an argument's default as the page says it."""
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, RetryPolicy):
        return "RetryPolicy()" if default == RetryPolicy() else repr(default)
    if isinstance(default, timedelta):
        seconds = default.total_seconds()
        if seconds >= 86_400:
            return f"{seconds / 86_400:g} days"
        return f"{seconds / 60:g} min" if seconds >= 120 else f"{seconds:g} s"
    return repr(default)


@pytest.mark.parametrize(
    ("heading", "call"),
    [
        ("Engine", Engine),
        ("A kind of task", TaskKind),
        ("RetryPolicy", RetryPolicy),
        ("An enqueue", Engine.enqueue),
    ],
)
def test_every_argument_is_on_the_page_with_its_default(heading: str, call: Any) -> None:
    parameters = inspect.signature(call).parameters.values()
    expected = {each.name: in_words(each.default) for each in parameters if each.name != "self"}

    assert pages.pairs(pages.tables(PAGE, heading)[0], "argument", "default") == expected


def test_tx_and_ctx_enqueue_take_the_same_but_the_connection() -> None:
    of_engine = list(inspect.signature(Engine.enqueue).parameters)

    for call in (Transaction.enqueue, TaskContext.enqueue):
        assert [*inspect.signature(call).parameters, "connection"] == of_engine


def test_every_variable_of_the_environment_is_on_the_page() -> None:
    sources = [file.read_text(encoding="utf-8") for file in (pages.ROOT / "engine").rglob("*.py")]
    read = {name for source in sources for name in re.findall(r'"([A-Z]+)" in os\.environ', source)}
    read |= {name for source in sources for name in re.findall(r'"(CALLBOARD_[A-Z_]+)"', source)}

    assert CRASH_ENVIRONMENT in read
    documented = set(pages.column(pages.tables(PAGE, "The environment")[0], "variable"))
    assert read <= documented
    assert documented - read == {"_CALLBOARD_COMPLETE", "TMPDIR"}  # click's, and Python's


def test_the_options_of_a_postgres_url_have_these_defaults() -> None:
    pytest.importorskip("psycopg")
    from callboard._store.postgres import _described

    given, _ = _described("postgresql://user@host/name")
    shown = pages.pairs(pages.table(PAGE, "option"), "option", "default")
    ours = {name: value for name, value in shown.items() if value != "libpq's"}

    assert ours == {name: given[name].strip() for name in ("application_name", "options")}
    accepted, _ = _described("postgresql://user@host/name?" + "&".join(f"{name}=1" for name in shown))
    assert set(shown) <= set(accepted)


def test_the_fixed_numbers_are_those_of_the_code() -> None:
    shown = [int(row["value"].replace(",", "")) for row in pages.table(PAGE, "number")]
    [read_anyway_s], [oldest_server] = (
        re.findall(rf"^{name} = (\d+)", POSTGRES, re.MULTILINE) for name in ("_READ_ANYWAY_S", "OLDEST_SERVER")
    )

    assert shown == [
        sqlite.POLL_INTERVAL_S,
        int(read_anyway_s),
        claiming.SET_ASIDE_NS // 10**9,
        rounds.INTERVAL_NS // nanoseconds(timedelta(hours=1)),
        rounds.NODE_RETENTION_NS // nanoseconds(timedelta(hours=1)),
        hooks.HOOK_TIMEOUT_NS // 10**9,
        hooks.MAX_EVENTS,
        hooks.MAX_FINISHED,
        workload.CLAIM_AHEAD,
        workload.SHARED_CLAIM_AHEAD,
        claiming.BATCH,
        router.MAX_LIVE_ACTORS,
        runner.MAX_ERROR_CHARS,
        MAX_GROUP_ID_BYTES,
        int(oldest_server),
    ]
