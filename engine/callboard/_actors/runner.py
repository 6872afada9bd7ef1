"""Call a handler and catch whatever comes of it. Nothing that a plugin raises gets past this file."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from callboard._actors import reporting
from callboard._actors.forked import end_child
from callboard._actors.loops import HandlerLoop
from callboard._actors.node import Node
from callboard._actors.throttle import Throttle
from callboard._context import TaskContext
from callboard._error_text import storable, trace_of
from callboard._log import logger
from callboard._outcome import Defer, Discard, Done, Failure, Outcome, RescheduleAt
from callboard._run import Run, Unsettled
from callboard.errors import DatabaseUnavailableError, ServiceUnavailable, StaleRunError

if TYPE_CHECKING:
    from callboard._core import Core

MAX_ERROR_CHARS = 8_000
"""How much is kept in `last_error`: half for where it happened, half for the exception and its message."""

_DONE = Done()

_UNCOUNTED = (ServiceUnavailable, DatabaseUnavailableError, StaleRunError)
"""What a handler raises through no fault of the task (rules 8, 11 and 10)."""


class Runner:
    """Run claimed tasks, each once, and hand the ended runs to `deliver`."""

    def __init__(
        self,
        core: Core,
        node: Node,
        throttle: Throttle,
        deliver: Callable[[Run], None],
        loop: HandlerLoop,
        *,
        interruptible: bool,
    ) -> None:
        """Run for `core`.

        Args:
            core: the engine's, for handlers' contexts.
            node: whose lease a run needs to start.
            throttle: learns from how runs end, and says which may not begin because their kind was paused.
            deliver: takes each run once it has ended.
            loop: where coroutines run.
            interruptible: whether a `KeyboardInterrupt` on the main thread is the user's, not the handler's.
        """
        self._core = core
        self._node = node
        self._throttle = throttle
        self._hand_in = deliver
        self._loop = loop
        self._interruptible = interruptible
        self.stopping = False
        self.interrupt: KeyboardInterrupt | None = None
        self.calls = 0

    def run(self, run: Run, then: Callable[[], None] | None = None) -> bool:
        """Run a task; return whether it has ended, else `then` is called when it does."""
        try:
            return self._run(run, then)
        except BaseException as error:  # not the handler's: a bug of ours, or thrown into this thread
            self.fail(run, error)
            return True

    def fail(self, run: Run, error: BaseException) -> None:
        """End a run that something else than its handler has failed; does nothing if it has ended."""
        if run.delivered:
            return
        if run.result is None:
            run.result = self._interrupted() if self._is_users(error) else _failure(error)
        self._deliver(run)

    def _run(self, run: Run, then: Callable[[], None] | None) -> bool:
        # A coroutine begins when its loop comes to it: until then its handler has not been called.
        refused = self._objection(run) if run.kind.is_async else self._refuse(run)
        if refused is not None:
            run.result = refused
            self._deliver(run)
            return True
        if run.kind.is_async:
            return self._start_coroutine(run, then)
        self.calls += 1
        run.thread_id = threading.get_ident()
        run.begin()
        result: Outcome | Failure | Unsettled
        try:
            result = _outcome(run.kind.handler(run.message, TaskContext(self._core, run)))
        except BaseException as error:
            result = self._interrupted() if self._is_users(error) else _failure(error)
        end_child(run.pid, "a handler")
        run.result = result
        self._end(run)
        return True

    def _refuse(self, run: Run) -> Unsettled | None:
        """Return how a run ends that may not begin (any more); a run that may counts as begun from here on."""
        # Begun before the flag is read: whoever sets the flag and then finds a run not begun knows that it
        # never will be.
        run.started_ns = self._core.clock.monotonic_ns()
        refused = self._objection(run)
        if refused is not None:
            run.started_ns = 0
        return refused

    def _objection(self, run: Run) -> Unsettled | None:
        if run.cancelled:
            return "dropped"
        if self.stopping or self._core.clock.monotonic_ns() >= self._node.lease_until_ns:
            return "handed back"
        left = run.task.kind not in self._core.registry.runnable  # its plugin was disabled since the claim
        return "handed back" if left or self._throttle.refuses(run) else None

    def _interrupted(self) -> Unsettled:
        """Note that the user wants to stop, for `run_due` to raise: in here the actor would swallow it."""
        self.interrupt = KeyboardInterrupt()
        self.stopping = True
        return "handed back"

    def _start_coroutine(self, run: Run, then: Callable[[], None] | None) -> bool:
        coroutine = self._await(run)
        try:
            run.cancel_coroutine = self._loop.submit(coroutine, lambda task: self._awaited(run, task, then))
        except RuntimeError as error:
            coroutine.close()
            run.result = _failure(error)
            self._deliver(run)
            return True
        if run.cancelled:  # by somebody who did not find the coroutine yet
            run.cancel_coroutine()
        return False

    async def _await(self, run: Run) -> Outcome | Failure | Unsettled:
        refused = self._refuse(run)  # a busy loop may come to it much later
        if refused is not None:
            return refused
        self.calls += 1
        run.begin()
        try:
            handler: Any = run.kind.handler
            return _outcome(await handler(run.message, TaskContext(self._core, run)))
        except (KeyboardInterrupt, SystemExit) as error:
            return _failure(error)  # asyncio would let it out of the loop, which is the host's or other handlers'
        finally:
            end_child(run.pid, "a handler")

    def _awaited(
        self, run: Run, task: asyncio.Task[Outcome | Failure | Unsettled], then: Callable[[], None] | None
    ) -> None:
        try:
            run.result = task.result()
        except BaseException as error:
            blameless = run.started_ns == 0 or (self.stopping and not run.timed_out)
            if blameless and isinstance(error, asyncio.CancelledError):
                # A stop is no fault of the task's: it must not die of deployments. Nor is what comes before its
                # handler has been called.
                run.result = "handed back"
            else:
                run.result = _failure(error, cancelled=run.cancelled)
        if then is not None:
            then()  # first: once the run is delivered its actor may be stopped
        self._end(run)

    def _end(self, run: Run) -> None:
        if run.delivered:
            return
        if run.committed is not None and isinstance(run.result, Failure):
            logger.warning(
                "task {} ({}) raised after ctx.complete had committed; its outcome stands: {}",
                run.task.id,
                run.task.kind,
                run.result.error,
            )
        self._deliver(run)

    def _deliver(self, run: Run) -> None:
        run.delivered = True
        # At once, and not with the outcome's transaction: what has been claimed is not to fail as well.
        try:
            change = self._throttle.ended(run, self._core.clock.monotonic_ns())
            if change is not None:
                reporting.log_pause(run.kind, change, run.result)
        finally:  # a host's log sink may raise, and a run that is not handed in is lost
            self._hand_in(run)

    def _is_users(self, error: BaseException) -> bool:
        on_main = threading.current_thread() is threading.main_thread()
        return self._interruptible and on_main and isinstance(error, KeyboardInterrupt)


def _outcome(result: Any) -> Outcome | Failure:
    if result is None:
        return _DONE
    if isinstance(result, (Done, RescheduleAt, Defer, Discard)):
        return result
    if asyncio.iscoroutine(result):
        result.close()
        return Failure("the handler returned a coroutine; declare it with `async def`")
    return Failure(
        f"the handler returned {result!r:.200}, which is no outcome; return Done, RescheduleAt, Defer, Discard"
        " or None"
    )


def _failure(error: BaseException, *, cancelled: bool = False) -> Failure:
    if cancelled and isinstance(error, asyncio.CancelledError):
        return Failure("the handler was cancelled: its time was over, or its task was cancelled")
    text = trace_of(error)
    if len(text) > MAX_ERROR_CHARS:
        what = "".join(traceback.format_exception_only(error))
        half = MAX_ERROR_CHARS // 2
        text = f"…{text.removesuffix(what)[-half:]}{what[:half]}"
    return Failure(storable(text), counted=not isinstance(error, _UNCOUNTED))
