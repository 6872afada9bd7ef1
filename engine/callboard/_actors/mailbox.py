"""The scheduler's mailbox: an actor with a thread of its own, which turns messages into passes."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pykka

from callboard._actors.alarm import Alarm
from callboard._actors.dispatcher import Dispatcher
from callboard._actors.hooks import HookCaller
from callboard._actors.node import Node
from callboard._actors.pooled import PooledActor
from callboard._actors.rounds import Rounds
from callboard._actors.scheduler import Scheduler
from callboard._clock import nanoseconds
from callboard._error_text import trace_of
from callboard._log import logger
from callboard._retry import DEFAULT_POLICY, backoff_ns
from callboard._store.failures import needs_help
from callboard._task import FinishedTask
from callboard.errors import NotADatabaseError, StoreError

if TYPE_CHECKING:
    from callboard._store.interface import Store

_FIRST_WAIT_NS = 10**8
_LONGEST_WAIT_NS = nanoseconds(DEFAULT_POLICY.initial) * 2


class Ring(NamedTuple):
    """The alarm rang."""


class WhenIdle(NamedTuple):
    """Set the future once nothing that this node can run is due or running."""

    future: Future[None]


class WhenDrained(NamedTuple):
    """Set the future once nothing claimed is left; nothing is claimed any more."""

    future: Future[None]


class Died(NamedTuple):
    """Count and report tasks that a host's transaction moved to the dead-task table."""

    tasks: list[FinishedTask]


class Quit(NamedTuple):
    """Hand back what has not begun, and end."""


class Wake(NamedTuple):
    """Read the table again."""


WAKE, RING, QUIT = Wake(), Ring(), Quit()


class SchedulerActor(PooledActor):
    """Make a pass for each message. It outlives every error: whatever a pass raises, a later one tries again."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        store: Store,
        node: Node,
        scheduler: Scheduler,
        alarm: Alarm,
        rounds: Rounds,
        hooks: HookCaller,
    ) -> None:
        """Drive `scheduler` on the one thread that `dispatcher` has."""
        super().__init__(dispatcher)
        self._store = store
        self._node = node
        self._scheduler = scheduler
        self._alarm = alarm
        self._rounds = rounds
        self._hooks = hooks
        self._resources = ExitStack()
        self._connected = False
        self._woken = False
        self._quitting = False
        self._when_idle: list[Future[None]] = []
        self._when_drained: list[Future[None]] = []
        self._failures = 0
        self._retry_at_s = 0.0
        self.store_error: str | None = None
        self.stuck = False
        self.ended: Future[None] = Future()

    def begin(self) -> None:
        """Handle what has been sent, and what will be."""
        self._start_actor_loop()

    def wake(self) -> None:
        """Have the table read again; called on any thread. Wakes that come before that are one."""
        if not self._woken:
            self._woken = True
            self.post(WAKE)

    def post(self, message: Any) -> None:
        """Send a message from any thread; one that comes after the end is dropped."""
        with suppress(pykka.ActorDeadError):
            self.actor_ref.tell(message)

    def on_receive(self, message: Any) -> None:
        """Handle one message and let nothing out, since Pykka would end the actor for good."""
        try:
            self._note(message)
            if self._connected or self._connect(message):
                self._handle(message)
            else:
                self._answer_drained()
        except StoreError as error:
            self._postpone(error, str(error))
        except BaseException as error:
            logger.error("the scheduler's pass failed; another one follows\n{}", trace_of(error))
            self._postpone(error, repr(error))
        if isinstance(message, Quit):
            self._end()

    def _connect(self, message: Any) -> bool:
        """Connect, unless that failed a moment ago; return whether it was tried.

        A stop does not wait for that moment.
        """
        if self._alarm.time_s() < self._retry_at_s and not isinstance(message, Quit):
            return False
        self._resources.enter_context(self._store.thread())
        self._connected = True
        if self._failures:
            self._node.excuse()
        return True

    def _note(self, message: Any) -> None:
        """Take from a message what must be neither lost nor late while the database is out of reach."""
        match message:
            case Wake():
                self._woken = False  # or no wake would ever be sent again
            case WhenIdle(future):
                self._when_idle.append(future)
            case WhenDrained(future):
                self._when_drained.append(future)
            case Died(tasks):
                self._scheduler.report(tasks)
            case Ring():
                self._scheduler.watch.handlers()

    def _handle(self, message: Any) -> None:
        match message:
            case Wake() | WhenIdle() | WhenDrained():
                self._step()
            case Ring():
                self._ring()
            case Quit():
                self._scheduler.step()
                self._scheduler.hand_back_unstarted()

    def _ring(self) -> None:
        clock_was_set = self._scheduler.watch.clock()
        if clock_was_set:
            self._hooks.bring_back()
        self._hooks.watch()
        self._rounds.make()
        others_wrote = self._scheduler.watch.others_wrote()
        if others_wrote:
            self._scheduler.others_wrote()
        if others_wrote or clock_was_set or self._scheduler.is_due() or self._failures:
            self._step()
        else:
            self._set_alarm()  # which forgets the deadline that it rang for, and that may have been the rounds'
        if self._node.look(changed=others_wrote):  # last: a task that somebody enqueued need not wait for it
            self._step()

    def _step(self) -> None:
        if self._pass():
            self.wake()  # behind the messages that wait, so that a busy table cannot shut them out
        else:
            self._answer()

    def _pass(self) -> bool:
        again = self._scheduler.step()
        if self._failures:
            self._recovered()
        self._set_alarm()
        return again

    def _set_alarm(self) -> None:
        self._alarm.set(min(self._scheduler.deadline_ns, self._rounds.deadline_ns))

    def _answer(self) -> None:
        self._answer_drained()
        if not self._when_idle or not self._scheduler.is_quiet():
            return
        # Once more: a hook may have enqueued something after the last pass, and ended since.
        if self._pass():
            self.wake()
        elif self._scheduler.is_quiet():
            while self._when_idle:
                self._when_idle.pop().set_result(None)

    def _answer_drained(self) -> None:
        if not self._when_drained:
            return
        # A stop need not wait for outcomes that cannot be written, however long it waits.
        if self._scheduler.is_drained() or (self.stuck and self._scheduler.has_ended()):
            while self._when_drained:
                self._when_drained.pop().set_result(None)

    def _postpone(self, error: BaseException, reason: str) -> None:
        """Stop claiming until the database answers again, on a new connection (rule 11)."""
        self._connected = False
        self._store.drop_connection()
        self._resources.close()
        self._scheduler.others_wrote()  # as far as anybody can tell
        self._failures += 1
        stuck = needs_help(error)
        if stuck and not self.stuck:
            logger.error("no task is claimed or finished, and waiting is no remedy: {}", reason)
        elif self._failures == 1:
            logger.error("no task is claimed or finished until the database answers: {}", reason)
        self.store_error, self.stuck = reason, stuck
        if isinstance(error, NotADatabaseError):
            while self._when_idle:
                self._when_idle.pop().set_exception(error)  # it would wait for ever
        wait_s = backoff_ns(self._failures, _FIRST_WAIT_NS, DEFAULT_POLICY.factor, _LONGEST_WAIT_NS) / 1e9
        self._retry_at_s = self._alarm.time_s() + wait_s
        self._alarm.within(wait_s)
        self._answer_drained()  # a stop need not wait for the database when nothing runs

    def _recovered(self) -> None:
        logger.info("the database answers again")
        self._failures = 0
        self._retry_at_s = 0.0
        self.store_error, self.stuck = None, False
        self._hooks.want_reconcile("reconnect")

    def on_error(self, message: Any, error: BaseException) -> None:
        """Go on even where the handling of an error raised."""
        super().on_error(message, error)
        self._woken = False  # what raised may have been a wake that nobody has noted
        self._connected = False
        self._alarm.within(_FIRST_WAIT_NS / 1e9)

    def _end(self) -> None:
        self._quitting = True
        try:
            self._alarm.stop()
            self._resources.close()
        finally:
            self._stop()
            self.ended.set_result(None)

    def _stop(self) -> None:
        """Stop after `Quit` only: the engine cannot do without."""
        if self._quitting:
            super()._stop()
