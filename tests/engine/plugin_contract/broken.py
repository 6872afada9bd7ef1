"""The sound plugin with one flaw each, of the sort that somebody might write."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from types import MappingProxyType
from typing import Any

from tests.engine.acting import Plugin, receipt
from tests.engine.messages import SendReceipt
from tests.engine.plugin_contract.sound import Outbox, Sound, enter, handle, on_group, plugin, reconcile

from callboard import Discard, Engine, TaskKind, Transaction

numbers = count()


class MisspeltHook(Sound):
    """What it calls a hook is none, so it would never be called."""

    plugin = Plugin(name="misspelt", group_events=on_group)


class GroupFromHash(Sound):
    """A group's id from `hash`, which is another one in each process: tasks of one group would overlap."""

    plugin = Plugin(
        TaskKind(SendReceipt, handle, group_id=lambda m: hash(m.text).to_bytes(8, "big", signed=True)),
        name="hashed",
    )


class OtherTable(Sound):
    """It writes something else each time."""

    plugin = plugin(lambda message, ctx: enter(receipt(f"{message.text} {os.getpid()}"), ctx))


def exits(message: SendReceipt, ctx: Any) -> None:
    if len(message.text) > 5:
        os._exit(3)
    handle(message, ctx)


class Exits(Sound):
    """Of a message that it does not expect it ends its process."""

    plugin = plugin(exits)


def sends_again(message: SendReceipt, ctx: Any) -> None:
    ctx.service(Outbox).send_again("receipt", message.text)


class SendsAgain(Sound):
    """It sends in each run, whatever was sent before."""

    plugin = plugin(sends_again)


def noted(tx: Transaction, text: str) -> bool:
    """Write a mark into the host's table; return whether it was not there."""
    done = tx.connection.execute("INSERT INTO receipt (text) VALUES (?) ON CONFLICT DO NOTHING", (text,))
    return bool(done.rowcount)


def marks_first(message: SendReceipt, ctx: Any) -> None:
    """Note that it was done, in the host's table, before it is done."""
    with ctx.engine.transaction() as tx:
        if not noted(tx, f"done {message.text}"):
            return
    ctx.service(Outbox).send(message.text, message.text)


class MarksFirst(Sound):
    """What is marked as done before it is done is lost by a crash in between."""

    plugin = plugin(marks_first)


def wants_what_it_knows(message: SendReceipt, ctx: Any) -> None:
    if message.SerializeToString() != receipt(message.text, message.group_id).SerializeToString():
        raise ValueError("a field that I do not know")
    handle(message, ctx)


class RefusesNewer(Sound):
    """A message with a field of a newer version fails."""

    plugin = plugin(wants_what_it_knows)


def asks_the_group(message: SendReceipt, ctx: Any) -> None:
    if "ann" in ctx.group.members:
        handle(message, ctx)


class NeedsGroup(Sound):
    """It takes for granted that the group is there."""

    plugin = plugin(asks_the_group)


def swallows(message: SendReceipt, ctx: Any) -> None:
    try:
        handle(message, ctx)
    except Exception as error:
        ctx.logger.warning("not sent: {}", error)


class Swallows(Sound):
    """When the service fails it is content."""

    plugin = plugin(swallows)


def undoes(message: SendReceipt, ctx: Any) -> None:
    with ctx.engine.transaction() as tx:
        begins = noted(tx, f"begun {message.text}")
    if begins and not ctx.cancelled:
        ctx.service(Outbox).send(message.text, message.text)


class LeavesMark(Sound):
    """A cancelled run leaves something that has the next one do nothing."""

    plugin = plugin(undoes)


def wants_time_to_pass(message: SendReceipt, ctx: Any) -> Discard | None:
    began_ns = ctx.task.created_at_ns
    if ctx.clock.now_ns() < began_ns:
        return Discard("it is not created yet")
    handle(message, ctx)
    return None


class TrustsClock(Sound):
    """It gives up when the clock was set back."""

    plugin = plugin(wants_time_to_pass)


class NeverReturns(Sound):
    """It waits for what does not come."""

    plugin = plugin(lambda message, ctx: threading.Event().wait(60), timeout=timedelta(seconds=2))


def reconciles_anew(engine: Engine) -> None:
    engine.enqueue(receipt(f"welcome {next(numbers)}", b"climbing"))
    reconcile(engine)


class ReconcilesAnew(Sound):
    """Each reconcile makes another task."""

    plugin = plugin(hooks={"group_event": on_group, "reconcile": reconciles_anew})


class NeverReconciles(Sound):
    """What a lost event would have made is lost."""

    plugin = plugin(hooks={"group_event": on_group})


class OtherPins(Sound):
    """Its pins are those of another time, when the numbers of two fields were the other way round."""

    pins = Sound.pins.with_name("swapped_pins.json")


class NoService(Sound):
    """The author has not said where its service is."""

    def services(self, folder: Any, clock: Any) -> dict[type[Any], Any]:
        return {}


class BadSample(Sound):
    """A sample on which the handler fails."""

    plugin = plugin(wants_what_it_knows)

    def samples(self) -> Sequence[SendReceipt]:
        return [SendReceipt.FromString(receipt("hello").SerializeToString() + b"\x80\x01\x01")]


class WaivedWithoutReason(Sound):
    """A promise that is not made, and nobody says why."""

    waived: Mapping[str, str] = MappingProxyType({"timeout": " "})
