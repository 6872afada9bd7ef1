"""What the engines do meanwhile: tasks of every sort, each of which writes down what it does before it does it.

The first word of a task's text is its sort, so the text alone says what its handler will do.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from google.protobuf.wrappers_pb2 import StringValue
from tests.chaos import database
from tests.chaos.journal import Journal
from tests.engine.messages import ReceiptThread, SendReceipt
from tests.ledger import Came, What

from callboard import (
    DatabaseUnavailableError,
    Defer,
    Discard,
    Done,
    Outcome,
    RescheduleAt,
    RetryPolicy,
    ServiceUnavailable,
    StaleRunError,
    TaskContext,
    TaskKind,
    Transaction,
)

TABLES = ("CREATE TABLE effect (text TEXT, ref TEXT)", "CREATE TABLE letter (text TEXT)")
"""What `ctx.complete` commits, and what goes with tasks that are enqueued on a connection of the handler's own."""

INITIAL_MS, FACTOR, CAP_MS, MAX_ATTEMPTS = 20, 2, 200, 4
POLICY = RetryPolicy(
    initial=timedelta(milliseconds=INITIAL_MS),
    factor=FACTOR,
    cap=timedelta(milliseconds=CAP_MS),
    max_attempts=MAX_ATTEMPTS,
    expires_after=timedelta(hours=1),
)

MS = 1_000_000

Message = SendReceipt | ReceiptThread | StringValue


def message_of(text: str) -> Message:
    """Return the payload of a task; its words are sort, number and, if it belongs to one, group."""
    sort, _, *group = text.split()
    if sort == "recur":
        return StringValue(value=text)
    receipt = SendReceipt(text=text, group_id=group[0].encode() if group else b"")
    return ReceiptThread(receipt=receipt) if sort.startswith("async") else receipt


def text_of(message: Message) -> str:
    """Return the text of a payload."""
    if isinstance(message, StringValue):
        return message.value
    return message.receipt.text if isinstance(message, ReceiptThread) else message.text


def group_of(message: Message) -> bytes | None:
    """Return the group that the text names."""
    group = text_of(message).split()[2:]
    return group[0].encode() if group else None


class Failed(Exception):
    """An attempt that was meant to fail."""


class Act:
    """One run of a handler, which tells the journal of itself."""

    def __init__(self, journal: Journal, rng: random.Random, message: Message, ctx: TaskContext, url: str) -> None:
        self.text = text_of(message)
        self.ctx = ctx
        self.rng = rng
        self._url = url
        self.ended = False
        self._completing_ns = 0
        self._journal = journal
        self._message = message
        self.ref = journal.new_ref()
        group = (group_of(message) or b"").decode()
        self._note(What.BEGUN, group=group, attempts=ctx.task.attempts)

    def _note(self, what: What, **fields: Any) -> None:
        self._journal.note(what, task=self.text, ref=self.ref, **fields)

    def end(self, came: Came, *, wait_ns: int | None = None, **fields: Any) -> None:
        """Note what is about to come of the run, or just did, and for how long it must not run again."""
        self.ended = True
        if wait_ns is not None:
            fields["due_ns"] = (self._completing_ns or time.monotonic_ns()) + wait_ns
        self._note(What.ENDED, came=came, **fields)

    def done(self) -> Outcome:
        self.end(Came.DONE)
        return Done()

    def fail(self) -> None:
        """Fail the attempt; by the rules, it waits longer each time, or was the last."""
        attempts = self.ctx.task.attempts + 1
        last = attempts >= MAX_ATTEMPTS and not self.text.startswith("recur")
        self.end(Came.FAILED, wait_ns=None if last else _backoff_ns(attempts))
        raise Failed(self.text)

    def reschedule(self, wait_ms: int) -> Outcome:
        self.end(Came.RESCHEDULED, wait_ns=wait_ms * MS)
        return RescheduleAt(timedelta(milliseconds=wait_ms))

    def complete(self, outcome: Outcome | None = None, wait_ms: int | None = None) -> None:
        """Commit an effect with the outcome."""
        try:
            with self.ctx.complete(outcome) as tx:
                write_effect(tx, self)
                self._completing_ns = time.monotonic_ns()
                self._note(What.COMPLETING, at_ns=self._completing_ns)
        except StaleRunError:
            self.end(Came.STALE)
            raise
        came = Came.DONE if wait_ms is None else Came.RESCHEDULED
        self.end(came, wait_ns=None if wait_ms is None else wait_ms * MS, completed=True)

    def buffer(self, text: str) -> None:
        """Ask for another task together with the outcome."""
        self._note_other(What.BUFFERED, text, self.ref)
        self.ctx.enqueue(message_of(text))

    def request_itself(self) -> None:
        """Ask for the very task that runs."""
        with self._asking(self.text):
            self.ctx.engine.enqueue(self._message)

    def post(self, text: str, end: str) -> None:
        """Write a letter and ask for its task on a connection of one's own, and end that transaction."""
        with database.transaction(self._url) as connection:
            database.execute(connection, "INSERT INTO letter VALUES (?)", text)
            if end == "ROLLBACK":
                self.ctx.engine.enqueue(message_of(text), connection=connection)
                connection.execute(end)
                return
            with self._asking(text):
                self.ctx.engine.enqueue(message_of(text), connection=connection)
                connection.execute(end)

    @contextmanager
    def _asking(self, text: str) -> Iterator[None]:
        ref = self._journal.new_ref()
        self._note_other(What.ASKED, text, ref)
        yield
        self._journal.note(What.ACCEPTED, task=text, ref=ref)

    def _note_other(self, what: What, text: str, ref: str) -> None:
        self._journal.note(what, task=text, ref=ref, max_attempts=MAX_ATTEMPTS)

    def linger(self, longest_ms: int) -> None:
        """Take some time."""
        time.sleep(self.rng.uniform(0, longest_ms) / 1000)


def _backoff_ns(attempts: int) -> int:
    return int(min(INITIAL_MS * FACTOR ** (attempts - 1), CAP_MS)) * MS


def write_effect(tx: Transaction, act: Act) -> None:
    """Write a row in the transaction of the outcome."""
    database.execute(tx.connection, "INSERT INTO effect VALUES (?, ?)", act.text, act.ref)


def quick(act: Act) -> Outcome:
    return act.done()


def slow(act: Act) -> Outcome:
    act.linger(150)
    return act.done()


def flaky(act: Act) -> Outcome:
    """Fail up to twice."""
    if act.ctx.task.attempts < int(act.text.split()[1]) % 3:
        act.fail()
    return act.done()


def doomed(act: Act) -> Outcome:
    act.fail()
    raise AssertionError


def outage(act: Act) -> Outcome:
    """Find the service away, most of the time."""
    if act.rng.random() < 0.6:
        act.end(Came.OUTAGE, wait_ns=_backoff_ns(act.ctx.task.outages + 1))
        raise ServiceUnavailable("away")
    return act.done()


def unwanted(act: Act) -> Outcome:
    act.end(Came.DISCARDED)
    return Discard("nobody wants it")


def later(act: Act) -> Outcome:
    """Put it off, most of the time: as another attempt, or as a new life."""
    chance = act.rng.random()
    if chance < 0.3:
        act.end(Came.DEFERRED, wait_ns=40 * MS)
        return Defer(timedelta(milliseconds=40))
    if chance < 0.6:
        return act.reschedule(40)
    return act.done()


def effect(act: Act) -> None:
    act.linger(20)
    act.complete()


def parent(act: Act) -> Outcome:
    """Ask for two follow-ups together with the outcome; fail the first attempts, which must ask for none."""
    number, *group = act.text.split()[1:]
    act.buffer(" ".join(["effect", f"{number}.1", *group]))
    act.buffer(" ".join(["quick", f"{number}.2"]))
    if act.ctx.task.attempts < int(number) % 2:
        act.fail()
    return act.done()


def family(act: Act) -> None:
    """Ask for a follow-up, and complete with an effect."""
    number = act.text.split()[1]
    act.buffer(f"effect {number}.3")
    act.complete()


def sleeper(act: Act) -> Outcome:
    """Run if it was pulled in."""
    return act.done()


def post(act: Act) -> Outcome:
    """Ask for a task together with a row of one's own, and take back every third such wish."""
    number = int(act.text.split()[1])
    try:
        act.post(f"quick {number}.4", "COMMIT" if number % 3 else "ROLLBACK")
    except Exception as error:
        if not database.is_away(error):
            raise
        act.end(Came.OUTAGE)
        raise ServiceUnavailable("the database is locked") from error
    return act.done()


def echo(act: Act) -> Outcome:
    """Ask for itself while it runs, at times."""
    if act.rng.random() < 0.5:
        act.request_itself()
    if act.rng.random() < 0.2:
        act.fail()
    return act.done()


def echoed_effect(act: Act) -> None:
    """Ask for itself while it runs, at times, and complete with an effect."""
    if act.rng.random() < 0.4:
        act.request_itself()
    act.complete()


def poison(act: Act) -> Outcome:
    """Take the process down, every time."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def expiring(act: Act) -> Outcome:
    """Run only if it was asked for again without an end to its life."""
    return act.done()


SORTS: dict[str, Callable[[Act], Outcome | None]] = {
    sort.__name__: sort
    for sort in (
        quick,
        slow,
        flaky,
        doomed,
        outage,
        unwanted,
        later,
        effect,
        parent,
        family,
        sleeper,
        post,
        echo,
        echoed_effect,
        poison,
        expiring,
    )
}
"""What a handler does, by the first word of the task's text."""


def recur(act: Act) -> Outcome | None:
    """Come again for ever, every other time with an effect."""
    wait_ms = act.rng.randint(50, 250)
    if act.rng.random() < 0.1:
        act.fail()
    if act.rng.random() < 0.5:
        return act.reschedule(wait_ms)
    outcome = RescheduleAt(timedelta(milliseconds=wait_ms))
    act.complete(outcome, wait_ms)
    return None


def kinds(journal: Journal, seed: str, url: str) -> list[TaskKind[Any]]:
    """Return the kinds of all tasks; `url` is the engine's database."""
    rng = random.Random(seed)

    def receipt(message: SendReceipt, ctx: TaskContext) -> Outcome | None:
        act = Act(journal, rng, message, ctx, url)
        return played(act, SORTS[act.text.split()[0]])

    async def coroutine(message: ReceiptThread, ctx: TaskContext) -> Outcome | None:
        act = Act(journal, rng, message, ctx, url)
        try:
            await asyncio.sleep(rng.uniform(0, 0.1))
        except BaseException:
            act.end(Came.FAILED)
            raise
        return played(act, SORTS[act.text.split()[0].removeprefix("async_")])

    def recurring(message: StringValue, ctx: TaskContext) -> Outcome | None:
        return played(Act(journal, rng, message, ctx, url), recur)

    def played(act: Act, sort: Callable[[Act], Outcome | None]) -> Outcome | None:
        try:
            return sort(act)
        except BaseException as error:
            if not act.ended:
                act.end(Came.OUTAGE if isinstance(error, DatabaseUnavailableError) else Came.FAILED)
            raise

    return [
        TaskKind(SendReceipt, receipt, group_id=group_of, retry=POLICY),
        TaskKind(ReceiptThread, coroutine, group_id=group_of, retry=POLICY),
        TaskKind(StringValue, recurring, group_id=group_of, retry=POLICY, recurring=True),
    ]
