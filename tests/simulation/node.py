"""One simulated process: an engine, its plugin and what the machine gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.ledger import What
from tests.simulation.handlers import Service
from tests.simulation.machinery import (
    SeededDispatcher,
    SimulatedRuntime,
    StageLoop,
    VirtualAlarm,
    VirtualHeartbeat,
)
from tests.simulation.store import SimulatedStore

from callboard import Engine
from callboard._clock import NEVER_NS
from callboard._core import STOPPED
from callboard.errors import StoreError

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE = timedelta(seconds=2)
MAX_CRASHES = 3


class _Engine(Engine):
    """An engine whose threads are on the stage."""

    def __init__(self, node: SimulatedNode, **options: Any) -> None:
        super().__init__(node.store, clock=node.world.clock, **options)
        self._node = node

    def wake(self) -> None:
        if not self._node.world.faults.happens("wake", 0.3):
            super().wake()

    def _make_runtime(self, loop: asyncio.AbstractEventLoop | None) -> SimulatedRuntime:
        return SimulatedRuntime(self._core, self._workers, loop, self._node)


class SimulatedNode:
    """A process on the stage.

    Attributes:
        alive: whether its process has not been killed, nor ended by itself.
        running: whether its engine has started.
        stopping: whether its engine was told to stop.
        lapsed: whether the ledger says that others may take its tasks over.
        frozen_until_ns: until when its process is halted.
        polls: whether it looks for what others have written.
    """

    pool: SeededDispatcher
    alarm: VirtualAlarm
    heartbeat: VirtualHeartbeat

    def __init__(self, world: World, name: str, kinds: Collection[str], workers: int) -> None:
        self.world = world
        self.name = name
        self.kinds = kinds
        self.polls = not world.calm
        self.alive = True
        self.running = False
        self.stopping = False
        self.lapsed = False
        self.frozen_until_ns = 0
        self.loop = StageLoop()
        self.store = SimulatedStore(self, world.path)
        self.engine = _Engine(
            self, plugins=[Service(self, kinds)], workers=workers, lease=LEASE, max_crashes=MAX_CRASHES
        )
        self.enter("start", self._start)

    def enter(self, name: str, call: Callable[[], None]) -> None:
        """Have a thread of this process do something."""
        self.world.stage.enter(f"{self.name} {name}", self, call)

    def is_frozen(self) -> bool:
        """Return whether the process is halted."""
        return self.frozen_until_ns > self.world.clock.monotonic_ns()

    def may_crash(self) -> None:
        """Have the process killed here, if that is this run's fate; does not return then."""
        if self.world.stage.current is not None and self.world.faults.happens("crash", 0.01):
            self.world.kill(self)

    async def sleep(self, for_ns: int) -> None:
        """Let a coroutine wait in the simulation's time."""
        woken = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not woken.done():
                woken.set_result(None)

        def wake() -> None:
            self.world.stage.pause(for_ns=for_ns)
            self.loop.call_soon_threadsafe(end)

        self.enter("sleeper", wake)
        await woken

    def is_serving(self) -> bool:
        """Return whether the process takes requests."""
        return self.running and self.alive and not self.stopping

    def is_busy(self) -> bool:
        """Return whether the engine has claimed anything that it has not written back."""
        running = self.engine._core.running
        return self.running and self.alive and running is not None and bool(running.workload.runs)

    def sleeps(self, now_ns: int) -> bool:
        """Return whether the engine waits for a later time, and not with an outcome in hand."""
        running = self.engine._core.running
        return self.due_ns() > now_ns and (running is None or len(running.outbox) == 0)

    def lapse(self) -> None:
        """Write down that others may take this node's tasks over."""
        self.lapsed = True
        self.world.book.tell(self, What.LAPSED)

    def is_lapsed(self) -> bool:
        """Return whether others may take this node's tasks over."""
        running = self.engine._core.running
        if running is None:
            return False
        return self.world.clock.monotonic_ns() >= running.node.lease_until_ns

    def due_ns(self) -> int:
        """Return when something of it is due that is not a thread's, on the monotonic clock."""
        if not self.running or not self.alive:
            return NEVER_NS
        return max(min(self.alarm.due_ns(), self.heartbeat.due_ns), self.frozen_until_ns)

    def ring_if_due(self) -> bool:
        """Have alarm and heartbeat come when it is time; return whether either did."""
        if not self.running or not self.alive or self.is_frozen():
            return False
        rang = self.alarm.ring_if_due()
        return self.heartbeat.beat_if_due() or rang

    def stop(self) -> None:
        """Stop the engine, as a service that is restarted does."""
        self.stopping = True
        self.enter("stop", self._stop)

    def end(self) -> None:
        """Leave nothing behind, not even for the interpreter's exit."""
        core = self.engine._core
        if core.running is not None:
            core.running.runner.stopping = True
        self.loop.finish()
        core.running, core.state = None, STOPPED
        self.store.kill()

    def _start(self) -> None:
        try:
            self.engine._start(self.loop)
        except StoreError as error:
            self.world.book.say(f"{self.name} cannot start: {error}")
            self.world.kill(self)  # as a service does that cannot start, and is started anew
        self.running = True
        self.enter("loop", self._turn)

    def _stop(self) -> None:
        if not self.engine.stop(timeout=5.0):
            self.lapse()
        self.alive = False

    def _turn(self) -> None:
        while self.alive:
            self.world.stage.pause(lambda: self.loop.stirred or not self.alive)
            if self.loop.stirred:
                self.loop.turn()
