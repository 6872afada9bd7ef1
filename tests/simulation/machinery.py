"""What an engine takes for its threads, its alarm and its heartbeat, as the simulation gives them to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from callboard._actors.dispatcher import Call
from callboard._actors.node import HEARTBEATS
from callboard._actors.runtime import Runtime
from callboard._clock import NEVER_NS
from callboard.errors import StoreError

if TYPE_CHECKING:
    from tests.simulation.node import SimulatedNode

    from callboard._core import Core


class SeededDispatcher:
    """A pool whose calls wait to be chosen, in whatever order, no more at once than there are workers."""

    def __init__(self, node: SimulatedNode, workers: int) -> None:
        self._node = node
        self._workers = workers
        self._busy = 0
        self.calls: list[Call] = []

    def submit(self, call: Call) -> None:
        self.calls.append(call)

    def has_room(self) -> bool:
        return bool(self.calls) and self._busy < self._workers

    def begin(self, number: int) -> None:
        """Begin one of the calls that wait."""
        call = self.calls.pop(number)
        self._busy += 1

        def work() -> None:
            call()
            self._busy -= 1

        self._node.enter("worker", work)

    def size(self) -> int:
        return self._workers

    def close(self) -> None:
        """Go on with what waits, as a pool does."""


class SeededThread:
    """The scheduler's own thread: calls one after the other, and its connection stays its own."""

    def __init__(self, node: SimulatedNode, name: str) -> None:
        self._calls: deque[Call] = deque()
        self._closed = False
        self._node = node
        node.enter(name, self._work)

    def submit(self, call: Call) -> None:
        self._calls.append(call)

    def close(self) -> None:
        self._closed = True

    def _work(self) -> None:
        while True:
            self._node.world.stage.pause(lambda: bool(self._calls) or self._closed)
            if not self._calls:
                return
            self._calls.popleft()()


class VirtualAlarm:
    """An alarm that rings when the simulation's time has come to it."""

    def __init__(self, node: SimulatedNode, ring: Callable[[], None], interval_s: float) -> None:
        self._node = node
        self._clock = node.world.clock
        self._ring = ring
        self._interval_ns = int(interval_s * 1e9)
        self._deadline_ns = NEVER_NS
        self._soon_ns = NEVER_NS
        self._regular_ns = NEVER_NS
        self._started = False

    def start(self) -> None:
        self._started = True
        if self._node.polls:
            self._regular_ns = self._clock.monotonic_ns() + self._interval_ns

    def set(self, deadline_ns: int) -> None:
        self._deadline_ns = deadline_ns

    def within(self, seconds: float) -> None:
        self._soon_ns = min(self._soon_ns, self._clock.monotonic_ns() + int(seconds * 1e9))

    def time_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def stop(self) -> None:
        self._started = False

    def due_ns(self) -> int:
        """Return when it rings next, on the monotonic clock."""
        if not self._started:
            return NEVER_NS
        deadline_ns = NEVER_NS
        if self._deadline_ns != NEVER_NS:
            deadline_ns = self._deadline_ns - self._clock.offset_ns
        return min(deadline_ns, self._soon_ns, self._regular_ns)

    def ring_if_due(self) -> bool:
        """Ring if its time has come; return whether it did."""
        now_ns = self._clock.monotonic_ns()
        if self.due_ns() > now_ns:
            return False
        if self._soon_ns <= now_ns:
            self._soon_ns = NEVER_NS
        if self._deadline_ns <= self._clock.now_ns():
            self._deadline_ns = NEVER_NS
        if self._regular_ns <= now_ns:
            self._regular_ns = now_ns + self._interval_ns
        self._ring()
        return True


class VirtualHeartbeat:
    """A heartbeat that may come late."""

    def __init__(self, node: SimulatedNode, beat: Callable[[], None], lease_ns: int) -> None:
        self._node = node
        self._call = beat
        self._interval_ns = lease_ns // HEARTBEATS
        self._stopped = False
        self._beating = False
        self.due_ns = NEVER_NS

    def start(self) -> None:
        self._set()

    def stop(self) -> None:
        self._stopped = True
        self.due_ns = NEVER_NS

    def beat_if_due(self) -> bool:
        """Begin a heartbeat if it is time; return whether it did."""
        if self._stopped or self._beating or self.due_ns > self._node.world.clock.monotonic_ns():
            return False
        self._beating = True
        self._node.enter("heartbeat", self._beat)
        return True

    def _beat(self) -> None:
        with suppress(StoreError):  # the next one will do; the engine's own thread logs it
            self._call()
        self._beating = False
        self._set()

    def _set(self) -> None:
        late_ns = self._node.world.faults.late_heartbeat_ns()
        self.due_ns = (
            NEVER_NS if self._stopped else self._node.world.clock.monotonic_ns() + self._interval_ns + late_ns
        )


class StageLoop(asyncio.SelectorEventLoop):
    """An event loop that is turned when the simulation chooses it."""

    def __init__(self) -> None:
        super().__init__()
        self.stirred = False
        self.set_exception_handler(lambda loop, context: None)  # of coroutines that a kill left standing

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        self.stirred = True
        return super().call_soon_threadsafe(*args, **options)

    def turn(self) -> None:
        """Run what is ready now."""
        self.stirred = False
        self.call_soon(self.stop)
        self.run_forever()
        self.stirred |= bool(self._ready)  # type: ignore[attr-defined]

    def finish(self) -> None:
        """End the coroutines that a kill left standing, and close."""
        while self.stirred or asyncio.all_tasks(self):
            self.turn()
            for task in asyncio.all_tasks(self):
                task.cancel()
        self.close()


class SimulatedRuntime(Runtime):
    """A started engine's moving parts on the stage."""

    def __init__(
        self, core: Core, workers: int, loop: asyncio.AbstractEventLoop | None, node: SimulatedNode
    ) -> None:
        self._node = node
        super().__init__(core, workers, loop)

    def make_pool(self, workers: int) -> Any:
        self._node.pool = SeededDispatcher(self._node, workers)
        return self._node.pool

    def make_thread(self) -> Any:
        return SeededThread(self._node, "scheduler")

    def make_alarm(self) -> Any:
        self._node.alarm = VirtualAlarm(self._node, self.ring, self.core.store.poll_interval_s)
        return self._node.alarm

    def make_heartbeat(self) -> Any:
        self._node.heartbeat = VirtualHeartbeat(self._node, lambda: self.node.heartbeat(), self.core.lease_ns)
        return self._node.heartbeat

    def wait_for(self, futures: Collection[Future[None]], timeout_s: float | None) -> bool:
        def is_done() -> bool:
            return any(future.done() for future in futures)

        self._node.world.stage.pause(is_done, None if timeout_s is None else int(timeout_s * 1e9))
        return is_done()
