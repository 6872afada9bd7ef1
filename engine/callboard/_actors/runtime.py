"""Put the moving parts together: for a started engine, and for one pass over what is due now."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING

from callboard._actors.alarm import Alarm
from callboard._actors.dispatcher import Dispatcher, InlineDispatcher, OneThread, ThreadPool
from callboard._actors.hooks import HookCaller
from callboard._actors.loops import HandlerLoop
from callboard._actors.mailbox import QUIT, RING, Died, SchedulerActor, WhenDrained, WhenIdle
from callboard._actors.node import Heartbeat, Node
from callboard._actors.outbox import Outbox
from callboard._actors.rounds import Rounds
from callboard._actors.router import Router
from callboard._actors.runner import Runner
from callboard._actors.scheduler import Scheduler
from callboard._actors.throttle import Throttle
from callboard._actors.workload import Workload
from callboard._run import current_run
from callboard._task import FinishedTask
from callboard.errors import EngineStateError

if TYPE_CHECKING:
    from callboard._core import Core

_LOOK_S = 1.0
"""How often `run_due` looks whether a coroutine is over its time, as a started engine does."""

_LAST_WRITES_S = 10.0
"""How long a stop whose time is up still waits for the last outcomes to be written, where the database is slow."""


class _Parts:
    """What both ways to run tasks are made of."""

    def __init__(self, core: Core, workers: int, dispatcher: Dispatcher, loop: HandlerLoop) -> None:
        self.core = core
        self.loop = loop
        self.workload = Workload(workers, Throttle(core.registry.runnable))
        self.node = Node(core, self.workload, lambda died: self.scheduler.report(died))
        self.heartbeat = self.make_heartbeat()
        self.outbox = Outbox(self.wake, self.wake_within)
        self.runner = Runner(
            core,
            self.node,
            self.workload.throttle,
            self.outbox.put,
            loop,
            interruptible=isinstance(dispatcher, InlineDispatcher),
        )
        self.router = Router(core.store, dispatcher, self.runner, self.workload.is_idle)
        self.hooks = HookCaller(core, dispatcher, self.wake)
        self.scheduler = Scheduler(core, self.node, self.workload, self.router, self.outbox, self.hooks)
        self.rounds = Rounds(core, self.node, self.hooks)

    def make_heartbeat(self) -> Heartbeat:
        """Return what renews the lease."""
        return Heartbeat(self.node, self.core.heartbeat_ns)

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
    """A started engine: threads, actors and the alarm.

    What has a thread comes from the `make_` methods, and `wait_for` is all that blocks, so that a simulation can
    put its own in their place.
    """

    def __init__(self, core: Core, workers: int, loop: asyncio.AbstractEventLoop | None) -> None:
        """Prepare to run; `loop` is the host's, for coroutine handlers."""
        self.pool = self.make_pool(workers)
        super().__init__(core, workers, self.pool, HandlerLoop(loop))
        self._alarm = self.make_alarm()
        self._watching = ExitStack()
        self._thread = self.make_thread()
        self.actor = SchedulerActor(
            self._thread, core.store, self.node, self.scheduler, self._alarm, self.rounds, self.hooks
        )

    def make_pool(self, workers: int) -> ThreadPool:
        """Return where handlers and hooks run."""
        return ThreadPool(workers, "callboard")

    def make_thread(self) -> OneThread:
        """Return where the scheduler runs."""
        return OneThread("callboard-scheduler")

    def make_alarm(self) -> Alarm:
        """Return what rings at deadlines, and regularly."""
        return Alarm(self.core.clock, self.ring, self.core.store.poll_interval_s)

    def wait_for(self, futures: Collection[Future[None]], timeout_s: float | None) -> bool:
        """Wait until one of `futures` is done; `False` when time is up."""
        return bool(wait(futures, timeout_s, FIRST_COMPLETED).done)

    def join(self) -> None:
        """Become a node, and take over what gone engines left."""
        try:
            self.scheduler.prepare()
        except BaseException:
            self._close()
            raise

    def abandon(self) -> None:
        """Take `join` back, because the start failed."""
        self._close()
        self.node.leave()

    def start(self) -> None:
        """Reconcile, and run."""
        self._watching.enter_context(self.core.store.watching(self.ring))
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

    def is_waiting_for_caller(self) -> bool:
        """Return whether the caller is in a handler or a hook of this engine, and would wait for itself."""
        run = current_run.get()
        in_handler = run is not None and run.result is None and self.workload.runs.get(run.task.id) is run
        return in_handler or self.hooks.is_in_one()

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Wait until nothing that this node can run is due or running; `False` when time is up.

        Raises:
            EngineStateError: the engine was stopped before.
            NotADatabaseError: the file is damaged.
        """
        idle: Future[None] = Future()
        self.actor.post(WhenIdle(idle))
        self.wait_for((idle, self.actor.ended), timeout_s)
        if not idle.done() and self.actor.ended.done():
            raise EngineStateError("the engine was stopped before it was idle")
        if not idle.done():
            return False
        idle.result()
        return True

    def stop(self, timeout_s: float | None) -> bool:
        """Claim nothing more, wait for what runs, hand back the rest; `False` if something still runs."""
        deadline_s = None if timeout_s is None else self._alarm.time_s() + timeout_s
        self.scheduler.stopping = True
        self.runner.stopping = True
        drained: Future[None] = Future()
        self.actor.post(WhenDrained(drained))
        in_time = self.wait_for((drained,), timeout_s) or not self.workload.runs
        if not in_time:
            for task_id in list(self.workload.runs):
                self.cancel(task_id)
        self.actor.post(QUIT)
        left_s = None if deadline_s is None else max(deadline_s - self._alarm.time_s(), 0) + _LAST_WRITES_S
        self.wait_for((self.actor.ended,), left_s)
        self.heartbeat.stop()
        self.loop.close()
        self._watching.close()
        self._close()
        ended = in_time and not self.workload.runs
        if ended:
            self.node.leave()
        return ended

    def _close(self) -> None:
        self.pool.close()
        self._thread.close()

    def ring(self) -> None:
        """Have the scheduler look at the clock and at the file; called by the alarm."""
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
                self.rounds.make_at_start()
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
