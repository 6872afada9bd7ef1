"""What a case is given: the command line's wishes, new databases, tables, and a way to measure all in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NamedTuple, TypeVar

from benchmarks.apart import MeasurementFailed, apart
from benchmarks.peers import contestant, contestants
from benchmarks.peers.contract import Unable
from benchmarks.places import Places
from benchmarks.tables import CALLBOARD, Table

T = TypeVar("T")


class Contestant(NamedTuple):
    """A contestant as cases see it, so that they need not import its package.

    Attributes:
        key: what `benchmarks.peers.contestant` takes.
        name: what tables call it.
        database: its kind of database.
        slowness: its share of the tasks is 1 in so many.
        runs_handlers: whether it does so itself, and not a loop written around it.
    """

    key: str
    name: str
    database: str
    slowness: int
    runs_handlers: bool


class Bench:
    """One run of one case."""

    def __init__(self, places: Places, *, repeat: int | None, quick: bool, peers: bool) -> None:
        """Measure `repeat` times, or as often as the case says; leave the peers out unless `peers`."""
        self.places = places
        self.quick = quick
        self.tables: list[Table] = []
        self.settings: dict[str, str] = {}
        self._repeat = repeat
        self._peers = peers

    def size(self, full: int, quick: int) -> int:
        """Return one of two sizes."""
        return quick if self.quick else full

    def turn_count(self, full: int, quick: int) -> int:
        """Return how often to measure, unless the command line says otherwise."""
        return self._repeat or self.size(full, quick)

    def turns(self, full: int, quick: int = 3) -> Iterator[int]:
        """Yield the numbers of the turns, and say on stderr how far it is."""
        count = self.turn_count(full, quick)
        for turn in range(count):
            self.say(f"turn {turn + 1} of {count}")
            yield turn

    def say(self, text: str) -> None:
        """Tell of progress."""
        print(f"  {text}", file=sys.stderr, flush=True)

    def table(self, title: str, unit: str, subject: str = CALLBOARD) -> Table:
        """Begin a table."""
        table = Table(title, unit, subject)
        self.tables.append(table)
        return table

    def contestants(self, database: str) -> list[Contestant]:
        """Return who is there on a kind of database, Callboard first, and note versions and settings."""
        found = []
        for key in contestants(database):
            try:
                kind = contestant(key)
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("benchmarks"):
                    raise
                self.say(f"{key} is left out: {error}")
                continue
            if not (self._peers or kind.name == CALLBOARD or kind.name.startswith("raw")):
                continue
            versions = ", ".join(f"{each} {metadata.version(each)}" for each in kind.distributions)
            self.settings[f"{kind.name} ({database})"] = "; ".join(filter(None, [versions, kind.settings]))
            found.append(Contestant(key, kind.name, kind.database, kind.slowness, kind.runs_handlers))
        return found

    @contextmanager
    def place(self, database: str) -> Iterator[str]:
        """Yield where a new database is."""
        with self.places.new(database) as place:
            yield place

    def measure(
        self,
        tables: Sequence[Table],
        who: Contestant,
        work: Callable[..., Sequence[float]],
        *args: Any,
    ) -> None:
        """Add what a contestant's `work` on a new database measures: one figure for each table.

        What a peer cannot do, or fails at, is shown as "-", and it is not asked again.

        Raises:
            MeasurementFailed: Callboard failed.
        """
        if any(who.name in table.unable for table in tables):
            return
        with self.place(who.database) as place:
            figures = self.ask(who, tables, work, place, *args)
        if figures is not None:
            for table, figure in zip(tables, figures, strict=True):
                table.add(who.name, figure)

    def ask(
        self, who: Contestant, tables: Sequence[Table], work: Callable[..., T], place: str, *args: Any
    ) -> T | None:
        """Return what a contestant's `work` on a database returns, or note in the tables why there is nothing.

        Raises:
            MeasurementFailed: Callboard failed.
        """
        self.say(f"  {work.__name__}: {who.name}, {who.database}")
        try:
            return apart(work, who.key, place, *args)
        except Unable as error:
            why = str(error)
        except MeasurementFailed as error:
            if who.name == CALLBOARD:
                raise
            self.say(f"{who.name} failed: {error}")
            why = "failed: " + str(error).strip().splitlines()[-1]
        for table in tables:
            table.leave_out(who.name, why)
        return None
