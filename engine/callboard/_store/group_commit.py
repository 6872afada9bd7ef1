"""Let threads that enqueue at the same moment share a transaction, and so one wait for the disk.

Whoever comes first writes; those who come meanwhile wait for their turn, and the first of them writes for all. One
that nobody else waits beside pays nothing for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from callboard._task import NewTask
from callboard.errors import DatabaseUnavailableError, StoreError

_MOST = 512
"""Tasks of one transaction, so that the first of them does not wait for ever more."""


class _Entry:
    __slots__ = ("done", "error", "new", "task_id")

    def __init__(self, new: NewTask) -> None:
        self.new = new
        self.done = False
        self.task_id: int | None = None
        self.error: StoreError | None = None


class GroupCommit:
    """One store's inserts."""

    def __init__(
        self,
        insert_one: Callable[[NewTask], int | None],
        insert_all: Callable[[Sequence[NewTask]], list[int | None]],
    ) -> None:
        """Write by these, each of which commits what it writes or raises and has written nothing."""
        self._insert_one = insert_one
        self._insert_all = insert_all
        self._waiting: deque[_Entry] = deque()
        self._turn = threading.RLock()  # a signal's handler may enqueue

    def insert(self, new: NewTask) -> int | None:
        """Write and commit a task, and return its id; `None`, and nothing written, when its identity is live.

        Raises:
            StoreError: the database refused, and nothing of this task was written.
        """
        entry = _Entry(new)
        self._waiting.append(entry)
        try:
            with self._turn:
                while not entry.done:
                    self._write(entry)
        finally:
            if not entry.done:  # only an exception leads here
                self._waiting.remove(entry)
        if entry.error is not None:
            raise type(entry.error)(*entry.error.args) from entry.error
        return entry.task_id

    def _write(self, own: _Entry) -> None:
        entries = [entry for entry in list(self._waiting)[:_MOST] if not entry.done]
        if len(entries) == 1:
            ids = [self._insert_one(entries[0].new)]
        else:
            try:
                ids = self._insert_all([entry.new for entry in entries])
            except DatabaseUnavailableError as error:
                # For all: if each tried by itself, the last would wait as often as there are threads.
                for entry in entries:
                    self._end(entry, None, error)
                return
            except StoreError:  # of one of them
                entries, ids = [own], [self._insert_one(own.new)]
        for entry, task_id in zip(entries, ids, strict=True):
            self._end(entry, task_id)

    def _end(self, entry: _Entry, task_id: int | None, error: StoreError | None = None) -> None:
        if entry.done:  # by a signal's handler on this thread, which enqueued meanwhile
            return
        self._waiting.remove(entry)
        entry.task_id, entry.error, entry.done = task_id, error, True
