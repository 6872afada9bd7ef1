"""Give coroutine handlers an event loop: the one that entered `async with engine`, or a private one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from callboard._actors.enduring import endure

_GRACE_S = 1.0
"""How long `close` waits for cancelled coroutines. One that goes on all the same is left to its daemon thread."""


class HandlerLoop:
    """Run coroutines on a loop, starting a private one only when the first is submitted."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Use the host's `loop` if there is one."""
        self._loop = loop
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(
        self, coroutine: Coroutine[Any, Any, Any], ended: Callable[[asyncio.Task[Any]], None]
    ) -> Callable[[], None]:
        """Run a coroutine, have `ended` called once it has ended, and return what cancels it.

        Not `asyncio.run_coroutine_threadsafe`: its future counts as ended as soon as it is cancelled, while
        the coroutine may still be cleaning up.

        Raises:
            RuntimeError: the host's loop is closed.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, name="callboard-loop", daemon=True)
                self._thread.start()
            loop = self._loop
        begun: list[asyncio.Task[Any]] = []

        def begin() -> None:
            begun.append(loop.create_task(coroutine))
            begun[0].add_done_callback(ended)

        def cancel() -> None:
            with suppress(RuntimeError):  # the loop is closed, and so the coroutine has ended
                loop.call_soon_threadsafe(lambda: begun[0].cancel())

        loop.call_soon_threadsafe(begin)
        return cancel

    def close(self) -> None:
        """End the private loop, if there is one; the host's is left alone."""
        with self._lock:
            thread, loop = self._thread, self._loop
            self._thread = None
            self._closing = True
        if thread is not None and loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_GRACE_S)

    def _serve(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)

        def run() -> None:
            while not self._closing:  # whoever else stops the loop, or makes it raise, has others' handlers on it
                loop.run_forever()

        try:
            endure("the loop of coroutine handlers", run)
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.close()
