"""The conductor's own engine, which executes nothing: it enqueues, asks again, pulls in, cancels and revives."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from google.protobuf.wrappers_pb2 import StringValue
from tests.chaos import work
from tests.chaos.journal import Journal
from tests.engine.acting import Plugin
from tests.engine.messages import ReceiptThread, SendReceipt
from tests.ledger import DeadRow, LiveRow, What

from callboard import DatabaseUnavailableError, DeadTask, Engine, Task, TaskState
from callboard.wire import Task as Envelope

CROWDED = 150
"""Live tasks beyond which none is added, so that what was killed is seen to in time."""

_WEIGHTS = {
    "quick": 6,
    "slow": 4,
    "flaky": 4,
    "doomed": 1,
    "outage": 3,
    "unwanted": 1,
    "later": 3,
    "effect": 8,
    "parent": 4,
    "family": 4,
    "sleeper": 3,
    "post": 4,
    "echo": 4,
    "echoed_effect": 4,
    "expiring": 1,
    "async_quick": 3,
    "async_effect": 3,
    "async_flaky": 2,
}
_GROUPS = ("g1", "g2", "g3", "", "")
_RECENT = 40
_SLEEP_MS = 3_000_000  # less than the hour in which the kind's tasks expire
_PAUSE_S = 0.03
_MS = 1_000_000


class Host:
    """Whoever wants tasks done, at random but for a seed."""

    def __init__(self, url: str, journal: Journal, rng: random.Random, sorts: Sequence[str] = ()) -> None:
        """Use a database, whose tables this creates.

        Args:
            url: The database.
            journal: Where to write down what is asked.
            rng: What decides.
            sorts: The only sorts of tasks to ask for; all by default.
        """
        self._journal = journal
        self._rng = rng
        self._sorts_given = bool(sorts)
        self._sorts = list(sorts) or list(_WEIGHTS)
        self._weights = [_WEIGHTS[sort] for sort in self._sorts]
        self._recent: list[str] = []
        self._number = 0
        self._engine = Engine(
            url,
            plugins=[Plugin(*work.kinds(journal, "host", url))],
            execute=False,
            synchronous="NORMAL",
        )
        self._engine.migrate()
        with self._engine.transaction() as tx:
            for table in work.TABLES:
                tx.connection.execute(table)

    def close(self) -> None:
        """Close the engine."""
        self._engine.stop()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Act in the block, on a thread of its own: a process that is halted may hold the database's lock."""
        ended = threading.Event()
        errors: list[BaseException] = []

        def act() -> None:
            try:
                if not self._sorts_given:
                    for sort in ("recur", "recur", *self._rng.choices(["poison", "quick"], [1, 2])):
                        self._enqueue(self._new_text(sort))
                while not ended.wait(self._rng.uniform(0, _PAUSE_S)):
                    with suppress(DatabaseUnavailableError):  # refused, and so neither answered nor done
                        self._act()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=act, name="host")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if errors:
            raise errors[0]

    def _act(self) -> None:
        """Do one or a few of the things that a host may do."""
        if len(self._engine.tasks(limit=CROWDED)) < CROWDED:
            self._rng.choice([self._ask, self._ask, self._ask_many])()
        chance = self._rng.random()
        if chance < 0.25 and self._recent:
            self._enqueue(self._rng.choice(self._recent))
        elif chance < 0.32:
            self._with_a_task(self._pull_in)
        elif chance < 0.36:
            self._with_a_task(self._cancel)
        elif chance < 0.4:
            self._revive()

    def tasks(self) -> list[Task]:
        """Return all live tasks."""
        return self._engine.tasks(limit=100_000)

    def wake_sleepers(self) -> None:
        """Pull in what would else be left asleep."""
        soon_ns = self._engine.clock.now_ns() + _SLEEP_MS * _MS // 2
        for task in self.tasks():
            if task.next_attempt_at_ns > soon_ns:
                self._pull_in(task)

    def undone(self) -> list[Task]:
        """Return what is left to do; what comes again for ever does not count."""
        recurring = StringValue.DESCRIPTOR.full_name
        return [task for task in self.tasks() if task.kind != recurring or task.state == TaskState.RUNNING]

    def live_rows(self, offset_ns: int) -> list[LiveRow]:
        """Return the task table, with times on the monotonic clock, `offset_ns` behind the wall clock."""
        return [LiveRow(_text_in(task), task.state, task.next_attempt_at_ns - offset_ns) for task in self.tasks()]

    def dead_rows(self, offset_ns: int) -> list[DeadRow]:
        """Return the dead-task table likewise."""
        dead = self._engine.dead_tasks(limit=100_000)
        return [DeadRow(_text_in(row), row.reason, row.attempts, row.died_at_ns - offset_ns) for row in dead]

    def _new_text(self, sort: str) -> str:
        self._number += 1
        text = f"{sort} {self._number} {self._rng.choice(_GROUPS)}".strip()
        if sort != "poison":
            self._recent = [*self._recent[-_RECENT:], text]
        return text

    def _ask(self) -> None:
        text = self._new_text(self._rng.choices(self._sorts, self._weights)[0])
        delay_ms = self._rng.choice([0, 0, 0, 30, 200])
        if text.startswith("expiring"):
            self._enqueue(text, delay_ms=300, life_ms=150)
        elif text.startswith("sleeper"):
            self._enqueue(text, delay_ms=_SLEEP_MS)
        else:
            self._enqueue(text, delay_ms=delay_ms)

    def _ask_many(self) -> None:
        texts = [self._new_text(sort) for sort in self._rng.choices(self._sorts, self._weights, k=12)]
        refs = [self._note_asked(text) for text in texts]
        self._engine.enqueue_many([work.message_of(text) for text in texts])
        for ref, text in zip(refs, texts, strict=True):
            self._journal.note(What.ACCEPTED, task=text, ref=ref)

    def _enqueue(self, text: str, *, delay_ms: int = 0, life_ms: int | None = None) -> None:
        ref = self._note_asked(text, delay_ms, life_ms)
        self._engine.enqueue(
            work.message_of(text),
            not_before=timedelta(milliseconds=delay_ms) if delay_ms else None,
            expires_after=None if life_ms is None else timedelta(milliseconds=life_ms),
        )
        self._journal.note(What.ACCEPTED, task=text, ref=ref)

    def _note_asked(self, text: str, delay_ms: int = 0, life_ms: int | None = None) -> str:
        ref, now_ns = self._journal.new_ref(), time.monotonic_ns()
        self._journal.note(
            What.ASKED,
            at_ns=now_ns,
            task=text,
            ref=ref,
            due_ns=now_ns + delay_ms * _MS,
            expires_ns=None if life_ms is None else now_ns + life_ms * _MS,
            max_attempts=None if text.startswith("recur") else work.MAX_ATTEMPTS,
        )
        return ref

    def _with_a_task(self, do: Callable[[Task], None]) -> None:
        tasks = self._engine.tasks(limit=CROWDED)
        if tasks:
            do(self._rng.choice(tasks))

    def _pull_in(self, task: Task) -> None:
        text, ref, now_ns = _text_in(task), self._journal.new_ref(), time.monotonic_ns()
        self._journal.note(What.PULLED, at_ns=now_ns, task=text, ref=ref, due_ns=now_ns)
        self._engine.pull_in(task.identity, not_later_than_ns=self._engine.clock.now_ns())
        self._journal.note(What.ACCEPTED, task=text, ref=ref)

    def _cancel(self, task: Task) -> None:
        if task.kind == StringValue.DESCRIPTOR.full_name:
            return
        self._journal.note(What.CANCELLED, task=_text_in(task))
        self._engine.cancel(task.id)

    def _revive(self) -> None:
        dead = [row for row in self._engine.dead_tasks() if not _text_in(row).startswith("poison")]
        if not dead:
            return
        row = self._rng.choice(dead)
        ref = self._note_asked(_text_in(row), life_ms=(row.expires_at_ns - row.created_at_ns) // _MS)
        if self._engine.retry_dead(row.id) is not None:
            self._journal.note(What.ACCEPTED, task=_text_in(row), ref=ref)


def _text_in(row: Task | DeadTask) -> str:
    plugin = Envelope.FromString(row.data).plugin
    types: list[type[Any]] = [SendReceipt, ReceiptThread, StringValue]
    for message_type in types:
        if plugin.type_url.endswith(f"/{message_type.DESCRIPTOR.full_name}"):
            return work.text_of(message_type.FromString(plugin.value))
    raise ValueError(f"no task of this host: {plugin.type_url}")
