"""Tell the story: a live task table under the lines on a terminal, the lines alone elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from callboard import Task

_COLUMNS = ("task", "kind", "group", "state", "attempts", "due in")
_NS_PER_S = 1_000_000_000


class Narrator:
    """Says what happened and why it matters, in words that are ASCII so that any terminal can show them."""

    def __init__(self, console: Console) -> None:
        """Tell it on `console`."""
        self._console = console
        animated = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, refresh_per_second=20, transient=True) if animated else None

    def __enter__(self) -> Self:
        """Begin to show the task table, where there is a terminal."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the task table away; what was said stays."""
        if self._live is not None:
            self._live.stop()

    def say(self, what: str, why: str = "") -> None:
        """Say what happened, and why it matters."""
        self._print(Text(what, style="bold"))
        if why:
            self._print(Text(why), indent=2)

    def detail(self, what: str) -> None:
        """Say something that happened on the way."""
        self._print(Text(what, style="yellow"), indent=2)

    def check(self, good: bool, what: str) -> None:
        """Say what a check found."""
        verdict = Text("  ok      ", style="green") if good else Text("  FAILED  ", style="bold red")
        self._print(verdict + Text(what))

    def show(self, tasks: Sequence[Task]) -> None:
        """Show the task table as it is now."""
        if self._live is None:
            return
        table = Table(*_COLUMNS, title="The task table", title_justify="left")
        now_ns = time.time_ns()
        for task in tasks:
            table.add_row(
                str(task.id),
                task.kind,
                "" if task.group_id is None else task.group_id.decode(),
                task.state,
                str(task.attempts),
                _due_in(task.next_attempt_at_ns - now_ns),
            )
        self._live.update(table)

    def _print(self, text: Text, indent: int = 0) -> None:
        if self._live is None:
            self._console.print(Text(" " * indent) + text, soft_wrap=True)
        else:
            self._console.print(Padding(text, (0, 0, 0, indent)))


def _due_in(wait_ns: int) -> str:
    seconds = wait_ns / _NS_PER_S
    if seconds <= 0:
        return "now"
    for unit, size in (("d", 86_400), ("h", 3_600)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
