"""Where actors run: a bounded, elastic pool of threads, or the caller's own thread.

The dispatcher is a seam. Whatever has `submit` can stand here, such as a simulation's, from which a seed chooses
what runs next.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from callboard._actors.enduring import endure

Call = Callable[[], None]

_LOOK_S = 0.002  # how long work may wait before the pool considers another thread
_BUSY_SHARE = 0.7  # of one core: above it threads compete for the interpreter, and one more would not help
_IDLE_S = 30.0  # how long a thread beyond the first waits for work before it ends


class Dispatcher(Protocol):
    """Run calls, some time soon."""

    def submit(self, call: Call) -> None:
        """Have `call` run; it must not raise."""
        ...


class _Calls:
    """A queue that loses nothing when an exception is thrown into the thread that waits for it.

    Such an exception shows as `get` returns, and what that had got would be gone.
    """

    def __init__(self) -> None:
        self._calls: deque[Call | None] = deque()
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, call: Call | None) -> None:
        self._calls.append(call)
        self._tokens.put(None)

    def take(self, timeout_s: float | None = None) -> Call | None:
        while True:
            try:
                self._tokens.get(timeout=timeout_s)
            except queue.Empty:
                raise
            except BaseException:
                self._tokens.put(None)  # the call is still there, so one token too many does no harm
                raise
            with suppress(IndexError):
                return self._calls.popleft()

    def empty(self) -> bool:
        return not self._calls


class OneThread:
    """A thread of its own for one actor: whatever else is busy, its calls are next."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._calls = _Calls()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: Call) -> None:
        """Have `call` run on the thread."""
        self._calls.put(call)

    def close(self) -> None:
        """Let the thread end after the calls that it was given; does not wait for it."""
        self._calls.put(None)

    def _work(self) -> None:
        endure("the scheduler's thread", self._serve)

    def _serve(self) -> None:
        while (call := self._calls.take()) is not None:
            call()


class InlineDispatcher:
    """Run calls on the thread that asks for it, one after the other: `Engine.run_due`."""

    def __init__(self) -> None:
        """Start empty."""
        self._calls: deque[Call] = deque()

    def submit(self, call: Call) -> None:
        """Keep `call` for `run_one`."""
        self._calls.append(call)

    def run_one(self) -> bool:
        """Run the call that waits longest; `False` when there is none."""
        if not self._calls:
            return False
        self._calls.popleft()()
        return True


class ThreadPool:
    """A pool that grows while work waits on blocked threads, up to `workers`, and shrinks when idle.

    It does not grow merely because work waits: while the threads keep a core busy, more of them would only
    compete for the interpreter (32 threads drained no-op tasks at half the rate of two).
    """

    def __init__(self, workers: int, name: str) -> None:
        """Start the first thread; `workers` is the most there will ever be."""
        self._workers = workers
        self._name = name
        self._calls = _Calls()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._taken = 0
        self._closed = False
        self._pressure = threading.Event()
        self._start_thread()
        threading.Thread(target=self._watch, name=f"{name}-watch", daemon=True).start()

    def submit(self, call: Call) -> None:
        """Have `call` run on a thread of the pool."""
        self._calls.put(call)
        if self._idle <= 0 and not self._pressure.is_set():
            self._pressure.set()

    def close(self) -> None:
        """Let every thread end after the call that it runs; waits for none of them."""
        with self._lock:
            self._closed = True
            count = len(self._threads)
        self._pressure.set()
        for _ in range(count):
            self._calls.put(None)

    def size(self) -> int:
        """Return how many threads there are."""
        return len(self._threads)

    def _start_thread(self) -> None:
        with self._lock:
            if self._closed:
                return
            number = len(self._threads) + 1
            thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
            raise

    def _work(self) -> None:
        try:
            endure("a thread of the pool", self._serve)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                call = self._calls.take(_IDLE_S)
            except queue.Empty:
                call = None if len(self._threads) > 1 else _nothing
            finally:
                with self._lock:
                    self._idle -= 1
                    self._taken += 1
            if not self._calls.empty() and not self._pressure.is_set():
                self._pressure.set()  # it was put while this thread still counted as idle
            if call is None:
                return
            call()

    def _watch(self) -> None:
        endure("the pool's watch", self._add_threads)

    def _add_threads(self) -> None:
        """Add threads while calls wait; asleep while none does."""
        while not self._closed:
            self._pressure.wait()
            taken, used_s, began_s = self._taken, time.process_time(), time.perf_counter()
            time.sleep(_LOOK_S)
            # First clear, then look: `submit` puts and `close` says so before they set it, so none is missed.
            self._pressure.clear()
            if self._calls.empty():
                continue
            self._pressure.set()
            share = (time.process_time() - used_s) / (time.perf_counter() - began_s)
            if len(self._threads) < self._workers and (self._taken == taken or share < _BUSY_SHARE):
                with suppress(RuntimeError):  # the system has no thread left; the next look tries again
                    self._start_thread()


def _nothing() -> None:
    """Do what a thread does that stays although there was no work."""
