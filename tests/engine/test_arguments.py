"""What cannot work is refused at the call, and the complaint says what would."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import MakeEngine, Plugin, Scripted, receipt, receipts, thread, threads
from tests.engine.messages import SendReceipt

from callboard import ConfigurationError, Defer, Engine, KindError, RescheduleAt, TaskKind


class Mailer:
    pass


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"plugins": "kp_liveness"}, "plugins takes a list, such as ['kp_liveness']"),
        ({"services": [Mailer()]}, "services maps types to objects"),
        ({"services": {"Mailer": Mailer()}}, "services maps types to objects"),
        ({"dead_retention": 30}, "dead_retention must be a timedelta"),
        ({"dead_retention": timedelta(days=-1)}, "dead_retention must be a timedelta"),
        ({"workers": 0}, "workers must be a whole number"),
        ({"synchronous": "OFF"}, "synchronous must be 'FULL' or 'NORMAL'"),
    ],
)
def test_an_engines_arguments(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        Engine("sqlite:///callboard.db", **arguments)


@pytest.mark.parametrize("url", ["sqlite:///callboard.db?timeout=3", "sqlite:///file:callboard.db"])
def test_a_database_url_has_no_options(url: str) -> None:
    with pytest.raises(ConfigurationError, match="a plain path and no options"):
        Engine(url)


@pytest.mark.parametrize("handler", [lambda: None, lambda message: None, lambda message, ctx, more: None])
def test_a_handler_takes_a_message_and_a_context(handler: Callable[..., Any]) -> None:
    with pytest.raises(KindError, match=re.escape("SendReceipt: the handler is called as handler(message, ctx)")):
        TaskKind(SendReceipt, handler)


@pytest.mark.parametrize("handler", [lambda *both: None, lambda message, ctx, more=None: None, Scripted()])
def test_a_handler_may_take_more(handler: Callable[..., Any]) -> None:
    assert TaskKind(SendReceipt, handler).name == "acme.receipts.SendReceipt"


@pytest.mark.parametrize("key", ["", 7, b"key"])
def test_a_key_is_a_string(make_engine: MakeEngine, key: Any) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    with pytest.raises(ConfigurationError, match="key must be a non-empty string"):
        engine.enqueue(receipt("hello"), key=key)


SECONDS = 1_700_000_000


@pytest.mark.parametrize(
    "times", [{"not_before": SECONDS}, {"expires_after": SECONDS * 1000}, {"not_before": 1.5}]
)
def test_seconds_are_not_taken_for_nanoseconds_by_an_enqueue(make_engine: MakeEngine, times: Any) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    with pytest.raises(ConfigurationError, match="nanoseconds since the epoch"):
        engine.enqueue(receipt("hello"), **times)


@pytest.mark.parametrize("outcome", [Defer, RescheduleAt])
def test_nor_by_an_outcome(outcome: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="nanoseconds since the epoch"):
        outcome(SECONDS)


@pytest.mark.parametrize("timeout", [-1, -0.5, timedelta(seconds=-1), float("nan"), "5", True])
@pytest.mark.parametrize("call", ["stop", "wait_idle"])
def test_a_timeout_is_not_negative(make_engine: MakeEngine, call: str, timeout: Any) -> None:
    with make_engine(Plugin(receipts(Scripted()))) as engine:
        with pytest.raises(ConfigurationError, match=r"timeout must be at least 0 seconds"):
            getattr(engine, call)(timeout)
        assert engine.health().state == "running"


def test_no_task_expires_by_its_kinds_policy_before_it_may_run(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted()), threads(Scripted(), recurring=True)))
    with pytest.raises(ConfigurationError, match=r"expires 3 days.*give expires_after as well"):
        engine.enqueue(receipt("hello"), not_before=timedelta(days=3))
    assert engine.tasks() == []

    engine.enqueue(receipt("hello"), not_before=timedelta(days=3), expires_after=timedelta(days=4))
    engine.enqueue(thread("for ever"), not_before=timedelta(days=400))
    assert len(engine.tasks()) == 2


def test_no_task_expires_before_it_was_enqueued(make_engine: MakeEngine) -> None:
    engine = make_engine(Plugin(receipts(Scripted())))
    with pytest.raises(ConfigurationError, match="expires_after must not be negative"):
        engine.enqueue(receipt("hello"), expires_after=timedelta(seconds=-1))
    assert engine.tasks() == []
