"""Evict one member from a group of 4, 50 and 200 on real MLS (rine-mls), from leave request to settled state; ms.

The MLS backend is wrapped, so that the time inside its calls is known; the rest is the engine's: the request's
transaction, the wake, the claim, the group's state, the commit that ends task and request together, and telling
that the task has ended. Two of the engine's commits wait for the disk, as do those of the backend, whose journal
and network are SQLite files. A real network would take longer, so this case is hard on the engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ParamSpec, TypeVar

from benchmarks.apart import apart
from benchmarks.bench import Bench

from callboard import Engine, FinishedTask, hookimpl
from callboard_mls.backend import Backend
from callboard_rine import Device, LocalNetwork, RineBackend, create_group

P = ParamSpec("P")
T = TypeVar("T")

ADMIN = "admin"


class TimedBackend(RineBackend):
    """A backend that knows how long the engine's handler was in its calls."""

    def __init__(self, device: Device) -> None:
        """Have spent nothing."""
        super().__init__(device)
        self.spent_s = 0.0

    def members(self, group_id: bytes) -> Mapping[str, frozenset[bytes]]:
        """Time it."""
        return self._timed(super().members, group_id)

    def super_admins(self, group_id: bytes) -> frozenset[str]:
        """Time it, and not the call of `members` inside it once more."""
        before_s = self.spent_s
        began_s = time.perf_counter()
        found = super().super_admins(group_id)
        self.spent_s = before_s + time.perf_counter() - began_s
        return found

    def remove_members(self, group_id: bytes, inbox_ids: Collection[str]) -> frozenset[str]:
        """Time it."""
        return self._timed(super().remove_members, group_id, inbox_ids)

    def _timed(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        began_s = time.perf_counter()
        try:
            return call(*args, **options)
        finally:
            self.spent_s += time.perf_counter() - began_s


class Told:
    """A plugin that waits until the engine has told that a task has ended."""

    def __init__(self) -> None:
        """Have been told nothing."""
        self._ended = threading.Event()

    @hookimpl
    def callboard_tasks_finished(self, finished: Sequence[FinishedTask]) -> None:
        """Take note."""
        self._ended.set()

    def wait(self) -> None:
        """Wait for the next task to end."""
        if not self._ended.wait(60):
            raise TimeoutError("the eviction took more than a minute")
        self._ended.clear()


def evictions(folder: str, members: int, count: int) -> list[tuple[float, float]]:
    """Return for each of `count` groups of so many members the ms of one eviction, and those inside MLS calls."""
    place = Path(folder).parent
    measured = []
    with ExitStack() as stack:
        network = stack.enter_context(LocalNetwork(place / "network.db"))
        inboxes = [ADMIN, *(f"member-{number}" for number in range(members - 1))]
        devices = [Device(place / inbox_id, network, inbox_id=inbox_id) for inbox_id in inboxes]
        for device in devices:
            stack.callback(device.close)
            device.enroll()
        backend = TimedBackend(devices[0])
        told = Told()
        engine = Engine(
            f"sqlite:///{place / 'bench.db'}",
            services={Backend: backend},
            plugins=["process_pending_self_remove", told],
        )
        stack.enter_context(engine)
        for number in range(count + 1):
            group_id = b"group %d" % number
            create_group(devices[0], group_id, inboxes[1:])
            engine.group(group_id).created(ADMIN, members=inboxes, super_admins=[ADMIN], consent="allowed")
            engine.wait_idle(60)
            backend.spent_s = 0.0
            began_s = time.perf_counter()
            engine.group(group_id).leave_requested(inboxes[-1], message_id=b"request")
            told.wait()
            took_s = time.perf_counter() - began_s
            state = engine.group(group_id).state()
            if state is None or inboxes[-1] in state.members or state.pending_removes:
                raise ValueError("the member was not evicted")
            measured.append((took_s * 1_000, backend.spent_s * 1_000))
    return measured[1:]  # the first imports what the others use


def measure(bench: Bench) -> None:
    """Measure the sizes in turn."""
    sizes = (4, 50) if bench.quick else (4, 50, 200)
    whole, mls, share = "whole eviction", "inside MLS calls", "engine's share"
    tables = {
        size: (
            bench.table(f"eviction from a group of {size}", "ms", whole),
            bench.table(f"eviction from a group of {size}: what is not inside MLS calls", "share", ""),
        )
        for size in sizes
    }
    for _ in bench.turns(3, 1):
        for size, (times, shares) in tables.items():
            with bench.place("sqlite") as path:
                for whole_ms, mls_ms in apart(evictions, path, size, 5):
                    times.add(whole, whole_ms)
                    times.add(mls, mls_ms)
                    shares.add(share, (whole_ms - mls_ms) / whole_ms)
    tables[50][1].median_at_most(share, 0.10, 0.03)
