"""Give coroutine handlers an event loop: the one that entered `async with engine`, or a private one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any


class HandlerLoop:
    """Run coroutines on a loop, starting a private one only when the first is submitted."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Use the host's `loop` if there is one."""
        self._loop = loop
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine; called on any thread."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, name="callboard-loop", daemon=True)
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def close(self) -> None:
        """End the private loop, if there is one; the host's is left alone."""
        with self._lock:
            thread, loop = self._thread, self._loop
            self._thread = None
        if thread is not None and loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _serve(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.close()
