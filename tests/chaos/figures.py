"""What chaos came to, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Figures:
    """What a round, or several, came to.

    Attributes:
        rounds: Fresh starts.
        kills: Processes that SIGKILL ended, by how: `random`, `halted`, `poison`, or the name of a crash point.
        lapses: Nodes that found that they had lost their lease.
        tasks: Tasks that were accepted.
        requests: Requests that were accepted, among them those for tasks that were there already.
        runs: Handlers called.
        unfinished: Runs that a kill ended.
        effects: Rows that were committed with `ctx.complete`.
        dead: Dead tasks by reason.
        commits: MLS commits.
        evicted: Installations evicted from groups.
        added: Installations added to groups.
        seconds: How long it took.
    """

    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    lapses: int = 0
    tasks: int = 0
    requests: int = 0
    runs: int = 0
    unfinished: int = 0
    effects: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    evicted: int = 0
    added: int = 0
    seconds: float = 0.0

    def __add__(self, other: Figures) -> Figures:
        """Return the sum."""
        return Figures(**{name: getattr(self, name) + getattr(other, name) for name in vars(self)})
