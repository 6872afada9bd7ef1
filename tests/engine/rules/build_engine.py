"""An engine of one of two builds in a process of its own, for a test to run beside the other and to kill.

The old build knows receipts as they were, and defers those with more in them; it has no plugin for threads. The
new build knows both with what they have now. On stdout each says `serving`, `began TEXT` for a receipt whose text
begins with `hold`, which never ends, and `ran TEXT ADDED ATTEMPTS` for every other. The end of stdin stops it.

Run as a module: database, options as JSON: `build` is `old` or `new`.
"""

import json
import sys
import threading
from typing import Any

from tests.engine.acting import Plugin
from tests.engine.messages import SendReceipt
from tests.engine.messages.newer import NewerReceipt, NewerThread
from tests.engine.rules.serving_engine import say

from callboard import Engine, TaskContext, TaskKind


def run(message: Any, ctx: TaskContext) -> None:
    """Say what is in the message, as this build sees it."""
    text = message.receipt.text if hasattr(message, "receipt") else message.text
    if text.startswith("hold"):
        say("began", text.replace(" ", "_"))
        threading.Event().wait()
    say("ran", text.replace(" ", "_"), getattr(message, "added", "") or "-", ctx.task.attempts)


def kinds_of(build: str, handler: Any = run) -> list[TaskKind[Any]]:
    """Return the kinds of a build."""
    group: dict[str, Any] = {"group_id": lambda message: message.group_id or None}
    if build == "old":
        return [TaskKind(SendReceipt, handler, on_unknown_fields="defer", **group)]
    return [TaskKind(NewerReceipt, handler, on_unknown_fields="defer", **group), TaskKind(NewerThread, handler)]


def main(database: str, options: str) -> None:
    build: str = json.loads(options)["build"]
    with Engine(database, plugins=[Plugin(*kinds_of(build))]):
        say("serving")
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
