"""Put the moving parts together: for a started engine, and for one pass over what is due now."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING

from callboard._actors.alarm import Alarm
from callboard._actors.dispatcher import Dispatcher, InlineDispatcher, ThreadPool
from callboard._actors.hooks import HookCaller
from callboard._actors.loops import HandlerLoop
from callboard._actors.mailbox import QUIT, RING, Died, SchedulerActor, WhenDrained, WhenIdle
from callboard._actors.node import Heartbeat, Node
from callboard._actors.outbox import Outbox
from callboard._actors.rounds import Rounds
from callboard._actors.router import Router
from callboard._actors.runner import Runner
from callboard._actors.scheduler import Scheduler
from callboard._actors.workload import Workload
from callboard._task import FinishedTask
from callboard.errors import EngineStateError

if TYPE_CHECKING:
    from callboard._core import Core

_LOOK_S = 1.0
"""How often `run_due` looks whether a coroutine is over its time, as a started engine does."""


class _Parts:
    """What both ways to run tasks are made of."""

    def __init__(self, core: Core, workers: int, dispatcher: Dispatcher, loop: HandlerLoop) -> None:
        self.core = core
        self.loop = loop
        self.workload = Workload(workers)
        self.node = Node(core, self.workload, lambda died: self.scheduler.report(died))
        self.heartbeat = Heartbeat(self.node, core.lease_ns)
        self.outbox = Outbox(self.wake, self.wake_within)
        self.runner = Runner(
            core, self.node, self.outbox.put, loop, interruptible=isinstance(dispatcher, InlineDispatcher)
        )
        self.router = Router(core.store, dispatcher, self.runner, self.workload.is_idle)
        self.hooks = HookCaller(core, dispatcher, self.wake)
        self.scheduler = Scheduler(core, self.node, self.workload, self.router, self.outbox, self.hooks)
        self.rounds = Rounds(core, self.hooks)

    def wake(self) -> None:
        """Have the scheduler make a pass."""
        raise AssertionError

    def wake_within(self, seconds: float) -> None:
        """Have the scheduler make a pass within `seconds`."""
        raise AssertionError

    def want_reconcile(self, reason: str) -> None:
        """Have every plugin reconcile soon; called on any thread."""
        self.hooks.want_reconcile(reason)

    def cancel(self, task_id: int) -> None:
        """Tell the run of a task, if there is one, that it has been cancelled."""
        run = self.workload.runs.get(task_id)
        if run is not None:
            run.cancel()


class Runtime(_Parts):
    """A started engine: threads, actors and the alarm."""

    def __init__(self, core: Core, workers: int, loop: asyncio.AbstractEventLoop | None) -> None:
        """Prepare to run; `loop` is the host's, for coroutine handlers."""
        self.pool = ThreadPool(workers, "callboard")
        super().__init__(core, workers, self.pool, HandlerLoop(loop))
        self._alarm = Alarm(core.clock, self._ring, core.store.poll_interval_s)
        self.actor = SchedulerActor(core.store, self.node, self.scheduler, self._alarm, self.rounds, self.hooks)

    def join(self) -> None:
        """Become a node, and take over what gone engines left."""
        try:
            self.scheduler.prepare()
        except BaseException:
            self.pool.close()
            raise

    def start(self) -> None:
        """Reconcile, and run."""
        self.heartbeat.start()
        self.actor.begin()
        self._alarm.start()
        self.hooks.want_reconcile("start")
        self.wake()

    def wake(self) -> None:
        """Have the scheduler make a pass; called on any thread."""
        self.actor.wake()

    def wake_within(self, seconds: float) -> None:
        """Have the scheduler make a pass within `seconds`; called on any thread."""
        self._alarm.within(seconds)

    def tell_died(self, died: list[FinishedTask]) -> None:
        """Have tasks counted and reported that a host's transaction buried; called on any thread."""
        self.actor.post(Died(died))

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Wait until nothing that this node can run is due or running; `False` when time is up.

        Raises:
            EngineStateError: the engine was stopped before.
        """
        idle: Future[None] = Future()
        self.actor.post(WhenIdle(idle))
        wait((idle, self.actor.ended), timeout_s, FIRST_COMPLETED)
        if not idle.done() and self.actor.ended.done():
            raise EngineStateError("the engine was stopped before it was idle")
        return idle.done()

    def stop(self, timeout_s: float | None) -> bool:
        """Claim nothing more, wait for what runs, hand back the rest; `False` if something still runs."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self.scheduler.stopping = True
        self.runner.stopping = True
        drained: Future[None] = Future()
        self.actor.post(WhenDrained(drained))
        in_time = _wait(drained, timeout_s) or not self.workload.runs
        if not in_time:
            for task_id in list(self.workload.runs):
                self.cancel(task_id)
        self.actor.post(QUIT)
        _wait(self.actor.ended, None if deadline_s is None else max(deadline_s - time.monotonic(), 0) + 10)
        self.heartbeat.stop()
        self.loop.close()
        self.pool.close()
        ended = in_time and not self.workload.runs
        if ended:
            self.node.leave()
        return ended

    def _ring(self) -> None:
        self.actor.post(RING)


class InlineRuntime(_Parts):
    """One pass over what is due now, on the caller's thread."""

    def __init__(self, core: Core) -> None:
        """Prepare to run; one task at a time, so there is one worker."""
        self._dispatcher = InlineDispatcher()
        self._woken = threading.Event()
        super().__init__(core, 1, self._dispatcher, HandlerLoop())

    def wake(self) -> None:
        """Note that an outcome has come."""
        self._woken.set()

    def wake_within(self, seconds: float) -> None:
        """Note that an outcome has come; there is nobody to wait for another."""
        self._woken.set()

    def run(self, *, reconcile: bool) -> int:
        """Run until nothing is due; return how many handlers were called.

        Raises:
            KeyboardInterrupt: the user asked to stop; what had not ended is handed back.
        """
        self.scheduler.prepare()
        try:
            self.heartbeat.start()
            if reconcile:
                self.hooks.want_reconcile("start")
            while True:
                self._woken.clear()
                again = self.scheduler.step()
                while self.runner.interrupt is None and self._dispatcher.run_one():
                    again = True
                if self.runner.interrupt is not None:
                    raise self.runner.interrupt
                if again:
                    continue
                if self.workload.runs:
                    self._woken.wait(_LOOK_S)  # for a coroutine, on its loop's thread
                    self.scheduler.watch.handlers()
                elif self.scheduler.is_quiet() and not self.scheduler.step() and self.scheduler.is_quiet():
                    return self.runner.calls  # and no hook has enqueued anything after the pass before
        finally:
            self._give_back()

    def _give_back(self) -> None:
        self.scheduler.stopping = self.runner.stopping = True
        self.loop.close()  # first, so that coroutines which it cuts short are handed back
        try:
            self.scheduler.step()
            self.scheduler.hand_back_unstarted()
        finally:
            self.heartbeat.stop()
            self.node.leave()


def _wait(future: Future[None], timeout_s: float | None) -> bool:
    try:
        future.result(timeout_s)
    except TimeoutError:
        return False
    return True
