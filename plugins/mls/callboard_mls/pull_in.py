"""Lower another task's deadline by a task: for a caller that can write a row, but has no engine at hand."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from callboard import Engine, TaskContext, TaskKind, Transaction, hookimpl
from callboard.wire import PullInDeadline


def pull_in_deadline(
    engine: Engine,
    target_data_hash: bytes,
    not_later_than_ns: int,
    *,
    commit: Callable[[], AbstractContextManager[Transaction]] | None = None,
) -> bool:
    """Have another task run at `not_later_than_ns` at the latest; never later than it would have.

    Args:
        engine: Where the other task is.
        target_data_hash: SHA-256 of the other task's encoded `Task`; a task that was enqueued with a key has
            another identity and is not found by it.
        not_later_than_ns: Its deadline, ns since the epoch.
        commit: Opens the transaction to write in; by default `engine.transaction`. The task's handler gives
            `ctx.complete`, so that a crash cannot lower a later deadline a second time.

    Returns:
        Whether there was such a task.
    """
    with (engine.transaction if commit is None else commit)() as tx:
        return tx.pull_in(target_data_hash, not_later_than_ns=not_later_than_ns)


def _handle(message: PullInDeadline, ctx: TaskContext) -> None:
    found = pull_in_deadline(ctx.engine, message.target_data_hash, message.not_later_than_ns, commit=ctx.complete)
    if not found:
        ctx.logger.info("there is no live task to pull in; it has ended or was never enqueued")


@hookimpl
def callboard_task_kinds() -> Iterable[TaskKind[PullInDeadline]]:
    """Bring `pull_in_deadline`, which needs no MLS stack."""
    return [TaskKind(PullInDeadline, _handle)]
