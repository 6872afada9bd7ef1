"""The pages of outcomes, deduplication, events and counters name what there is, as the code has it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from tests import pages
from tests.engine.acting import WAIT_S, Blocking, MakeEngine, Plugin, Scripted, receipt, receipts

from callboard import (
    DeadReason,
    Done,
    EnqueueStatus,
    FinishedTask,
    GroupEvent,
    Health,
    InstallationAdded,
    Outcome,
    OverdueHook,
    OverdueRun,
    PausedKind,
    PluginHealth,
)
from callboard._actors import runner

EVENTS = "docs/reference/events-and-counters.md"
OUTCOMES = "docs/reference/outcomes.md"
DEDUPLICATION = "docs/reference/deduplication.md"


def fields(row: dict[str, str]) -> list[str]:
    return [pages.plain(name) for name in row["fields"].split(", ")]


@pytest.mark.parametrize(
    ("heading", "classes"),
    [("Published events", (InstallationAdded,)), ("Group events", get_args(GroupEvent))],
)
def test_every_event_is_on_the_page_with_its_fields(heading: str, classes: tuple[Any, ...]) -> None:
    expected = {each.__name__: [field.name for field in dataclasses.fields(each)] for each in classes}

    assert {pages.plain(row["event"]): fields(row) for row in pages.tables(EVENTS, heading)[0]} == expected


def test_a_group_event_comes_from_the_call_that_the_page_names(make_engine: MakeEngine) -> None:
    told: list[str] = []
    engine = make_engine(Plugin(group_event=lambda tx, event: told.append(type(event).__name__)))
    group = engine.group(b"group")
    calls: dict[str, Callable[[], object]] = {
        "created": lambda: group.created("ann"),
        "membership_changed": lambda: group.membership_changed(added=["ben"]),
        "leave_requested": lambda: group.leave_requested("ben", b"m"),
        "consent": lambda: group.consent("allowed"),
    }
    for row in pages.tables(EVENTS, "Group events")[0]:
        [call] = re.findall(r"`(\w+)\(\.\.\.\)`", row["comes from"])
        calls.pop(call)()
        assert told.pop() == pages.plain(row["event"])

    assert calls == {}
    group.leave_settled(["ben"])
    group.active()
    assert told == []


def test_every_field_of_health_is_on_the_page_with_its_default() -> None:
    rows = pages.tables(EVENTS, "What `engine.health()` shows")[0]
    unset = dataclasses.MISSING
    expected = {
        field.name: ""
        if field.default is unset and field.default_factory is unset
        else "empty"
        if field.default_factory is not unset
        else repr(field.default)
        for field in dataclasses.fields(Health)
    }

    assert pages.pairs(rows, "field", "default") == expected


def test_every_counter_is_on_the_page(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.health().counters == {}

    with engine:
        found = engine.health().counters
        assert found == dict.fromkeys(pages.column(pages.tables(EVENTS, "Counters")[0], "counter"), 0)


@pytest.mark.parametrize(
    ("heading", "record"),
    [
        ("Of each plugin", PluginHealth),
        ("Of each handler that takes too long", OverdueRun),
        ("Of each hook that takes too long", OverdueHook),
        ("Of each paused kind", PausedKind),
        ("What `callboard_tasks_finished` gets", FinishedTask),
    ],
)
def test_every_field_of_a_record_is_on_the_page(heading: str, record: Any) -> None:
    fields = getattr(record, "_fields", None) or [field.name for field in dataclasses.fields(record)]

    assert pages.column(pages.tables(EVENTS, heading)[0], "field") == list(fields)


def test_every_reason_to_be_dead_is_on_the_page_with_a_remedy() -> None:
    rows = pages.table(EVENTS, "reason")

    assert pages.column(rows, "reason") == [str(reason) for reason in DeadReason]
    assert all(row["what to do"] for row in rows)


def test_every_outcome_is_on_the_page_with_its_arguments() -> None:
    shown = pages.pairs(pages.table(OUTCOMES, "it returns"), "it returns", "arguments")
    expected = {each.__name__: ", ".join(f.name for f in dataclasses.fields(each)) for each in get_args(Outcome)}

    assert shown == expected


def test_the_exceptions_that_count_no_attempt_are_on_the_page() -> None:
    rows = pages.table(OUTCOMES, "it raises")

    assert {pages.plain(row["it raises"]) for row in rows if row["counts as an attempt"] == "no"} == {
        each.__name__ for each in runner._UNCOUNTED
    }


def test_every_answer_of_an_enqueue_is_on_the_page() -> None:
    assert pages.column(pages.table(DEDUPLICATION, "status"), "status") == [
        str(status) for status in EnqueueStatus
    ]


def test_an_enqueue_that_meets_a_running_task_is_a_rerun_and_counts(make_engine: MakeEngine) -> None:
    handler = Blocking(Done())
    engine = make_engine(Plugin(receipts(handler)))
    with engine:
        first = engine.enqueue(receipt("hello"))
        handler.wait_begun("hello")
        again = engine.enqueue(receipt("hello"))
        assert (again.task_id, again.status) == (first.task_id, "rerun")
        assert first.task_id is not None
        task = engine.task(first.task_id)
        assert task is not None and task.requests == 2
        handler.let_go()
        assert engine.wait_idle(WAIT_S)
    assert handler.begun == ["hello", "hello"]


def test_what_a_merge_changes_is_the_requests_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted(ValueError("bad")))))
    task_id = engine.enqueue(receipt("hello")).task_id
    assert task_id is not None
    engine.run_due()
    before = engine.task(task_id)

    assert engine.enqueue(receipt("hello"), not_before=0).status == "merged"

    assert before is not None
    assert engine.task(task_id) == before._replace(requests=before.requests + 1)
