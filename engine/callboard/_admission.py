"""What becomes of a due row that this node has a handler for: the checks of rule 6, in their order. Pure.

A row may have been written by anybody, so whatever is in it, the answer is one of three: run, defer, bury.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from callboard import _codec, _lifecycle
from callboard._compose import resolved
from callboard._error_text import storable
from callboard._kinds import TaskKind
from callboard._lifecycle import Bury
from callboard._run import Run
from callboard._task import DeadReason, Task
from callboard.errors import UnknownPayloadError


class Undecodable(NamedTuple):
    """The payload is a newer build's: it is left to a node that knows it."""


UNDECODABLE = Undecodable()


def admit(task: Task, kind: TaskKind[Any], now_ns: int) -> Run | Bury | Undecodable:
    """Return the run of a due row of `kind`, or why there is none.

    The run's task has the kind's group and policy where the row came without a policy.
    """
    burial = _lifecycle.overdue(task, now_ns, recurring=kind.recurring)
    if burial is not None:
        return burial
    try:
        message = _codec.decode(task.data, task.kind, kind.message_type, whole=kind.on_unknown_fields == "defer")
        return Run(resolved(task, kind, message) if task.max_attempts is None else task, kind, message)
    except UnknownPayloadError:
        return UNDECODABLE
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the codec, or anything at all of the kind's own `group_id`
        return malformed(task, _text_of(error))


def malformed(task: Task, why: str) -> Bury:
    """Return the burial of a row that no build can run."""
    return Bury(DeadReason.MALFORMED, task.attempts, why)


def _text_of(error: BaseException) -> str:
    try:
        text = str(error) or type(error).__name__
    except Exception:  # of the plugin's own class
        text = type(error).__name__
    return storable(text)
