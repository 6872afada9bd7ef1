"""Try seeds, and say of one that fails how to have it again with as little else in it as will do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.simulation.faults import FAULTS
from tests.simulation.world import DEEDS, World

_CHUNK = 20
_SHOWN = 60


class Failure(NamedTuple):
    """A seed that failed, and the least that still makes it fail.

    Attributes:
        violations: what must not have happened.
        trace: what happened to the tasks that they name, and to nodes.
    """

    seed: int
    deeds: int
    left_out: tuple[str, ...]
    violations: list[str]
    trace: list[str]

    def command(self) -> str:
        """Return what replays it."""
        words = ["python -m tests.simulation --seed", str(self.seed)]
        words += ["--deeds", str(self.deeds)] if self.deeds != DEEDS else []
        words += ["--without", ",".join(self.left_out)] if self.left_out else []
        return " ".join(words)


def play(seed: int, deeds: int = DEEDS, left_out: Sequence[str] = ()) -> Failure | None:
    """Run one seed; return how it failed, if it did."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        verdict = World(seed, Path(folder), deeds=deeds, left_out=left_out).run()
    if not verdict.violations:
        return None
    return Failure(seed, deeds, tuple(left_out), verdict.violations, verdict.trace)


def shrunk(failure: Failure) -> Failure:
    """Leave out faults and deeds while the seed still fails, and of its trace what is beside the point."""
    for fault in FAULTS:
        failure = play(failure.seed, failure.deeds, (*failure.left_out, fault)) or failure
    step = failure.deeds // 2
    while step:
        fewer = play(failure.seed, failure.deeds - step, failure.left_out) if failure.deeds > step else None
        failure, step = (fewer, step) if fewer else (failure, step // 2)
    names = {violation.split(":")[0] for violation in failure.violations}
    groups = {name.partition(".")[0] + "." for name in names if "." in name}

    def matters(line: str) -> bool:
        words = line.split()[1:]
        about_nodes = not any(word.startswith(("run", "ask")) for word in words) and "pulled" not in words
        return about_nodes or any(word in names or word.startswith(tuple(groups)) for word in words)

    return failure._replace(trace=[line for line in failure.trace if matters(line)][-_SHOWN:])


def search(seeds: range, jobs: int) -> Iterator[tuple[int, list[int]]]:
    """Try seeds in so many processes; yield how many have been tried and which of them failed, bit by bit."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    tried = 0
    with ProcessPoolExecutor(jobs) as pool:
        for chunk, failed in zip(chunks, pool.map(failing, chunks), strict=True):
            tried += len(chunk)
            yield tried, failed


def failing(seeds: range) -> list[int]:
    """Return which of the seeds fail."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        failed = []
        for seed in seeds:
            world = World(seed, Path(folder))
            if world.run().violations:
                failed.append(seed)
            world.remove()
        return failed
