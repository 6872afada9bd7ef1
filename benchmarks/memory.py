"""What idle groups cost in memory: bytes for each live actor, and bytes for each group that is only rows.

Each measurement has a process of its own. `tracemalloc` counts what Python allocated; RSS is what the system
gave the process, and so includes SQLite's caches and what the allocator keeps.
"""

from __future__ import annotations

import gc
import resource
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness import NoOp, Report, engine_on, fill, fresh_file, group_name

from callboard import Engine, TaskContext

ACTORS = 4_000
"""Groups with an actor: fewer than an engine keeps alive, so that none is another's."""

KNOWN = 100_000
MEMBERS = [f"{number:064x}" for number in range(3)]
"""A small group's inboxes. More members cost a live actor the text of their ids."""


def memory(traced: bool) -> int:
    """Return the bytes that Python holds, or else that the process does."""
    gc.collect()
    if traced:
        return tracemalloc.get_traced_memory()[0]
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def ask_for_group(_message: Any, ctx: TaskContext) -> None:
    """Have the group's actor remember the group, as it does for any handler that looks."""
    if ctx.group is None:
        raise LookupError("the group has no row")


def know(engine: Engine, count: int) -> None:
    """Write the rows of groups."""
    with engine.transaction() as tx:
        for number in range(count):
            tx.group(group_name(number)).created(MEMBERS[0], members=MEMBERS)


def live_actor(path: Path, *, traced: bool) -> float:
    """Return the bytes that one more live actor takes, with what it remembers of its group."""
    if traced:
        tracemalloc.start()
    with engine_on(path, NoOp(ask_for_group)) as engine:
        know(engine, ACTORS)
        # First all tasks in one group, so that what the work itself leaves in caches is not counted.
        fill(engine, ACTORS, 1)
        engine.wait_idle(120)
        before, had = memory(traced), engine.health().actors
        fill(engine, ACTORS, ACTORS, first=ACTORS)
        engine.wait_idle(120)
        after, has = memory(traced), engine.health().actors
    if (had, has) != (1, ACTORS):
        raise SystemExit(f"{had} and {has} actors live in place of 1 and {ACTORS}")
    return (after - before) / (has - had)


def idle_engine(path: Path, *, traced: bool) -> float:
    """Return the bytes of a process whose engine has done some work and idles."""
    if traced:
        tracemalloc.start()
    with engine_on(path) as engine:
        fill(engine, 100, 100)
        engine.wait_idle(120)
        return memory(traced)


def main() -> None:
    """Measure each in a new process."""
    report = Report("memory of idle groups, bytes", repeat=3)
    fresh_interpreter = get_context("spawn")

    def measured(work: Callable[..., float], path: Path, traced: bool) -> float:
        with ProcessPoolExecutor(1, fresh_interpreter) as process:
            return process.submit(work, path, traced=traced).result()

    with fresh_file() as crowded:
        with engine_on(crowded) as engine:
            know(engine, KNOWN)
        for _ in range(report.repeat):
            for traced, how in ((True, "tracemalloc"), (False, "RSS")):
                with fresh_file() as path:
                    report.add(f"a live actor, {how}", measured(live_actor, path, traced))
                with fresh_file() as path:
                    without = measured(idle_engine, path, traced)
                report.add(f"an engine without groups, {how}", without)
                added = measured(idle_engine, crowded, traced) - without
                report.add(f"{KNOWN:,} known groups add, {how}", added)
    report.at_most("a live actor, tracemalloc", 4_000)
    report.at_most("a live actor, RSS", 4_000)
    # "Nothing" is less than a byte for each: what there is comes and goes with SQLite's caches.
    report.at_most(f"{KNOWN:,} known groups add, tracemalloc", KNOWN)
    report.print()


if __name__ == "__main__":
    main()
