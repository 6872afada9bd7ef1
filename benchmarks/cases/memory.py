"""Memory of idle contestants beyond their imports, of a live actor of an idle group, and of groups that are rows.

Each measurement has a process of its own. `tracemalloc` counts what Python allocated; RSS is what the system gave
the process, and so includes SQLite's caches and what the allocator keeps. It is read from `/proc`, which needs
Linux. What a peer imports when it starts is counted as its own: that is against those that import lazily,
Callboard among them.
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

from benchmarks import work
from benchmarks.apart import apart
from benchmarks.bench import Bench
from benchmarks.noop import NoOp, engine_on, fill, group_name
from benchmarks.tables import CALLBOARD

from callboard import Engine, TaskContext

ACTORS = 4_000
"""Groups with an actor: fewer than an engine keeps alive, so that none is another's."""

KNOWN = 100_000
MEMBERS = [f"{number:064x}" for number in range(3)]
"""A small group's inboxes. More members cost a live actor the text of their ids."""


def memory(traced: bool) -> int:
    """Return the bytes that Python holds, or else that the process does."""
    if traced:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    return work.resident_bytes()


def ask_for_group(_message: Any, ctx: TaskContext) -> None:
    """Have the group's actor remember the group, as it does for any handler that looks."""
    if ctx.group is None:
        raise LookupError("the group has no row")


def know(engine: Engine, count: int) -> None:
    """Write the rows of groups."""
    with engine.transaction() as tx:
        for number in range(count):
            tx.group(group_name(number)).created(MEMBERS[0], members=MEMBERS)


def live_actor(path: str, traced: bool) -> float:
    """Return the bytes that one more live actor takes, with what it remembers of its group."""
    if traced:
        tracemalloc.start()
    with engine_on(Path(path), NoOp(ask_for_group)) as engine:
        know(engine, ACTORS)
        # First all tasks in one group, so that what the work itself leaves in caches is not counted.
        fill(engine, ACTORS, 1)
        engine.wait_idle(120)
        before, had = memory(traced), engine.health().actors
        fill(engine, ACTORS, ACTORS, first=ACTORS)
        engine.wait_idle(120)
        after, has = memory(traced), engine.health().actors
    if (had, has) != (1, ACTORS):
        raise ValueError(f"{had} and {has} actors live in place of 1 and {ACTORS}")
    return (after - before) / (has - had)


def idle_engine(path: str, traced: bool) -> float:
    """Return the bytes of a process whose engine has done some work and idles."""
    if traced:
        tracemalloc.start()
    with engine_on(Path(path)) as engine:
        fill(engine, 100, 100)
        engine.wait_idle(120)
        return memory(traced)


def know_many(path: str) -> tuple[()]:
    """Write the rows of a hundred thousand groups."""
    with engine_on(Path(path)) as engine:
        know(engine, KNOWN)
    return ()


def measure(bench: Bench) -> None:
    """Measure each in a new process."""
    for database in ("sqlite", "postgres"):
        rest = bench.table(f"memory at rest beyond the imports, {database}", "MB")
        contestants = [who for who in bench.contestants(database) if who.runs_handlers]
        for _ in bench.turns(3, 1):
            for who in contestants:
                bench.measure([rest], who, work.memory_at_rest)
        rest.median_at_most(CALLBOARD, 10, 5)
    actor = bench.table("a live actor of an idle group that remembers three members", "bytes", "")
    known = bench.table(f"what {KNOWN:,} known groups add to an idle engine", "bytes", "")
    with bench.place("sqlite") as crowded:
        apart(know_many, crowded)
        for _ in bench.turns(3, 1):
            for traced, how in ((True, "tracemalloc"), (False, "RSS")):
                with bench.place("sqlite") as path:
                    actor.add(how, apart(live_actor, path, traced))
                with bench.place("sqlite") as path:
                    without = apart(idle_engine, path, traced)
                known.add(how, apart(idle_engine, crowded, traced) - without)
    actor.median_at_most("tracemalloc", 4_000)
    actor.median_at_most("RSS", 4_000)
    # "Nothing" is less than a byte for each: what there is comes and goes with SQLite's caches.
    known.median_at_most("tracemalloc", KNOWN)
