"""What the benchmark scripts share: options, fresh files, a plugin of no-op tasks, and the report.

Machines are noisy, so no figure stands alone: each script measures Callboard and its limit in turn, in one
run, and the report compares medians. A missed target is printed and is no failure, since a slow machine is none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from callboard import Engine, TaskKind, hookimpl
from callboard.wire import AddMissingInstallations


class NoOp:
    """A plugin whose tasks do nothing, so that only the engine's own work is measured."""

    def __init__(self, handler: Callable[..., Any] = lambda message, ctx: None) -> None:
        """Call `handler` for each task, if there is something to do after all."""
        self._handler = handler

    @hookimpl
    def callboard_task_kinds(self) -> list[TaskKind[Any]]:
        """Bring one kind; the first 8 bytes of the message's id name the group."""
        return [TaskKind(AddMissingInstallations, self._handler, group_id=lambda message: message.group_id[:8])]


@contextmanager
def fresh_file() -> Iterator[Path]:
    """Yield the path of a database that does not exist yet, in the current folder: `/tmp` may be memory."""
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as folder:
        yield Path(folder) / "bench.db"


def engine_on(path: Path, plugin: NoOp | None = None) -> Engine:
    """Return an engine with the default settings, `synchronous=FULL` among them."""
    return Engine(f"sqlite:///{path}", plugins=[plugin or NoOp()])


def group_name(number: int) -> bytes:
    """Return the id of a group: 8 bytes."""
    return b"%08d" % number


def messages(tasks: int, groups: int, first: int = 0) -> Iterator[AddMissingInstallations]:
    """Yield the messages of `tasks` different tasks, spread over `groups` groups in turn."""
    for number in range(first, first + tasks):
        yield AddMissingInstallations(group_id=b"%b:%d" % (group_name(number % groups), number))


def fill(engine: Engine, tasks: int, groups: int, first: int = 0) -> None:
    """Enqueue due tasks one by one, as services do; in one transaction, to be quick."""
    with engine.transaction() as tx:
        for message in messages(tasks, groups, first):
            tx.enqueue(message)


class _Target(NamedTuple):
    value: float
    bound: float
    is_least: bool

    def is_met(self) -> bool:
        return self.value >= self.bound if self.is_least else self.value <= self.bound

    def text(self) -> str:
        verdict = "met" if self.is_met() else "MISSED"
        return f"{verdict}: at {'least' if self.is_least else 'most'} {self.bound:,g}"


class Report:
    """Collect figures by name; print medians with their spread, ratios, and whether targets were met."""

    def __init__(self, title: str, *, repeat: int = 5, **options: float) -> None:
        """Read the command line.

        Args:
            title: what the figures are, and their unit.
            repeat: how often each thing is measured, unless `--repeat` says otherwise.
            options: further numbers that the command line may set, with their defaults.
        """
        parser = argparse.ArgumentParser(description=title)
        parser.add_argument("--repeat", type=int, default=repeat, help="measurements of each thing (%(default)s)")
        parser.add_argument("--json", action="store_true", help="print one line of JSON, with every figure")
        for name, default in options.items():
            parser.add_argument(f"--{name}", type=type(default), default=default, help="(%(default)s)")
        self.options = parser.parse_args()
        self.repeat: int = self.options.repeat
        self._title = title
        self._figures: dict[str, list[float]] = {}
        self._ratios: dict[str, float] = {}
        self._targets: dict[str, _Target] = {}

    def add(self, name: str, value: float) -> None:
        """Add a figure."""
        self._figures.setdefault(name, []).append(value)

    def add_percentiles(self, name: str, samples: Sequence[float]) -> None:
        """Add the 50th, 90th and 99th percentile of one run's samples, as figures `NAME, p50` and so on."""
        cuts = statistics.quantiles(samples, n=100, method="inclusive")
        for percent in (50, 90, 99):
            self.add(f"{name}, p{percent}", cuts[percent - 1])

    def ratio(self, name: str, of: str, to: str) -> None:
        """Add the ratio of two medians."""
        self._ratios[name] = self._value(of) / self._value(to)

    def at_least(self, name: str, bound: float) -> None:
        """State what a ratio or the median of a figure must not fall below."""
        self._targets[name] = _Target(self._value(name), bound, is_least=True)

    def at_most(self, name: str, bound: float) -> None:
        """State what a ratio or the median of a figure must not exceed."""
        self._targets[name] = _Target(self._value(name), bound, is_least=False)

    def print(self) -> None:
        """Print everything."""
        if self.options.json:
            targets = {name: {**each._asdict(), "met": each.is_met()} for name, each in self._targets.items()}
            print(
                json.dumps(
                    {
                        "title": self._title,
                        "figures": self._figures,
                        "medians": {name: self._value(name) for name in self._figures},
                        "ratios": self._ratios,
                        "targets": targets,
                    }
                )
            )
            return
        print(self._title)
        for name, values in self._figures.items():
            spread = f"({min(values):,.3f} to {max(values):,.3f}, n={len(values)})" if len(values) > 1 else ""
            self._print_line(name, f"median {self._value(name):>13,.3f}", spread)
        for name, value in self._ratios.items():
            self._print_line(name, f"ratio  {value:>13.3f}", "")

    def _print_line(self, name: str, value: str, spread: str) -> None:
        target = f"  {self._targets[name].text()}" if name in self._targets else ""
        print(f"  {name:<52} {value}  {spread}{target}".rstrip())

    def _value(self, name: str) -> float:
        return self._ratios[name] if name in self._ratios else statistics.median(self._figures[name])
