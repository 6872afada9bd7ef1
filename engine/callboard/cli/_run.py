"""`callboard run`: serve a database until a signal says stop."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import click

from callboard._engine import DEFAULT_WORKERS, Engine
from callboard._log import logger
from callboard.cli._database import database_argument
from callboard.cli._output import qualified

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_LOG_FORMAT = "<dim>{time:YYYY-MM-DDTHH:mm:ss.SSSZZ}</dim> <level>{level: <7}</level> {message}"
_DAY_S = 86_400
_LOOK_S = 1.0


@click.command
@database_argument
@click.option(
    "--workers", type=click.IntRange(min=1), default=DEFAULT_WORKERS, show_default=True, help="Handlers at once."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(0, _DAY_S),
    default=30,
    show_default=True,
    help="Seconds to wait for running tasks at the end.",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Least severe log lines to show, on stderr.",
)
def run(database: str, workers: int, timeout_s: int, log_level: str) -> None:
    """Run the tasks of DATABASE with the installed plugins.

    It makes the file if there is none, and runs until Ctrl-C or SIGTERM. It then waits for running tasks and exits
    with status 0, or 1 if one outlives --timeout. A second Ctrl-C ends it at once; tasks that it cuts short run
    again later. It waits for a file that is locked, full or read-only, and exits with status 1 when the file is
    removed, replaced, damaged, or migrated by a newer Callboard.

    Kinds that need a service of the host are left to a program that embeds the engine. Of failed attempts the log
    names kind and exception; `callboard tasks list --json` and `callboard dead list --json` show the traceback.

    Example: callboard run service.db --workers 8
    """
    _log_to_stderr(log_level)
    signals = _stop_signals()
    engine = Engine(database, workers=workers)
    try:
        engine.start()
        for line in _served(engine):
            click.echo(line)
        name = _wait(engine, signals).name
        logger.info("{}: waiting up to {} s for running tasks; Ctrl-C ends at once", name, timeout_s)
    finally:
        ended = engine.stop(timeout_s)
    if not ended:
        raise click.ClickException(
            f"a task was still running after {timeout_s} s and runs again at the next start; give it longer with"
            " --timeout"
        )


def _log_to_stderr(level: str) -> None:
    logger.remove()
    # diagnose would print the values of variables, payloads among them, into every traceback.
    logger.add(sys.stderr, level=level, format=_LOG_FORMAT, backtrace=False, diagnose=False)
    logger.enable("callboard")


def _stop_signals() -> SimpleQueue[signal.Signals]:
    """Return the queue to which SIGINT and SIGTERM go; a SIGINT after the first signal kills the process."""
    # A SimpleQueue, because a signal handler may run inside any call and this one's `put` is reentrant.
    received: SimpleQueue[signal.Signals] = SimpleQueue()

    def stop(number: int, _frame: FrameType | None) -> None:
        # The system's own action, because Python's would wait for a handler that holds the interpreter.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        received.put(signal.Signals(number))

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return received


def _wait(engine: Engine, received: SimpleQueue[signal.Signals]) -> signal.Signals:
    """Wait for a signal.

    Raises:
        ClickException: the engine cannot go on by itself.
    """
    while True:
        try:
            return received.get(timeout=_LOOK_S)
        except Empty:
            health = engine.health()
            if health.stuck:
                raise click.ClickException(str(health.database_error)) from None


def _served(engine: Engine) -> Iterator[str]:
    """Yield what a person wants to know at the start."""
    runnable = engine._core.registry.runnable
    for health in engine._core.plugins.health.values():
        for where, error in health.problems.items():
            yield f"plugin {health.name}: {where} failed: {error}"
        served = [name for name in health.kinds if name in runnable]
        if served:
            yield f"plugin {health.name}: serves {', '.join(served)}"
    waiting: dict[type[Any], list[str]] = {}
    for kind, _ in engine._core.registry:
        for service in engine._core.registry.missing_services(kind):
            waiting.setdefault(service, []).append(kind.name)
    for service, names in waiting.items():
        yield (
            f"left to other nodes, which have {qualified(service)}: {', '.join(names)}; to serve them, embed the"
            f" engine with Engine(..., services={{{service.__name__}: ...}})"
        )
    if not runnable:
        yield "no kind can be served here: tasks are kept until a node comes that knows them"
    yield f"serving {engine._core.store.where}; Ctrl-C stops"
