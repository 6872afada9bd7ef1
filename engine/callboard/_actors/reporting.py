"""Log what went wrong with tasks: one line for a batch and kind, without payloads and group ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from callboard._kinds import TaskKind
from callboard._log import logger
from callboard._outcome import Failure
from callboard._task import DeadReason, FinishedTask, Task

_SAMPLE = 5
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?=:|$)")


def log_failures(failures: Iterable[tuple[Task, Failure]]) -> None:
    """Say which attempts failed, by the exception's name; the rest of it stands in `last_error`."""
    by_kind: dict[str, list[tuple[Task, Failure]]] = {}
    for task, failure in failures:
        by_kind.setdefault(task.kind, []).append((task, failure))
    for kind, failed in by_kind.items():
        names = sorted({_name(failure.error) for _, failure in failed})
        what = f"{len(failed)} attempt(s) of kind {kind} failed with {', '.join(names)}"
        logger.info("{} (tasks {})", what, _some([task.id for task, _ in failed]))


def log_pause(kind: TaskKind[Any], change: Literal["paused", "resumed"], result: object) -> None:
    """Say that a kind is paused or resumed, and what to do."""
    if change == "resumed":
        logger.warning("kind {} is resumed: a task of it has succeeded", kind.name)
        return
    logger.error(
        "kind {} is paused: {} different groups or tasks failed in a row, without a success, the last with {}; one"
        " task is tried from time to time, and a success resumes the kind; `health().paused` tells more",
        kind.name,
        kind.pause_after,
        _name(result.error) if isinstance(result, Failure) else "an error",
    )


def log_deaths(finished: Iterable[FinishedTask]) -> None:
    """Say which tasks died; cancelled ones were meant to, malformed ones have been logged with their bytes."""
    by_kind: dict[tuple[str, DeadReason], list[int]] = {}
    for task, _, reason in finished:
        if reason is not None and reason not in (DeadReason.MALFORMED, DeadReason.CANCELLED):
            by_kind.setdefault((task.kind, reason), []).append(task.id)
    for (kind, why), ids in by_kind.items():
        logger.warning(
            "{} task(s) of kind {} are dead: {} (tasks {}); `callboard dead list` tells more",
            len(ids),
            kind,
            why.value,
            _some(ids),
        )


def _name(error: str) -> str:
    lines = error.strip().splitlines()
    found = _EXCEPTION.match(lines[-1]) if lines else None
    return found.group() if found else "an error"


def _some(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:_SAMPLE])) + (", …" if len(ids) > _SAMPLE else "")
