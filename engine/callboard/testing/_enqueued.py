"""Assert which tasks there are, and when there are others, say which."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from callboard._clock import deadline_ns
from callboard._codec import decode, encode, keyed_identity, kind_of
from callboard._engine import Engine
from callboard._task import Task
from callboard.errors import ConfigurationError
from callboard.testing._clock import FakeClock
from callboard.testing._rows import all_rows, described, one_line

M = TypeVar("M", bound=Message)

_ABOUT_NS = 10**9
"""How far from `due` a deadline may lie on a clock that goes on by itself."""

_SHOWN = 20
"""How many rows a failed assertion shows."""


class _Wanted(NamedTuple):
    """What a test asks for; `None` stands for anything."""

    kind: str
    message: Message | None
    key: str | None
    group_id: bytes | None
    due_ns: int | None
    state: str | None
    origin: str | None
    tolerance_ns: int
    text: str

    def differences(self, task: Task) -> list[str]:
        """Return the conditions that a row of the kind does not meet."""
        met = {
            "message": self.message is None or task.data == encode(self.message),
            "key": self.key is None or task.identity == keyed_identity(self.kind, self.key),
            "group_id": self.group_id in (None, task.group_id),
            "due": self.due_ns is None or abs(task.next_attempt_at_ns - self.due_ns) <= self.tolerance_ns,
            "state": self.state in (None, task.state),
            "origin": self.origin in (None, task.origin),
        }
        return [condition for condition, holds in met.items() if not holds]


def assert_enqueued(
    engine: Engine,
    wanted: Message | type[Message],
    *,
    count: int | None = None,
    key: str | None = None,
    group_id: bytes | None = None,
    due: timedelta | int | None = None,
    state: str | None = None,
    origin: str | None = None,
) -> list[Task]:
    """Assert that there is a live task as described; return all that are, in the order of their ids.

    It looks once and waits for nothing: what a started engine is to do first, `Engine.wait_idle` waits for.

    Args:
        engine: whose database to look at.
        wanted: the message, to be found as it is; or its type, for any message.
        count: how many there must be; by default at least one.
        key: the key that the task was enqueued with.
        group_id: the group that it belongs to.
        due: its next deadline, a timedelta from now or nanoseconds since the epoch: exactly so on a `FakeClock`,
            give or take a second on another clock.
        state: `pending`, `running` or `deferred`.
        origin: what was given as `origin`.

    Raises:
        AssertionError: there are others, or none; it says which live and dead tasks there are instead.
    """
    __tracebackhide__ = True
    asked = _asked(engine, wanted, key=key, group_id=group_id, due=due, state=state, origin=origin)
    matching = _matching(engine, asked)
    if count is None and not matching:
        raise AssertionError(f"no task {asked.text}\n{_instead(engine, asked)}")
    if count is not None and len(matching) != count:
        raise AssertionError(f"not {count} but {len(matching)} tasks {asked.text}\n{_instead(engine, asked)}")
    return matching


def refute_enqueued(
    engine: Engine,
    wanted: Message | type[Message],
    *,
    key: str | None = None,
    group_id: bytes | None = None,
    due: timedelta | int | None = None,
    state: str | None = None,
    origin: str | None = None,
) -> None:
    """Assert that there is no live task as described, in the words of `assert_enqueued`.

    Raises:
        AssertionError: there is one; it says which.
    """
    __tracebackhide__ = True
    asked = _asked(engine, wanted, key=key, group_id=group_id, due=due, state=state, origin=origin)
    if matching := _matching(engine, asked):
        raise AssertionError(f"there should be no task {asked.text}\n{_shown(engine, matching)}")


def all_enqueued(
    engine: Engine,
    message_type: type[M],
    *,
    key: str | None = None,
    group_id: bytes | None = None,
    due: timedelta | int | None = None,
    state: str | None = None,
    origin: str | None = None,
) -> list[M]:
    """Return the messages of all live tasks as described, in the order of the tasks' ids.

    Raises:
        MalformedPayloadError: one of the rows does not hold such a message.
    """
    asked = _asked(engine, message_type, key=key, group_id=group_id, due=due, state=state, origin=origin)
    return [decode(task.data, task.kind, message_type) for task in _matching(engine, asked)]


def _asked(engine: Engine, wanted: Message | type[Message], **conditions: Any) -> _Wanted:
    message = wanted if isinstance(wanted, Message) else None
    message_type = type(wanted) if isinstance(wanted, Message) else wanted
    if not (isinstance(message_type, type) and issubclass(message_type, Message)):
        raise ConfigurationError(f"give a protobuf message or its type, not {wanted!r}")
    said = [f"{name}={value!r}" for name, value in conditions.items() if value is not None]
    text = " ".join([f"of kind {kind_of(message_type)}", *([] if message is None else [one_line(message)]), *said])
    due = conditions.pop("due")
    due_ns = None if due is None else deadline_ns(due, engine.clock.now_ns())
    tolerance_ns = 0 if isinstance(engine.clock, FakeClock) else _ABOUT_NS
    return _Wanted(
        kind_of(message_type), message, due_ns=due_ns, tolerance_ns=tolerance_ns, text=text, **conditions
    )


def _matching(engine: Engine, asked: _Wanted) -> list[Task]:
    return [task for task in all_rows(engine, asked.kind) if not asked.differences(task)]


def _instead(engine: Engine, asked: _Wanted) -> str:
    """Say what there is: of the kind, what distinguishes it; of its dead, why; of others, how many."""
    lines = []
    others: dict[str, int] = {}
    for task in all_rows(engine):
        if task.kind != asked.kind:
            others[task.kind] = others.get(task.kind, 0) + 1
        elif differing := asked.differences(task):
            lines.append(f"{described(engine, task)}\n    differs in: {', '.join(differing)}")
        else:
            lines.append(f"{described(engine, task)}\n    as asked for")
    lines += [described(engine, dead) for dead in engine.dead_tasks(kind=asked.kind, limit=_SHOWN)]
    lines += [f"{number} of kind {kind}" for kind, number in sorted(others.items())]
    if not lines:
        return "there is no task at all: none was committed, or it is done"
    return f"there are:\n{_listed(lines)}"


def _shown(engine: Engine, tasks: list[Task]) -> str:
    return f"there are:\n{_listed([described(engine, task) for task in tasks])}"


def _listed(lines: list[str]) -> str:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join(f"  {line}" for line in [*lines[:_SHOWN], *more])
