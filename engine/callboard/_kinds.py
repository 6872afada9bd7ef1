"""What a plugin says of a kind, and the table of all that are registered in one engine."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from google.protobuf.message import Message

from callboard._clock import NEVER_NS, nanoseconds
from callboard._codec import check_deterministic, kind_of
from callboard._outcome import Outcome
from callboard._retry import DEFAULT_POLICY, UNLIMITED_ATTEMPTS, RetryPolicy
from callboard.errors import ConfigurationError, KindError

if TYPE_CHECKING:
    from callboard._context import TaskContext

M = TypeVar("M", bound=Message)

MAX_GROUP_ID_BYTES = 255

DEFAULT_PAUSE_AFTER = 20
"""Failures of different groups in a row that pause a kind; see `_actors/throttle.py` for where it comes from."""


def check_group_id(group_id: bytes) -> bytes:
    """Return `group_id` if it can name a group.

    Raises:
        ConfigurationError: it is not bytes, is empty, or is longer than 255 bytes.
    """
    if not isinstance(group_id, bytes) or not 1 <= len(group_id) <= MAX_GROUP_ID_BYTES:
        raise ConfigurationError(f"group_id must be 1 to {MAX_GROUP_ID_BYTES} bytes, not {group_id!r}")
    return group_id


def _takes_two(handler: Callable[..., Any]) -> bool:
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True


@dataclass(frozen=True, slots=True)
class TaskKind(Generic[M]):
    """Bind a message type to the handler that does its work, and say how its tasks are run.

    Attributes:
        message_type: the protobuf message that is the payload; its name gives the kind its name.
        handler: called as `handler(message, ctx)`, a function or a coroutine function; returns an outcome,
            `None` meaning `Done()`, and raises to fail the attempt.
        group_id: from the message to the group whose tasks never overlap; `None` for no group.
        retry: when failures are tried again, and for how long.
        recurring: never expires and never exhausts; the handler returns `RescheduleAt`.
        timeout: after this long `ctx.cancelled` is set and an async handler is cancelled.
        concurrency: how many groups, or tasks without one, each node works on at once; `None` for no limit but
            the engine's `workers`. A handler that may block for long should have one, so that it cannot take all
            threads of its node.
        pause_after: after how many different groups, or tasks without one, have failed in a row, with no success
            in between, a node pauses the kind and tries one task from time to time; `None` for never.
        requires: types of the services without which this node leaves the kind's tasks to others.
        on_unknown_fields: what to do with a payload that has fields which this build's `message_type` lacks, in
            the message or in those inside it: `"run"` calls the handler, which does without them; `"defer"`
            leaves the task to a newer build, because to do without them would be wrong. They stay in the row
            either way. An `Any` is not looked into.

    Raises:
        KindError: the message type has a map field, the handler cannot be called, or another argument makes no
            sense.
    """

    message_type: type[M]
    handler: Callable[[M, TaskContext], Outcome | Awaitable[Outcome | None] | None]
    group_id: Callable[[M], bytes | None] | None = None
    retry: RetryPolicy = DEFAULT_POLICY
    recurring: bool = False
    timeout: timedelta = timedelta(minutes=5)
    requires: tuple[type[Any], ...] = ()
    on_unknown_fields: Literal["run", "defer"] = "run"
    concurrency: int | None = None
    pause_after: int | None = DEFAULT_PAUSE_AFTER
    name: str = field(init=False)
    is_async: bool = field(init=False, repr=False)
    timeout_ns: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check what can be checked before a task of the kind exists."""
        if not (inspect.isclass(self.message_type) and issubclass(self.message_type, Message)):
            raise KindError(
                f"a TaskKind's message_type must be a protobuf message class, not {self.message_type!r}"
            )
        name = kind_of(self.message_type)
        check_deterministic(self.message_type)
        if not callable(self.handler):
            raise KindError(f"{name}: the handler must be callable, not {self.handler!r}")
        if not _takes_two(self.handler):
            raise KindError(
                f"{name}: the handler is called as handler(message, ctx), which"
                f" {getattr(self.handler, '__qualname__', repr(self.handler))} cannot be"
            )
        if self.group_id is not None and not callable(self.group_id):
            raise KindError(f"{name}: group_id must be a function of the message, not {self.group_id!r}")
        if not isinstance(self.retry, RetryPolicy):
            raise KindError(f"{name}: retry must be a RetryPolicy, not {self.retry!r}")
        try:
            self.retry.check()
        except ConfigurationError as error:
            raise KindError(f"{name}: retry: {error}") from error
        if not isinstance(self.timeout, timedelta) or self.timeout <= timedelta(0):
            raise KindError(f"{name}: timeout must be a timedelta above 0, not {self.timeout!r}")
        if not isinstance(self.requires, tuple) or not all(inspect.isclass(t) for t in self.requires):
            raise KindError(f"{name}: requires must be a tuple of types, such as (Mailer,), not {self.requires!r}")
        if self.on_unknown_fields not in ("run", "defer"):
            raise KindError(f'{name}: on_unknown_fields must be "run" or "defer", not {self.on_unknown_fields!r}')
        for argument in ("concurrency", "pause_after"):
            number = getattr(self, argument)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise KindError(
                    f"{name}: {argument} must be a whole number of at least 1, or None, not {number!r}"
                )
        if not isinstance(self.recurring, bool):
            raise KindError(f"{name}: recurring must be True or False, not {self.recurring!r}")
        of_object = inspect.iscoroutinefunction(type(self.handler).__call__)
        is_async = inspect.iscoroutinefunction(self.handler) or of_object
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "is_async", is_async)
        object.__setattr__(self, "timeout_ns", nanoseconds(self.timeout))

    def group_of(self, message: M) -> bytes | None:
        """Return the group that `message` belongs to.

        Raises:
            ConfigurationError: the kind gives an id that cannot name a group.
        """
        group_id = None if self.group_id is None else self.group_id(message)
        return None if group_id is None else check_group_id(group_id)

    def max_attempts(self) -> int:
        """Return the row's `max_attempts` column."""
        return UNLIMITED_ATTEMPTS if self.recurring else self.retry.max_attempts

    def expiry_ns(self, created_at_ns: int) -> int:
        """Return the row's `expires_at_ns` column."""
        return NEVER_NS if self.recurring else min(created_at_ns + self.retry.expires_after_ns, NEVER_NS)


class KindRegistry:
    """The kinds of one engine, by name, each with the plugin that brought it."""

    def __init__(self, services: dict[type[Any], Any]) -> None:
        """Start empty; `services` decides which kinds this node can run."""
        self._services = services
        self._kinds: dict[str, tuple[TaskKind[Any], str]] = {}
        self._disabled: set[str] = set()
        self.runnable: dict[str, TaskKind[Any]] = {}
        self.blocked: list[str] = []

    def register(self, kind: TaskKind[Any], plugin: str) -> None:
        """Add a kind.

        Raises:
            KindError: it is no `TaskKind`, or another plugin registered the kind before.
        """
        if not isinstance(kind, TaskKind):
            raise KindError(f"plugin {plugin!r}: callboard_task_kinds must return TaskKind objects, not {kind!r}")
        if kind.name in self._kinds:
            first = self._kinds[kind.name][1]
            raise KindError(f"plugin {plugin!r}: kind {kind.name!r} is already registered, by plugin {first!r}")
        self._kinds[kind.name] = (kind, plugin)
        if not self.missing_services(kind):
            self.runnable[kind.name] = kind

    def disable(self, plugin: str) -> None:
        """Have no kind of a plugin run here any more."""
        self._disabled.add(plugin)
        # Another dictionary, because threads may be iterating over this one.
        self.runnable = {name: kind for name, kind in self.runnable.items() if self._kinds[name][1] != plugin}

    def get(self, name: str) -> TaskKind[Any] | None:
        """Return the kind called `name`, whether or not this node can run it."""
        found = self._kinds.get(name)
        return None if found is None else found[0]

    def missing_services(self, kind: TaskKind[Any]) -> tuple[type[Any], ...]:
        """Return the types that `kind` requires and the host did not give."""
        return tuple(service for service in kind.requires if service not in self._services)

    def remedy(self, name: str) -> str:
        """Return what would have this node run a kind that it cannot run."""
        known = self.get(name)
        if known is None:
            unblock = f", or unblock it (blocked here: {', '.join(self.blocked)})" if self.blocked else ""
            return f"install the plugin that brings the kind{unblock}"
        if (plugin := self._kinds[name][1]) in self._disabled:
            return f"mend plugin {plugin}, of which `callboard migrate` or Engine.health() says what is wrong"
        names = ", ".join(missing.__name__ for missing in self.missing_services(known))
        return f"give Engine(..., services=...) what the kind requires: {names}"

    def __iter__(self) -> Iterator[tuple[TaskKind[Any], str]]:
        """Iterate over kinds and the names of the plugins that brought them."""
        return iter(self._kinds.values())
