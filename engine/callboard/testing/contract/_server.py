"""The process that those of the checks are forked from: everything imported, one thread, no connection.

It reads orders from stdin and answers on stdout, both pickled, until stdin ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from callboard._error_text import trace_of
from callboard._log import logger
from callboard.hookspec import PROJECT
from callboard.testing.contract._given import Given


class Whose(NamedTuple):
    """Whose surroundings are meant: the class that the author wrote, as another process finds it.

    Attributes:
        module: its module's name.
        file: the file of that.
        name: its qualified name.
        plugin: the name of the plugin's entry point; `None` if the class has the plugin itself.
    """

    module: str
    file: str
    name: str
    plugin: str | None


class Order(NamedTuple):
    """What to do in a process of its own.

    Attributes:
        whose: the surroundings.
        function: called with them and `arguments`.
        arguments: the rest of the arguments.
        answer: the file for what it returns or raises.
        log: the file for what it prints.
    """

    whose: Whose
    function: Any
    arguments: tuple[Any, ...]
    answer: str
    log: str


def main() -> None:
    """Serve."""
    # Whatever is printed from here on is the plugin's, and goes where its log goes.
    with os.fdopen(os.dup(0), "rb") as orders, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        _serve(orders, answers)


def _serve(orders: BinaryIO, answers: BinaryIO) -> None:
    logger.remove()
    logger.add(sys.stderr, level="INFO", format="{level} {message}", diagnose=False)
    logger.enable("callboard")
    while True:
        try:
            order: Order = pickle.load(orders)
        except EOFError:
            return
        pickle.dump(_done(order), answers)
        answers.flush()


def _done(order: Order) -> tuple[int, str | None]:
    """Return how the process of an order ended, or why there could be none."""
    try:
        given = _given(order.whose)
    except BaseException as error:
        return 0, trace_of(error)
    return _in_a_child(given, order), None


@cache
def _given(whose: Whose) -> Given:
    """Return the surroundings that the author wrote, in this process."""
    found: Any = _module(whose.module, whose.file)
    for name in whose.name.split("."):
        found = getattr(found, name)
    given: Given = found()
    if whose.plugin is not None:
        # Here, so that it is found and imported once and not in each child.
        [point] = entry_points(group=PROJECT, name=whose.plugin)
        given.plugin = point.load()
    return given


def _module(name: str, file: str) -> ModuleType:
    """Return a module; one that pytest made up a name for is read from its file."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        module = ModuleType(name)
    if getattr(module, "__file__", None) is not None and Path(str(module.__file__)).samefile(file):
        return module
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _in_a_child(given: Given, order: Order) -> int:
    """Call the function in a process of its own; return its exit status, negative for the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
            os.dup2(2, 1)
            _answer(given, order)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _answer(given: Given, order: Order) -> None:
    """Write what the function returned, or what it raised."""
    try:
        said = pickle.dumps((order.function(given, *order.arguments), None))
    except BaseException as error:
        said = pickle.dumps((None, trace_of(error)))
    Path(order.answer).write_bytes(said)
