"""Run a measurement in a process of its own, since imports, threads and caches of one would disturb the next."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from benchmarks.peers.contract import Unable

T = TypeVar("T")

LIMIT_S = 1_200.0
"""How long one measurement may take, filling a database with a million rows included."""


class MeasurementFailed(Exception):
    """The process ended, hung or raised; the message is its traceback."""


def apart(work: Callable[..., T], *args: Any) -> T:
    """Call `work` in a fresh interpreter and return its result.

    Raises:
        Unable: it said that it cannot be done.
        MeasurementFailed: anything else went wrong.
    """
    start = begin(work, *args)
    return start()


def begin(work: Callable[..., T], *args: Any) -> Callable[[], T]:
    """Begin what `apart` does, and return what waits for the result."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, work, args))
    process.start()
    sender.close()

    def result() -> T:
        try:
            if not receiver.poll(LIMIT_S):
                raise MeasurementFailed(f"no result in {LIMIT_S:g} s")
            kind, value = receiver.recv()
        except EOFError:
            raise MeasurementFailed("the process ended without a result") from None
        finally:
            process.kill()
            process.join()
        if kind == "unable":
            raise Unable(value)
        if kind == "failed":
            raise MeasurementFailed(value)
        measured: T = value
        return measured

    return result


def _answer(sender: Connection, work: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        answer: tuple[str, object] = "measured", work(*args)
    except Unable as error:
        answer = "unable", str(error)
    except BaseException:
        answer = "failed", traceback.format_exc()
    sender.send(answer)
    sender.close()
    # Threads of a peer that was not stopped would keep the interpreter.
    sys.stdout.flush()
    os._exit(0)
