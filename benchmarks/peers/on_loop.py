"""What the peers on asyncio share: a thread with the event loop on which they enqueue and work."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from benchmarks.peers.contract import Enqueued, Handler, Peer, Unable

T = TypeVar("T")


class LoopPeer(Peer, ABC):
    """A peer whose API is coroutines. Enqueuer and worker share one loop, as in a service of that kind.

    A measurement is one coroutine as a whole, so that no task pays for a hand-over between threads.
    """

    def __init__(self, place: str, handler: Handler) -> None:
        """Open it on a loop of its own."""
        super().__init__(place, handler)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._worker: asyncio.Task[Any] | None = None
        self.run(self.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @abstractmethod
    async def open(self) -> None:
        """Make the tables, and connect."""

    @abstractmethod
    async def put(self, number: int) -> None:
        """Enqueue one task."""

    @abstractmethod
    async def put_many(self, numbers: Sequence[int]) -> None:
        """Enqueue a thousand tasks at once, or fewer."""

    @abstractmethod
    async def work(self) -> None:
        """Run what is due until cancelled."""

    def enqueue_each(self, numbers: Iterable[int], groups: int) -> None:
        """Await one after the other. Groups mean nothing to it."""

        async def enqueue() -> None:
            for number in numbers:
                await self.put(number)

        self.run(enqueue())

    def enqueue_bulk(self, numbers: Sequence[int], groups: int) -> None:
        """Enqueue a thousand at a time."""

        async def enqueue() -> None:
            for first in range(0, len(numbers), 1_000):
                await self.put_many(numbers[first : first + 1_000])

        self.run(enqueue())

    def enqueue_threads(self, numbers: Sequence[int], groups: int, threads: int) -> None:
        """Have no threads."""
        raise Unable("enqueues on one event loop")

    def enqueue_paced(self, gaps_s: Sequence[float], *, wait: bool) -> list[Enqueued]:
        """Do all of it on the loop; as elsewhere but for `await`."""

        async def enqueue() -> list[Enqueued]:
            enqueued, begun, due_s = [], asyncio.Event(), time.perf_counter()
            for number, gap_s in enumerate(gaps_s):
                due_s = (time.perf_counter() if wait else due_s) + gap_s
                await asyncio.sleep(max(due_s - time.perf_counter(), 0))
                if wait:
                    begun.clear()
                    self.handler.expect(number, begun.set)
                called_s = time.perf_counter()
                await self.put(number)
                enqueued.append(Enqueued(called_s, time.perf_counter()))
                if wait:
                    await begun.wait()
            return enqueued

        return self.run(enqueue())

    def start(self) -> None:
        """Start the worker on the loop."""

        async def start() -> None:
            self._worker = asyncio.create_task(self.work())

        self.run(start())
