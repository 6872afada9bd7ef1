"""Inline mode: what a host enqueues in a test has run when the call returns."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

from callboard._core import STOPPED
from callboard._engine import Engine


class InlineEngine(Engine):
    """An engine for tests that runs what is due as soon as it is committed, on the thread that committed it.

    It takes the arguments of `Engine`. Rows, claims, outcomes, retries and dead tasks are the real ones; there are
    no threads, and nothing to wait for. A handler that raises fails its attempt, as always: the caller of
    `enqueue` sees nothing of it, the row has it in `last_error`.

    What a handler enqueues runs after it, not inside it. So does what another thread enqueues meanwhile, which
    therefore does not wait. A task that is due later runs once the test has moved the clock and calls `run_due`.
    Coroutine handlers run on a loop of their own. On a connection without a commit hook (`sqlite3`, psycopg) the
    host's own `Engine.wake` after its commit is what runs the tasks.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Describe an engine; the arguments are those of `Engine`."""
        super().__init__(*arguments, **options)
        self._passing = threading.Lock()
        self._wanted = False

    def wake(self) -> None:
        """Run what is due, unless a transaction is open here, whose commit will."""
        if self._execute and self._core.state != STOPPED and not self._core.store.in_transaction():
            self.run_due()

    def run_due(self) -> int:
        """Run what is due; return how many handlers were called, 0 inside a handler, which holds the rest up."""
        called = 0
        self._wanted = True
        while self._wanted and self._passing.acquire(blocking=False):
            try:
                self._wanted = False
                called += super().run_due()
            finally:
                self._passing.release()
        return called

    def wait_idle(self, timeout: float | timedelta | None = None) -> bool:
        """Run what is due; return `True`."""
        self.run_due()
        return True

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Do what a start does, without a thread: migrate, take over, reconcile, and run what is due."""
        self._core.ready()
        self.wake()
