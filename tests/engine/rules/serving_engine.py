"""An engine in a process of its own, for a test to kill, halt and talk to.

On stdout it says what happens, one line each: `serving`, then `begun TEXT GROUP NS` and `ended TEXT GROUP NS` with
the machine's monotonic clock, and `stale TEXT` when `ctx.complete` was refused. The first word of a receipt's text
says what its handler does: `quick` nothing, `die` ends the process, `hold` waits for a line on stdin that says
what next: `end TEXT`, `complete TEXT` (by `ctx.complete`, which notes the text in the table `effect`),
`again TEXT` (`RescheduleAt`). The line `enqueue TEXT` enqueues a receipt, `many FIRST END` those of these numbers
over 50 groups at once; the end of stdin stops the engine.

Run as a module: database, options of `Engine` as JSON with the lease in seconds.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from tests.engine.acting import Plugin, receipt, receipts, threads
from tests.engine.messages import ReceiptThread, SendReceipt
from tests.engine.rows import is_postgres

from callboard import Engine, RescheduleAt, RetryPolicy, StaleRunError, TaskContext, TaskKind

EFFECT_TABLE = "CREATE TABLE effect (text TEXT)"

AT_ONCE = RetryPolicy(initial=timedelta(0))
"""A task that crashed alone need not wait, so that tests need not either."""


def say(*words: object) -> None:
    """Write a line in one piece: threads share the pipe, and SIGKILL must not cost a line that was said."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Told:
    """What stdin said about each held text."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._orders: dict[str, str] = {}

    def note(self, order: str, text: str) -> None:
        with self._changed:
            self._orders[text] = order
            self._changed.notify_all()

    def wait(self, text: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self._orders, 60)
            return self._orders.pop(text)


def serving_kinds(told: Told, database: str) -> list[TaskKind[Any]]:
    """Return receipts, which follow their orders and ask for a follow-up, and recurring threads, which only do."""
    note_effect = f"INSERT INTO effect VALUES ({'%s' if is_postgres(database) else '?'})"

    def send(message: SendReceipt, ctx: TaskContext) -> Any:
        group = message.group_id.decode() or "-"
        say("begun", message.text.replace(" ", "_"), group, time.monotonic_ns())
        try:
            return act(message.text, ctx)
        finally:
            say("ended", message.text.replace(" ", "_"), group, time.monotonic_ns())

    def act(text: str, ctx: TaskContext) -> Any:
        first = text.split()[0]
        if first == "die":
            os._exit(3)
        if first == "quick":
            return None
        ctx.enqueue(receipt(f"quick after {text}"))
        match told.wait(text):
            case "again":
                return RescheduleAt(timedelta(0))
            case "complete":
                try:
                    with ctx.complete() as tx:
                        tx.connection.execute(note_effect, (text,))
                except StaleRunError:
                    say("stale", text.replace(" ", "_"))
                    raise
        return None

    def recur(message: ReceiptThread, ctx: TaskContext) -> Any:
        send(message.receipt, ctx)
        return RescheduleAt(timedelta(hours=1))

    return [receipts(send, retry=AT_ONCE), threads(recur, retry=AT_ONCE, recurring=True)]


def main(database: str, options: str) -> None:
    told, settings = Told(), json.loads(options)
    settings["lease"] = timedelta(seconds=settings.get("lease", 60))
    with Engine(database, plugins=[Plugin(*serving_kinds(told, database))], **settings) as engine:
        say("serving")
        for line in sys.stdin:
            order, text = line.rstrip("\n").split(" ", 1)
            match order:
                case "enqueue":
                    engine.enqueue(receipt(text))
                case "many":
                    first, end = map(int, text.split())
                    engine.enqueue_many(
                        receipt(f"quick {number}", b"group-%d" % (number % 50)) for number in range(first, end)
                    )
                case _:
                    told.note(order, text)


if __name__ == "__main__":
    main(*sys.argv[1:])
