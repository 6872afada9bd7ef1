"""Let the process fork only while no thread is at a database, and leave a child no connection to inherit.

SQLite takes an inherited connection for one of the child's own: the locks that the parent holds through it count
as held in the child, too. The child's connections then take none. A database is damaged if both write at once,
commits are lost when the parent deletes the log, and what was locked at that moment stays locked in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from callboard._log import logger

_PATIENCE_S = 10.0
"""How long a fork waits for the sessions of other threads, and a session for a fork."""

_INHERITS = "; the child inherits connections and must only exec or end"


class Connected(Protocol):
    """What has connections to close."""

    def disconnect(self) -> None:
        """Close every connection of every thread; no session is open."""
        ...


class _Gate:
    """Keeps the sessions of this process apart from its forks, and its forks from each other."""

    def __init__(self) -> None:
        self._stores: weakref.WeakSet[Connected] = weakref.WeakSet()
        self._begin({})

    def _begin(self, inside: dict[int, int]) -> None:
        self._lock = threading.RLock()  # a signal's handler may fork
        self._changed = threading.Condition(self._lock)
        self._inside = inside
        self._forking: int | None = None

    def watch(self, store: Connected) -> None:
        with self._lock:
            self._stores.add(store)

    @contextmanager
    def session(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._lock:
            entered = self._inside.get(me, 0)
            if not entered and self._forking is not None:
                self._wait_for_turn(me, _PATIENCE_S)
            self._inside[me] = entered + 1
        try:
            yield
        finally:
            with self._lock:
                left = self._inside.get(me, 1) - 1  # not as it was: coroutines on one thread end in any order
                if left:
                    self._inside[me] = left
                else:
                    self._inside.pop(me, None)  # a child has only its own thread's
                    if self._forking is not None:
                        self._changed.notify_all()

    def _wait_for_turn(self, me: int, timeout_s: float | None = None) -> None:
        self._changed.wait_for(lambda: self._forking in (None, me), timeout_s)

    def before(self) -> None:
        me = threading.get_ident()
        with self._lock:
            inside = me in self._inside  # waiting would not help, and others may wait for this transaction
            quiet = not inside and self._close(me)
        if inside:
            logger.warning("the process forks inside a transaction" + _INHERITS)
        elif not quiet:
            logger.warning("the process forks while another thread is in a transaction" + _INHERITS)

    def _close(self, me: int) -> bool:
        self._wait_for_turn(me)
        self._forking = me
        quiet = self._changed.wait_for(lambda: not self._inside, _PATIENCE_S)
        if quiet:
            for store in list(self._stores):
                store.disconnect()
        return quiet

    def after_in_parent(self) -> None:
        with self._lock:
            if self._forking == threading.get_ident():
                self._forking = None
                self._changed.notify_all()

    def after_in_child(self) -> None:
        me = threading.get_ident()
        self._begin({me: self._inside[me]} if me in self._inside else {})


_gate = _Gate()

watch = _gate.watch
"""Have a store disconnected before each fork."""

session = _gate.session
"""Use connections of a watched store, or its locks, on this thread; while the process forks, wait until it has."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_gate.before, after_in_parent=_gate.after_in_parent, after_in_child=_gate.after_in_child
    )
