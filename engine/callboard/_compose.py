"""Turn a message and what the caller says of it into the row that an enqueue writes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from google.protobuf.message import Message

from callboard import _codec
from callboard._clock import NEVER_NS, Clock, check_when, deadline_ns, nanoseconds
from callboard._kinds import KindRegistry, TaskKind, check_group_id
from callboard._outcome import check_text
from callboard._retry import DEFAULT_POLICY
from callboard._task import DeadTask, NewTask, Task
from callboard.errors import ConfigurationError, UnknownKindError

DEFAULT_EXPIRY_NS = nanoseconds(DEFAULT_POLICY.expires_after)


class _Form(NamedTuple):
    """What the rows of one kind have in common; without a policy if nobody here knows the kind."""

    name: str
    kind: TaskKind[Any] | None
    expires_after_ns: int
    max_attempts: int | None
    initial_backoff_ns: int | None
    backoff_factor: float | None
    max_backoff_ns: int | None


class Composer:
    """Write rows as the registered kinds want them."""

    def __init__(self, registry: KindRegistry, clock: Clock) -> None:
        """Take group and policy from `registry`, times from `clock`."""
        self._registry = registry
        self._clock = clock
        self._forms: dict[type[Message], _Form] = {}

    def compose(
        self,
        message: Message,
        *,
        not_before: timedelta | int | None = None,
        expires_after: timedelta | int | None = None,
        key: str | None = None,
        group_id: bytes | None = None,
        origin: str | None = None,
        allow_unknown: bool = False,
    ) -> NewTask:
        """Return the row for `message`; the arguments are those of `Engine.enqueue`."""
        form = self._forms.get(type(message)) or self._form_of(message, allow_unknown=allow_unknown)
        name, kind = form.name, form.kind
        for when in (not_before, expires_after):
            if when is not None:
                check_when(when)
        if isinstance(expires_after, timedelta) and expires_after < timedelta(0):
            raise ConfigurationError(f"expires_after must not be negative, not {expires_after!r}")
        if key is not None and not (isinstance(key, str) and key):
            raise ConfigurationError(f"key must be a non-empty string, not {key!r}")
        if origin is not None:
            check_text("origin", origin)
        if group_id is not None:
            check_group_id(group_id)
        elif kind is not None:
            group_id = kind.group_of(message)
        now_ns = self._clock.now_ns()
        next_attempt_at_ns = now_ns if not_before is None else deadline_ns(not_before, now_ns)
        if expires_after is not None:
            expires_at_ns = deadline_ns(expires_after, now_ns)
        else:
            expires_at_ns = min(now_ns + form.expires_after_ns, NEVER_NS)
            is_late = not_before is not None and next_attempt_at_ns >= expires_at_ns
            if is_late and kind is not None and not kind.recurring:
                raise ConfigurationError(
                    f"a task of {name} expires {kind.retry.expires_after} after its enqueue, before not_before"
                    " lets it run; give expires_after as well, or its kind a RetryPolicy with a longer one"
                )
        data = _codec.encode(message)
        data_hash = _codec.hash_of(data)
        return NewTask(
            kind=name,
            group_id=group_id,
            identity=data_hash if key is None else _codec.keyed_identity(name, key),
            data=data,
            data_hash=data_hash,
            max_attempts=form.max_attempts,
            created_at_ns=now_ns,
            expires_at_ns=expires_at_ns,
            next_attempt_at_ns=next_attempt_at_ns,
            initial_backoff_ns=form.initial_backoff_ns,
            backoff_factor=form.backoff_factor,
            max_backoff_ns=form.max_backoff_ns,
            origin=origin,
        )

    def _form_of(self, message: Message, *, allow_unknown: bool) -> _Form:
        """Return what the rows of a message's kind have in common; of a kind that is known here, keep it."""
        if not isinstance(message, Message):
            raise TypeError(f"enqueue takes a protobuf message, not {message!r}")
        name = _codec.kind_of(type(message))
        kind = self._registry.get(name)
        if kind is None:
            if not allow_unknown:
                raise UnknownKindError(
                    f"no plugin here registered kind {name!r}; install or name its plugin (`callboard kinds` lists"
                    " what is here, Engine.health() what failed), or pass allow_unknown=True to leave the task to"
                    " a node that knows it"
                )
            _codec.check_deterministic(type(message))
            return _Form(name, None, DEFAULT_EXPIRY_NS, None, None, None, None)
        retry = kind.retry
        form = _Form(
            name, kind, kind.expiry_ns(0), kind.max_attempts(), retry.initial_ns, retry.factor, retry.cap_ns
        )
        if type(message) is kind.message_type:  # there may be any number of other classes of this name
            self._forms[kind.message_type] = form
        return form


def resolved(task: Task, kind: TaskKind[Any], message: Message) -> Task:
    """Return a row that came without a policy, with the group and policy of `kind`.

    Raises:
        ValueError: the kind gives a group id that cannot name a group.
    """
    defaulted = task.expires_at_ns - task.created_at_ns == DEFAULT_EXPIRY_NS
    return task._replace(
        group_id=kind.group_of(message) if task.group_id is None else task.group_id,
        max_attempts=kind.max_attempts(),
        expires_at_ns=kind.expiry_ns(task.created_at_ns) if defaulted or kind.recurring else task.expires_at_ns,
        initial_backoff_ns=kind.retry.initial_ns,
        backoff_factor=kind.retry.factor,
        max_backoff_ns=kind.retry.cap_ns,
    )


def revived(dead: DeadTask | Task, now_ns: int) -> NewTask:
    """Return a task that is dead, or about to be, as a new one, with the same span between birth and expiry."""
    span = dead.expires_at_ns - dead.created_at_ns
    expires_at_ns = NEVER_NS if dead.expires_at_ns == NEVER_NS else min(now_ns + max(span, 0), NEVER_NS)
    same = {name: getattr(dead, name) for name in NewTask._fields if name in dead._fields}
    same.update(created_at_ns=now_ns, expires_at_ns=expires_at_ns, next_attempt_at_ns=now_ns)
    return NewTask(**same)
