"""What every contestant of a comparison is asked to do: Callboard, its peers and the raw limits alike.

A task is a number, and its payload as many bytes for all. What a contestant cannot do by its public API raises
`Unable` and is shown as "-".
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

PATIENCE_S = 300.0
"""How long a contestant may take for what it has been given."""


def nobody_waits() -> None:
    """Do nothing when a task has begun."""


class Unable(Exception):
    """This contestant has no way to do it; the message says why."""


class TaskFailed(Exception):
    """What the handler raises where it is to fail."""


class Handler:
    """What each contestant's task calls: notes when each task's first successful run began."""

    def __init__(self, failures: int = 0) -> None:
        """Fail the first `failures` runs of each task."""
        self.failures = failures
        self._failed: dict[int, int] = {}
        self.started_s: dict[int, float] = {}
        self._expected = -1
        self._begun: Callable[[], object] = nobody_waits

    def __call__(self, number: int) -> None:
        """Run a task; threads may call it at once, though never for one task."""
        if self.failures:
            failed = self._failed.get(number, 0)
            if failed < self.failures:
                self._failed[number] = failed + 1
                raise TaskFailed("as it was told")
        self.started_s.setdefault(number, time.perf_counter())
        if number == self._expected:
            self._begun()

    def expect(self, number: int, begun: Callable[[], object]) -> None:
        """Have `begun` called once task `number` has begun; say so before it is enqueued."""
        self._expected, self._begun = number, begun


class Enqueued(NamedTuple):
    """When a task's enqueue was called, and when it returned."""

    called_s: float
    returned_s: float


class Peer:
    """A queue on a new database. It has opened it when it is made, and runs nothing before `start`.

    Attributes:
        name: what the tables call it.
        database: which kind of place it is given: a file's path, or a server's URL.
        distributions: those whose versions matter.
        settings: what was chosen, and why that is fair.
        runs_handlers: whether it does so itself, and not a loop written around it.
        retries: why it cannot run a failed task again, or nothing.
        slowness: its share of the tasks is 1 in so many, since it would take minutes for all.
    """

    name: ClassVar[str]
    database: ClassVar[Literal["sqlite", "postgres"]]
    distributions: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[str]
    runs_handlers: ClassVar[bool] = True
    retries: ClassVar[str] = ""
    slowness: ClassVar[int] = 1

    def __init__(self, place: str, handler: Handler) -> None:
        """Open the database at `place`."""
        self.place = place
        self.handler = handler

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Enqueue tasks one by one, each committed before the next; `number % groups` is a task's group."""
        raise Unable("enqueues nothing")

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Enqueue tasks as the API does many at once."""
        raise Unable("has no bulk enqueue")

    def enqueue_threads(self, numbers: Sequence[int], groups: int, threads: int) -> None:
        """Enqueue tasks one by one, from so many threads at once."""
        workers = [
            threading.Thread(target=self.enqueue_each, args=(numbers[first::threads], groups))
            for first in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def enqueue_later(self, count: int) -> None:
        """Enqueue `count` tasks that are due in days, as fast as it can be done; it is not measured."""
        raise Unable("has no quick way to enqueue a million tasks for later")

    def enqueue_paced(self, gaps_s: Sequence[float], *, wait: bool) -> list[Enqueued]:
        """Enqueue one task after each gap; `wait` until it has begun before the next gap.

        The gaps that have passed are made up for, unless it waits: what is slow is not given less.
        """
        enqueued, begun, due_s = [], threading.Event(), time.perf_counter()
        for number, gap_s in enumerate(gaps_s):
            due_s = (time.perf_counter() if wait else due_s) + gap_s
            time.sleep(max(due_s - time.perf_counter(), 0))
            if wait:
                begun.clear()
                self.handler.expect(number, begun.set)
            called_s = time.perf_counter()
            self.enqueue_each((number,), 100)
            enqueued.append(Enqueued(called_s, time.perf_counter()))
            if wait and not begun.wait(PATIENCE_S):
                raise TimeoutError(f"a task was not picked up within {PATIENCE_S:g} s")
        return enqueued

    def start(self) -> None:
        """Begin to run what is due."""
        raise Unable("runs no handlers")

    def wait(self, count: int) -> None:
        """Wait until `count` tasks have been done, and nothing is left of them to commit."""
        end_s = time.monotonic() + PATIENCE_S
        while len(self.handler.started_s) < count or self.left():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{len(self.handler.started_s)} of {count} tasks were done")
            time.sleep(0.002)

    def left(self) -> int:
        """Return how many due tasks are not finished, as the contestant itself counts them."""
        raise Unable("counts nothing that is left; one that runs handlers does, or waits in a way of its own")


def random_gaps(count: int, shortest_s: float, longest_s: float) -> list[float]:
    """Return the same gaps in each run, so random that nobody's poll is in phase with them."""
    source = random.Random(1)
    return [source.uniform(shortest_s, longest_s) for _ in range(count)]


PAYLOAD_BYTES = 34


def payload(number: int) -> bytes:
    """Return a task's payload."""
    return b"%0*d" % (PAYLOAD_BYTES, number)
