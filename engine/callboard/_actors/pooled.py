"""Pykka actors that share a dispatcher's threads instead of having one each.

They use the methods that Pykka's `Actor` leaves to implementors of new actor types. Facts of Pykka 4 that
shape this file: an inbox whose `get` raises leaves the actor's loop cleanly, because that call sits outside
its `try`; the loop ends the actor on an exception, and the whole process's actors on a `BaseException`, so none
gets there; the process-wide registry is a list, which makes leaving it linear, and `ActorRegistry.stop_all()`
of a host reaches everything in it, so these actors never enter it.
"""

from __future__ import annotations

import queue
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import pykka

from callboard._actors.dispatcher import Dispatcher
from callboard._actors.enduring import log_defect

if TYPE_CHECKING:
    from pykka._envelope import Envelope

_SLICE = 64
"""Messages an actor handles before it goes to the back of the queue, so that a busy one cannot keep a thread."""


class _RanDryError(Exception):
    """Leave the actor's loop: its inbox is empty, or its slice is over."""


class _PooledInbox:
    """An inbox that has its actor dispatched when a message arrives and the actor is not running."""

    __slots__ = ("_actor", "_left", "_lock", "_messages", "_running")

    def __init__(self) -> None:
        # Not a deque: an empty one takes 760 bytes, which was a fifth of an idle group.
        self._messages: queue.SimpleQueue[Envelope[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = False
        self._left = 0
        self._actor: PooledActor | None = None

    def put(self, envelope: Envelope[Any], /) -> None:
        self._messages.put(envelope)
        if self._running:
            return  # the end of the slice looks again, after it has cleared the flag
        with self._lock:
            if self._running or self._actor is None:
                return
            self._running = True
        self._actor.dispatcher.submit(self._actor._run_slice)

    def get(self) -> Envelope[Any]:
        if self._left <= 0 or self._messages.empty():
            raise _RanDryError
        self._left -= 1
        return self._messages.get_nowait()

    def empty(self) -> bool:
        return self._messages.empty()

    def open(self, actor: PooledActor) -> None:
        """Attach the actor; the strong reference keeps it alive, since Pykka's refs are weak."""
        with self._lock:
            self._actor = actor
            if self._messages.empty():
                return
            self._running = True
        actor.dispatcher.submit(actor._run_slice)

    def spend(self, messages: int) -> None:
        """Shorten the slice, for a message that stands for several."""
        self._left -= messages

    def begin_slice(self, length: int = _SLICE) -> None:
        self._left = length

    def end_slice(self) -> bool:
        """Return whether the actor must be dispatched again."""
        with self._lock:
            # First clear, then look: `put` adds before it reads the flag, so no message is missed.
            self._running = False
            if self._messages.empty():
                return False
            self._running = True
            return True


class PooledActor(pykka.Actor):
    """An actor on `dispatcher`, which no exception ends. Subclasses implement `on_receive`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        """Run on `dispatcher`, once started; messages that come before that wait."""
        super().__init__()
        self.dispatcher = dispatcher

    @classmethod
    def start(cls, *args: Any, **kwargs: Any) -> pykka.ActorRef[Self]:
        """Start an actor outside Pykka's process-wide registry."""
        actor = cls(*args, **kwargs)
        actor._start_actor_loop()
        return actor.actor_ref

    @staticmethod
    def _create_actor_inbox() -> Any:
        return _PooledInbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self.actor_inbox.open(self)  # type: ignore[attr-defined]

    def _run_slice(self) -> None:
        inbox: Any = self.actor_inbox
        inbox.begin_slice()
        try:
            self._actor_loop_running()
        except _RanDryError:
            pass
        finally:
            if self.actor_stopped.is_set():
                self._actor_loop_teardown()
            if inbox.end_slice():
                self.dispatcher.submit(self._run_slice)

    def _handle_receive(self, message: Any) -> Any:
        try:
            return super()._handle_receive(message)
        except BaseException as error:  # Pykka would end this actor, or every actor of the process
            self.on_error(message, error)

    def _actor_loop_teardown(self) -> None:
        inbox: Any = self.actor_inbox
        inbox.begin_slice(sys.maxsize)
        asked = []
        while not inbox.empty():
            envelope = inbox.get()
            if envelope.reply_to is None:
                self.on_lost(envelope.message)
            else:
                asked.append(envelope)
        for envelope in asked:
            inbox.put(envelope)
        super()._actor_loop_teardown()

    def on_error(self, message: Any, error: BaseException) -> None:
        """See to a message whose handling raised; the actor goes on with the next one."""
        log_defect(type(self).__name__, error)

    def on_lost(self, message: Any) -> None:
        """See to a message that came too late for an actor which was stopped."""
