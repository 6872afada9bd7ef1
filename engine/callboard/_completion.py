"""Commit a handler's effects and its outcome together, from the handler's own thread.

An await inside the block would let other handlers of the same loop write into this transaction, because they
share the thread and so its connection. Two guards refuse that: the loop tells whether it ran meanwhile, and
another asyncio task that would write on this thread gets an error instead of our transaction. The second guard
is there for every transaction of the engine's: what it accepted would be rolled back with a stranger's failure.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from callboard import _crash_points, _lifecycle
from callboard._outcome import Outcome
from callboard._transaction import Transaction
from callboard.errors import CompletionError, StaleRunError

if TYPE_CHECKING:
    from callboard._core import Core
    from callboard._run import Run

_AWAITED = "ctx.complete was awaited inside; do all awaiting before it, it is the handler's last act"


class _Open(threading.local):
    """The asyncio task, or the thread, that has a transaction open on this thread."""

    owner: object = None


_open = _Open()


def check_open(run: Run) -> None:
    """Refuse to go on with a run that has been completed.

    Raises:
        CompletionError: it has.
    """
    if run.committed is not None:
        raise CompletionError(f"task {run.task.id} has been completed; ctx.complete is the handler's last act")


def check_thread() -> None:
    """Refuse to write into the transaction of another coroutine, which awaits inside of it.

    Raises:
        CompletionError: this thread has such a transaction open.
    """
    if _open.owner is not None and _open.owner is not _current_task():
        raise CompletionError(
            "another async handler awaits inside ctx.complete or engine.transaction() on this thread; it must not"
        )


@contextmanager
def owned() -> Iterator[None]:
    """Keep the transaction that is open on this thread for this coroutine."""
    before, _open.owner = _open.owner, _current_task()
    try:
        yield
    finally:
        _open.owner = before


def _current_task() -> object:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


@contextmanager
def complete(core: Core, run: Run, outcome: Outcome) -> Iterator[Transaction]:
    """Open the transaction of `TaskContext.complete`."""
    check_open(run)
    check_thread()
    if not isinstance(outcome, Outcome):
        raise CompletionError(
            f"ctx.complete was given {outcome!r:.200}, which is no outcome; give it Done, RescheduleAt, Defer,"
            " Discard or nothing"
        )
    if run.is_elsewhere():
        raise StaleRunError(
            f"this is a child that the handler of task {run.task.id} forked; only the parent completes"
        )
    store = core.store
    if store.in_transaction():
        raise CompletionError("ctx.complete opens its own transaction; leave the one this thread is in first")
    task = run.task
    loop_ran = _watch_loop()
    with core.transaction() as tx:
        held = store.tasks.hold(tx.session, [task.id], wait=True).get(task.id)
        if held is None or held.token != task.token:
            run.cancelled = True
            raise StaleRunError(f"task {task.id} is no longer this run's; nothing of it is committed")
        yield tx
        if loop_ran():
            raise CompletionError(_AWAITED)
        transition = _lifecycle.settle(
            task,
            outcome,
            core.clock.now_ns(),
            recurring=run.kind.recurring,
            requested=held.requests != run.requests,
        )
        store.tasks.settle(tx.session, [(task.id, transition)], core.clock.now_ns())
        for new in run.buffered:
            tx.write(new)
        tx.dirty = True
        _crash_points.reach("callboard.complete.written")
    run.committed, run.completed = transition, outcome
    _crash_points.reach("callboard.complete.committed")


def _watch_loop() -> Callable[[], bool]:
    """Return a function that tells whether this thread's event loop has run since."""
    ran: list[bool] = []
    with suppress(RuntimeError):
        asyncio.get_running_loop().call_soon(ran.append, True)
    return lambda: bool(ran)
