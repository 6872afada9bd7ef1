"""What `Engine.health` answers: everything an operator asks first, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from callboard._actors.hooks import OverdueHook
from callboard._actors.throttle import PausedKind
from callboard._actors.watch import OverdueRun
from callboard._plugins import PluginHealth


@dataclass(frozen=True, slots=True)
class Health:
    """The state of one engine.

    Attributes:
        state: `unstarted`, `running`, `stopping` or `stopped`.
        database: what the engine is connected to.
        database_error: why nothing is claimed at the moment; `None` when all is well.
        stuck: whether waiting is no remedy: the file was removed, replaced or damaged, or its tables are gone or
            were migrated by a newer engine.
        plugins: what became of each plugin.
        missing_services: for each kind left to other nodes, the services that the host did not give.
        running: tasks claimed and not yet written back.
        paused: kinds that failed for everybody, of which this node claims nothing but one task from time to time.
        overdue: handlers over their timeout, with the stack of blocking ones.
        overdue_hooks: hooks of plugins that have not returned for five minutes, with their stacks.
        counters: tasks `done`, `dead`, `failed` and `stale` since the start.
        untold: ended tasks that a plugin was not told of, because its `callboard_tasks_finished` is too slow.
        threads: threads of the pool.
        actors: live group actors.
    """

    state: str
    database: str
    database_error: str | None = None
    stuck: bool = False
    plugins: list[PluginHealth] = field(default_factory=list)
    missing_services: dict[str, list[str]] = field(default_factory=dict)
    running: int = 0
    paused: list[PausedKind] = field(default_factory=list)
    overdue: list[OverdueRun] = field(default_factory=list)
    overdue_hooks: list[OverdueHook] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    untold: int = 0
    threads: int = 0
    actors: int = 0
