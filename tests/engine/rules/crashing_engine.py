"""An engine for a test to kill: it accepts receipts, works through them, and writes down what it did.

Each receipt is noted in a file, outside the database, and asks for a follow-up; each follow-up is noted in the
table `effect`, together with its completion. Run as a module: database, notes file, number of receipts.
"""

import os
import sys
from pathlib import Path

from tests.engine.acting import Plugin, receipt, receipts, threads
from tests.engine.messages import ReceiptThread, SendReceipt

from callboard import Engine, TaskContext

EFFECT_TABLE = "CREATE TABLE effect (text TEXT)"


class Notes:
    """Lines in a file, each on its way to the operating system before the next step, as SIGKILL demands."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, what: str, text: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{what} {text}\n".encode())
        os.close(descriptor)

    def read(self, what: str) -> list[str]:
        written = self._path.read_text() if self._path.exists() else ""  # a crash may come before the first note
        lines = [line.split(" ") for line in written.splitlines()]
        return [text for kind, text in lines if kind == what]


def noting(notes: Notes) -> Plugin:
    """Return the plugin that does the work."""

    def send(message: SendReceipt, ctx: TaskContext) -> None:
        notes.write("sent", message.text)
        ctx.enqueue(ReceiptThread(receipt=message))

    def follow_up(message: ReceiptThread, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            tx.connection.execute("INSERT INTO effect VALUES (?)", (message.receipt.text,))

    return Plugin(receipts(send), threads(follow_up))


def main(database: str, notes_path: str, count: str) -> None:
    notes = Notes(Path(notes_path))
    with Engine(database, plugins=[noting(notes)]) as engine:
        for number in range(int(count)):
            group = b"" if number % 2 else b"group-%d" % (number % 3)
            engine.enqueue(receipt(str(number), group))
            notes.write("accepted", str(number))
        assert engine.wait_idle(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
