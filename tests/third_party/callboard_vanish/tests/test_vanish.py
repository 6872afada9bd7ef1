"""Messages vanish when their time has come, whatever became of the events that said so."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from callboard import Discard, Done, Engine, ServiceUnavailable
from callboard.testing import (
    all_enqueued,
    assert_enqueued,
    perform,
    refute_enqueued,
    run_due,
)
from callboard_vanish import DeleteMessage, MessageStore, Vanishing, schedule
from callboard_vanish.sqlite import SqliteMessages

GROUP = b"climbing"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


class Messages(SqliteMessages):
    """Messages that a test may put out of reach."""

    away = False

    def vanishes_at_ns(self, group_id: bytes, message_id: bytes) -> int | None:
        if self.away:
            raise ConnectionError("no route")
        return super().vanishes_at_ns(group_id, message_id)


@pytest.fixture
def messages(tmp_path: Path) -> Messages:
    return Messages(tmp_path / "messages.db")


@pytest.fixture
def engine(make_engine: Any, messages: Messages) -> Engine:
    """Return an engine with whatever is installed, as a service has it."""
    made: Engine = make_engine(plugins=None, services={MessageStore: messages})
    return made


def add(engine: Engine, messages: Messages, name: str, after: timedelta | None) -> Vanishing:
    """Store a message that is to vanish after a while."""
    at_ns = None if after is None else engine.clock.now_ns() + after // timedelta(microseconds=1) * 1_000
    messages.add(GROUP, name.encode(), name, at_ns)
    return Vanishing(GROUP, name.encode(), at_ns or 0)


def task(name: str) -> DeleteMessage:
    return DeleteMessage(group_id=GROUP, message_id=name.encode())


def test_the_engine_finds_the_plugin(engine: Engine) -> None:
    engine.load_plugins()
    [health] = [plugin for plugin in engine.health().plugins if plugin.name == "vanish"]
    assert health.kinds == ["tern.vanish.v1.DeleteMessage"]
    assert health.problems == {}


def test_a_message_vanishes_at_its_time(engine: Engine, messages: Messages) -> None:
    with engine.transaction() as tx:
        schedule(tx, add(engine, messages, "soon", HOUR))
        schedule(tx, add(engine, messages, "in ten days", 10 * DAY))
    assert_enqueued(engine, task("soon"), due=HOUR, group_id=GROUP)

    run_due(engine, until=HOUR)
    assert messages.texts() == ["in ten days"]
    run_due(engine, until=10 * DAY)
    assert messages.texts() == []
    refute_enqueued(engine, DeleteMessage)
    assert engine.dead_tasks() == []


def test_the_earliest_of_several_times_is_its_time(engine: Engine, messages: Messages) -> None:
    for hours in (3, 1, 2):
        engine.publish(add(engine, messages, "read", hours * HOUR))
    assert_enqueued(engine, task("read"), count=1, due=HOUR)


@pytest.mark.parametrize("longer", [3 * HOUR, None])
def test_a_longer_time_or_none_is_asked_for_before_it_is_deleted(
    engine: Engine, messages: Messages, longer: timedelta | None
) -> None:
    engine.publish(add(engine, messages, "read", HOUR))
    add(engine, messages, "read", longer)

    run_due(engine, until=2 * HOUR)

    assert messages.texts() == ["read"]
    assert all_enqueued(engine, DeleteMessage) == ([] if longer is None else [task("read")])
    run_due(engine, until=HOUR)
    assert messages.texts() == (["read"] if longer is None else [])


def test_reconcile_makes_up_for_events_that_were_lost(
    make_engine: Any, engine: Engine, messages: Messages
) -> None:
    engine.run_due()  # which reconciles, and finds nothing
    add(engine, messages, "a", HOUR)
    add(engine, messages, "b", -HOUR)
    add(engine, messages, "stays", None)
    refute_enqueued(engine, DeleteMessage)

    for _ in range(2):
        another = make_engine(plugins=None, services={MessageStore: messages})
        another.run_due()
        assert_enqueued(another, DeleteMessage, count=1)
        assert_enqueued(another, task("a"), due=HOUR)
    assert messages.texts() == ["a", "stays"]


def test_a_store_that_is_away_costs_no_attempt(engine: Engine, messages: Messages) -> None:
    add(engine, messages, "read", timedelta(0))
    messages.away = True
    with pytest.raises(ServiceUnavailable, match="out of reach"):
        perform(engine, task("read"))
    [waiting] = assert_enqueued(engine, task("read"))
    assert waiting.attempts == 0

    run_due(engine, until=timedelta(minutes=5))
    messages.away = False
    run_due(engine, until=timedelta(minutes=1))
    assert messages.texts() == []


def test_what_the_handler_says(engine: Engine, messages: Messages) -> None:
    assert perform(engine, task("gone")) == Done()
    assert perform(engine, DeleteMessage(group_id=GROUP)) == Discard("it names no message")


def test_a_host_without_messages_leaves_the_tasks_to_one_that_has_some(
    make_engine: Any, engine: Engine, messages: Messages
) -> None:
    engine.publish(add(engine, messages, "read", timedelta(0)))

    without: Engine = make_engine(plugins=None)
    without.run_due()
    assert_enqueued(without, task("read"), state="deferred")
    assert all(plugin.problems == {} for plugin in without.health().plugins)

    engine.run_due()
    assert messages.texts() == []


def test_in_a_service_that_runs_its_tasks_at_once(make_engine: Any, messages: Messages) -> None:
    engine: Engine = make_engine(plugins=None, services={MessageStore: messages}, inline=True)
    with engine:
        engine.publish(add(engine, messages, "read", timedelta(0)))
        assert messages.texts() == []
