"""A plugin that keeps every promise, and the surroundings in which it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engine.acting import Plugin, receipt, receipts
from tests.engine.messages import SendReceipt

from callboard import Engine, GroupCreated, GroupEvent, Transaction
from callboard.testing import FakeClock, crash_point
from callboard.testing.contract import PluginContract

GROUP = b"climbing"
TABLE = "CREATE TABLE receipt (text TEXT PRIMARY KEY, times INTEGER NOT NULL DEFAULT 1)"
PINS = Path(__file__).with_name("pins.json")


class Outbox:
    """A service that keeps what was sent in a file, once for each key."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def send(self, key: str, text: str) -> None:
        if key not in [line.partition(" ")[0] for line in self.sent()]:
            self.send_again(key, text)

    def send_again(self, key: str, text: str) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{key} {text.encode().hex()}\n")

    def sent(self) -> list[str]:
        return self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []


def handle(message: SendReceipt, ctx: Any) -> None:
    """Send a receipt, and enter it in a table."""
    outbox = ctx.service(Outbox)
    outbox.send(ctx.task.data_hash.hex(), message.text)
    crash_point("acme.receipt.sent")
    enter(message, ctx)


def enter(message: SendReceipt, ctx: Any) -> None:
    members = "nobody" if ctx.group is None else ",".join(sorted(ctx.group.members))
    ctx.clock.now_ns()
    with ctx.complete() as tx:
        tx.connection.execute(
            "INSERT INTO receipt (text) VALUES (?) ON CONFLICT DO NOTHING", (f"{members}: {message.text!r}",)
        )


def on_group(tx: Transaction, event: GroupEvent) -> None:
    if isinstance(event, GroupCreated):
        tx.enqueue(receipt("welcome", event.group_id))


def reconcile(engine: Engine) -> None:
    engine.enqueue_many([receipt("welcome", state.group_id) for state in engine.groups()])


def plugin(handler: Any = handle, hooks: Mapping[str, Any] | None = None, **options: Any) -> Plugin:
    """Return the plugin, or one with something else in place of some of it."""
    hooks = {"group_event": on_group, "reconcile": reconcile} if hooks is None else hooks
    return Plugin(receipts(handler, requires=(Outbox,), **options), name="receipts", **hooks)


class Sound(PluginContract):
    """Its surroundings."""

    plugin: Any = plugin()
    pins = PINS

    def samples(self) -> Sequence[SendReceipt]:
        return [receipt("hello", GROUP)]

    def services(self, folder: Path, clock: FakeClock) -> Mapping[type[Any], Any]:
        return {Outbox: Outbox(folder / "sent")}

    def prepare(self, engine: Engine, folder: Path) -> None:
        engine.group(GROUP).created("ann", members=["ann", "bob"])
        with engine.transaction() as tx:
            tx.connection.execute(TABLE)

    def effects(self, engine: Engine, folder: Path) -> list[str]:
        return sorted(engine.service(Outbox).sent())
