"""A kind is checked when it is registered, before a task of it exists."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.messages import ReceiptThread, SendReceipt, TaggedReceipt

from callboard._clock import NEVER_NS
from callboard._kinds import KindRegistry, TaskKind, check_group_id
from callboard._outcome import Done
from callboard._retry import UNLIMITED_ATTEMPTS, RetryPolicy
from callboard.errors import CallboardError, KindError
from callboard.wire import KpRotation


def send(message: Any, ctx: Any) -> Done:
    return Done()


async def send_async(message: Any, ctx: Any) -> Done:
    return Done()


class Sender:
    """An object whose method, or which itself, is a handler."""

    def __call__(self, message: Any, ctx: Any) -> Done:
        return Done()

    async def send_async(self, message: Any, ctx: Any) -> Done:
        return Done()


class AsyncSender:
    async def __call__(self, message: Any, ctx: Any) -> Done:
        return Done()


class Mailer:
    """A service of the host."""


class Printer:
    """Another one."""


# TaskKind


def test_a_kind_is_named_by_its_message_and_has_the_documented_defaults() -> None:
    kind = TaskKind(SendReceipt, send)

    assert kind.name == "acme.receipts.SendReceipt"
    assert TaskKind(KpRotation, send).name == "kp_rotation"
    assert kind.retry == RetryPolicy()
    assert kind.recurring is False
    assert kind.requires == ()
    assert kind.on_unknown_fields == "run"
    assert kind.group_of(SendReceipt(group_id=b"g")) is None


def test_rule_12_the_default_timeout_is_5_minutes() -> None:
    assert TaskKind(SendReceipt, send).timeout_ns == 300 * 10**9


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param({"handler": None}, "the handler must be callable", id="no-handler"),
        pytest.param({"handler": "send"}, "the handler must be callable", id="name-of-a-handler"),
        pytest.param({"handler": SendReceipt()}, "the handler must be callable", id="message-as-handler"),
        pytest.param({"group_id": b"g"}, "group_id must be a function", id="group-id-not-a-function"),
        pytest.param({"retry": 3}, "retry must be a RetryPolicy", id="retry-not-a-policy"),
        pytest.param({"retry": None}, "retry must be a RetryPolicy", id="no-policy"),
        pytest.param({"timeout": timedelta(0)}, "timeout must be a timedelta above 0", id="timeout-0"),
        pytest.param({"timeout": timedelta(-1)}, "timeout must be a timedelta above 0", id="timeout-negative"),
        pytest.param({"timeout": 300}, "timeout must be a timedelta above 0", id="timeout-a-number"),
        pytest.param({"timeout": None}, "timeout must be a timedelta above 0", id="no-timeout"),
        pytest.param({"requires": Mailer}, "requires must be a tuple of types", id="requires-a-type"),
        pytest.param({"requires": [Mailer]}, "requires must be a tuple of types", id="requires-a-list"),
        pytest.param({"requires": ("Mailer",)}, "requires must be a tuple of types", id="requires-a-name"),
        pytest.param({"requires": (Mailer(),)}, "requires must be a tuple of types", id="requires-an-object"),
        pytest.param(
            {"on_unknown_fields": "skip"}, 'on_unknown_fields must be "run" or "defer"', id="unknown-fields"
        ),
        pytest.param({"on_unknown_fields": None}, 'on_unknown_fields must be "run" or "defer"', id="unknown-none"),
    ],
)
def test_a_kind_that_cannot_work_is_refused_by_name(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(KindError, match=rf"^acme\.receipts\.SendReceipt: {complaint}"):
        TaskKind(SendReceipt, **({"handler": send} | arguments))


@pytest.mark.parametrize("message_type", [None, object, dict, "acme.receipts.SendReceipt", SendReceipt()])
def test_a_kind_of_something_else_than_a_message_class_is_refused(message_type: Any) -> None:
    with pytest.raises(KindError, match="message_type must be a protobuf message class"):
        TaskKind(message_type, send)


def test_section_5_a_kind_whose_message_has_a_map_field_is_refused() -> None:
    with pytest.raises(KindError, match=r"acme\.receipts\.TaggedReceipt.*is a map"):
        TaskKind(TaggedReceipt, send)


def test_a_refused_kind_is_a_callboard_error_and_a_value_error() -> None:
    assert issubclass(KindError, CallboardError)
    assert issubclass(KindError, ValueError)


@pytest.mark.parametrize(
    ("handler", "is_async"),
    [
        pytest.param(send, False, id="function"),
        pytest.param(send_async, True, id="coroutine-function"),
        pytest.param(Sender(), False, id="object"),
        pytest.param(AsyncSender(), True, id="object-with-a-coroutine-call"),
        pytest.param(Sender().send_async, True, id="coroutine-method"),
        pytest.param(lambda message, ctx: None, False, id="lambda"),
        pytest.param(partial(send), False, id="partial"),
        pytest.param(partial(send_async), True, id="partial-of-a-coroutine-function"),
    ],
)
def test_a_kind_knows_whether_its_handler_is_a_coroutine_function(handler: Any, is_async: bool) -> None:
    assert TaskKind(SendReceipt, handler).is_async is is_async


@given(created_at_ns=st.integers(0, NEVER_NS))
def test_rule_09_a_recurring_kinds_rows_never_expire_and_never_exhaust(created_at_ns: int) -> None:
    kind = TaskKind(SendReceipt, send, recurring=True)

    assert kind.expiry_ns(created_at_ns) == NEVER_NS
    assert kind.max_attempts() == UNLIMITED_ATTEMPTS


@given(created_at_ns=st.integers(0, NEVER_NS), max_attempts=st.integers(1, UNLIMITED_ATTEMPTS))
def test_rule_08_a_one_shots_rows_expire_and_exhaust_by_its_policy(created_at_ns: int, max_attempts: int) -> None:
    retry = RetryPolicy(max_attempts=max_attempts, expires_after=timedelta(hours=1))
    kind = TaskKind(SendReceipt, send, retry=retry)

    assert kind.expiry_ns(created_at_ns) == min(created_at_ns + 3_600 * 10**9, NEVER_NS)
    assert kind.max_attempts() == max_attempts


# Group ids


def receipt_kind(group_id: Any) -> TaskKind[SendReceipt]:
    return TaskKind(SendReceipt, send, group_id=group_id)


@given(group_id=st.binary(min_size=1, max_size=255))
def test_a_group_id_has_1_to_255_bytes(group_id: bytes) -> None:
    assert check_group_id(group_id) == group_id
    assert receipt_kind(lambda message: message.group_id).group_of(SendReceipt(group_id=group_id)) == group_id


def test_a_kind_may_give_a_message_no_group() -> None:
    assert receipt_kind(lambda message: None).group_of(SendReceipt(group_id=b"g")) is None


@pytest.mark.parametrize("group_id", [b"", b"g" * 256, "g", bytearray(b"g"), 7])
def test_a_group_id_that_cannot_name_a_group_is_a_value_error(group_id: Any) -> None:
    with pytest.raises(ValueError, match="group_id must be 1 to 255 bytes"):
        check_group_id(group_id)
    with pytest.raises(ValueError, match="group_id must be 1 to 255 bytes"):
        receipt_kind(lambda message: group_id).group_of(SendReceipt())


# KindRegistry


def test_a_kind_registered_twice_is_refused_naming_both_plugins_and_the_kind() -> None:
    registry = KindRegistry({})
    first = TaskKind(SendReceipt, send)
    registry.register(first, "acme")

    with pytest.raises(KindError, match=r"'globex'.*'acme\.receipts\.SendReceipt'.*'acme'"):
        registry.register(TaskKind(SendReceipt, send_async), "globex")

    assert list(registry) == [(first, "acme")]
    assert registry.get("acme.receipts.SendReceipt") is first
    assert registry.runnable == {"acme.receipts.SendReceipt": first}


def test_a_plugin_that_registers_one_kind_twice_is_refused() -> None:
    registry = KindRegistry({})
    kind = TaskKind(SendReceipt, send)
    registry.register(kind, "acme")

    with pytest.raises(KindError, match="already registered"):
        registry.register(kind, "acme")


@pytest.mark.parametrize("kind", [None, SendReceipt, send, "acme.receipts.SendReceipt"])
def test_something_that_is_no_kind_is_refused_naming_the_plugin(kind: Any) -> None:
    registry = KindRegistry({})

    with pytest.raises(KindError, match=r"'acme'.*TaskKind"):
        registry.register(kind, "acme")
    assert list(registry) == []


def test_rule_16_a_kind_without_its_service_is_known_but_not_runnable_here() -> None:
    registry = KindRegistry({Mailer: Mailer()})
    runs = TaskKind(SendReceipt, send, requires=(Mailer,))
    waits = TaskKind(ReceiptThread, send, requires=(Mailer, Printer))
    registry.register(runs, "acme")
    registry.register(waits, "acme")

    assert registry.runnable == {runs.name: runs}
    assert registry.get(waits.name) is waits
    assert registry.missing_services(waits) == (Printer,)
    assert registry.missing_services(runs) == ()
    assert list(registry) == [(runs, "acme"), (waits, "acme")]


def test_an_unknown_name_gets_no_kind() -> None:
    assert KindRegistry({}).get("acme.receipts.SendReceipt") is None
