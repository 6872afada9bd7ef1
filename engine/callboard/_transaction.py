"""One open transaction on the engine's tables: every write of a host or a handler goes through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from callboard import _codec
from callboard._clock import NEVER_NS
from callboard._group_state import Consent, GroupState
from callboard._kinds import check_group_id
from callboard._store.interface import GroupTable, Session
from callboard._task import Enqueued, EnqueueStatus, FinishedTask, NewTask
from callboard.errors import ConfigurationError
from callboard.events import (
    ConsentChanged,
    GroupCreated,
    GroupEvent,
    LeaveRequested,
    MembershipChanged,
    check_inbox_id,
)

if TYPE_CHECKING:
    from callboard._core import Core
    from callboard._engine import Engine


class Transaction:
    """What `Engine.transaction` and `TaskContext.complete` yield, and what group-event hooks get.

    Attributes:
        core: the parts of the engine that it belongs to.
        dirty: whether something was written that the scheduler should look at.
        died: tasks that moved to the dead-task table in it.
    """

    def __init__(self, core: Core, session: Session, *, brief: bool = False) -> None:
        """Be made by the engine.

        Args:
            core: the parts of the engine that it belongs to.
            session: what it writes through.
            brief: whether it ends with the one call that it was opened for.
        """
        self.core = core
        self.session = session
        self._brief = brief
        self.dirty = False
        self.died: list[FinishedTask] = []

    @property
    def engine(self) -> Engine:
        """The engine that the transaction belongs to."""
        return self.core.engine

    @property
    def connection(self) -> Any:
        """The connection underneath, for the caller's own statements in the same transaction.

        It is `sqlite3`'s or psycopg's, or the host's own connection as it was given. For statements that are to
        run on either database there are `rows` and `run`.
        """
        return self.session.connection

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement of the caller's in this transaction and return its rows.

        Args:
            sql: one statement. Its parameters are marked `?` on each database; what else has a `?` or `%` in it
                has to be a parameter.
            params: a value for each mark.

        Raises:
            StoreError: the database refused.
        """
        return self.session.rows(sql, params)

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement of the caller's as `rows` does, and return how many rows it changed."""
        return self.session.run(sql, params)

    def enqueue(
        self,
        message: Message,
        *,
        not_before: timedelta | int | None = None,
        expires_after: timedelta | int | None = None,
        key: str | None = None,
        group_id: bytes | None = None,
        origin: str | None = None,
        allow_unknown: bool = False,
    ) -> Enqueued:
        """Enqueue in this transaction; see `Engine.enqueue`."""
        new = self.core.composer.compose(
            message,
            not_before=not_before,
            expires_after=expires_after,
            key=key,
            group_id=group_id,
            origin=origin,
            allow_unknown=allow_unknown,
        )
        return self.write(new)

    def write(self, new: NewTask) -> Enqueued:
        """Enqueue a row that has been composed."""
        self.dirty = True
        tasks, recurring = self.core.store.tasks, self.core.recurring_kinds
        if self._brief:
            answer = tasks.enqueue(self.session, new, recurring, self.died)
        else:
            [answer] = tasks.accept(self.session, [new], recurring, self.died)
        return self._merged_if_unbegun(answer)

    def enqueue_many(
        self, messages: Iterable[Message], *, origin: str | None = None, allow_unknown: bool = False
    ) -> list[Enqueued]:
        """Enqueue many messages in this transaction; see `Engine.enqueue_many`."""
        compose = self.core.composer.compose
        new = [compose(message, origin=origin, allow_unknown=allow_unknown) for message in messages]
        self.dirty = True
        tasks = self.core.store.tasks
        write = tasks.enqueue_many if self._brief else tasks.accept
        answers = write(self.session, new, self.core.recurring_kinds, self.died)
        return [self._merged_if_unbegun(answer) for answer in answers]

    def _merged_if_unbegun(self, answer: Enqueued) -> Enqueued:
        """Return the answer for a task that is claimed here and has not begun: it need not run again."""
        if answer.status != EnqueueStatus.RERUN or answer.task_id is None:
            return answer
        run = self.core.run_of(answer.task_id)
        if run is None or run.started_ns != 0 or not self.session.after_commit(run.note_request):
            return answer
        return answer._replace(status=EnqueueStatus.MERGED)

    def pull_in(self, msg_or_key: Message | str | bytes, *, not_later_than_ns: int) -> bool:
        """Lower a live task's deadline in this transaction; see `Engine.pull_in`."""
        if isinstance(msg_or_key, Message):
            identities = [_codec.hash_of(_codec.encode(msg_or_key))]
        elif isinstance(msg_or_key, bytes):
            identities = [msg_or_key]
        else:
            identities = [_codec.keyed_identity(kind.name, msg_or_key) for kind, _ in self.core.registry]
        not_later_than_ns = _instant("not_later_than_ns", not_later_than_ns)
        self.dirty = True
        tasks = self.core.store.tasks
        lower = tasks.pull_in if self._brief else tasks.accept_pull_in
        return any([lower(self.session, identity, not_later_than_ns) for identity in identities])

    def group(self, group_id: bytes) -> GroupHandle:
        """Return a handle whose calls belong to this transaction."""
        return GroupHandle(
            check_group_id(group_id),
            self.core.store.groups,
            lambda: nullcontext(self),
            lambda: nullcontext(self.session),
        )


class GroupHandle:
    """One group's rows: tell what happened to the group, and read what is known of it.

    Each call is a write on the calling thread, in its transaction if it has one; none waits for an actor.
    """

    def __init__(
        self,
        group_id: bytes,
        groups: GroupTable,
        transaction: Callable[[], AbstractContextManager[Transaction]],
        reading: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        """Write to `group_id` inside what `transaction` opens, read in `reading`; the engine makes these."""
        self.group_id = group_id
        self._groups = groups
        self._transaction = transaction
        self._reading = reading

    def created(
        self,
        own_inbox_id: str,
        members: Iterable[str] = (),
        super_admins: Iterable[str] = (),
        consent: Consent = "unknown",
    ) -> None:
        """Say that this client, as `own_inbox_id`, created the group or was added to it.

        Saying it again adds what is new and takes nothing away.

        Raises:
            ConfigurationError: an inbox id is empty, or `consent` is no consent.
        """
        check_inbox_id(own_inbox_id)
        who, ranks = _inboxes(members), _inboxes(super_admins)
        _check_consent(consent)
        with self._transaction() as tx:
            now_ns = tx.core.clock.now_ns()
            self._groups.created(tx.session, self.group_id, own_inbox_id, who, ranks, consent, now_ns)
            self._announce(tx, GroupCreated(self.group_id))

    def membership_changed(
        self,
        removed: Iterable[str] = (),
        added: Iterable[str] = (),
        promoted: Iterable[str] = (),
        demoted: Iterable[str] = (),
    ) -> None:
        """Say what a commit changed; the leave requests of removed members are settled by it.

        Raises:
            ConfigurationError: an inbox id is empty.
        """
        event = MembershipChanged(
            self.group_id, _inboxes(removed), _inboxes(added), _inboxes(promoted), _inboxes(demoted)
        )
        with self._transaction() as tx:
            self._groups.membership_changed(
                tx.session,
                self.group_id,
                removed=event.removed,
                added=event.added,
                promoted=event.promoted,
                demoted=event.demoted,
                active_at_ns=tx.core.clock.now_ns(),
            )
            self._announce(tx, event)

    def leave_requested(self, inbox_id: str, message_id: bytes) -> bool:
        """Say that a member asked to be removed; `False`, and nothing changed, when that is known already.

        Raises:
            ConfigurationError: the inbox id is empty.
        """
        check_inbox_id(inbox_id)
        with self._transaction() as tx:
            now_ns = tx.core.clock.now_ns()
            if not self._groups.leave_requested(tx.session, self.group_id, inbox_id, message_id, now_ns):
                return False
            self._announce(tx, LeaveRequested(self.group_id, inbox_id, message_id))
            return True

    def leave_settled(self, inbox_ids: Iterable[str]) -> None:
        """Drop the leave requests of members who are no longer in the group, or who took them back.

        The group's mark goes with the last request that asks for it.
        """
        inboxes = _inboxes(inbox_ids)
        with self._transaction() as tx:
            self._groups.leave_settled(tx.session, self.group_id, inboxes)

    def consent(self, consent: Consent) -> None:
        """Say what the user thinks of the group: `allowed`, `denied` or `unknown`.

        Raises:
            ConfigurationError: `consent` is none of these.
        """
        _check_consent(consent)
        with self._transaction() as tx:
            self._groups.set_consent(tx.session, self.group_id, consent)
            self._announce(tx, ConsentChanged(self.group_id, consent))

    def active(self, at_ns: int | None = None) -> None:
        """Say when the group was last active, in nanoseconds since the epoch; now by default."""
        with self._transaction() as tx:
            at = tx.core.clock.now_ns() if at_ns is None else _instant("at_ns", at_ns)
            self._groups.set_active(tx.session, self.group_id, at)

    def state(self) -> GroupState | None:
        """Return what the rows say, or `None` when the engine knows nothing of the group."""
        with self._reading() as session:
            return self._groups.state(session, self.group_id)

    def _announce(self, tx: Transaction, event: GroupEvent) -> None:
        """Call each plugin's hook; one that raises loses its own writes only, and a reconcile makes up."""
        host = tx.core.plugins
        for hook in host.hooks("callboard_group_event"):
            tx.session.run("SAVEPOINT callboard_hook")
            succeeded, _ = host.call(hook, tx=tx, event=event)
            if not succeeded:
                tx.session.run("ROLLBACK TO callboard_hook")
                reconcile = partial(tx.core.want_reconcile, "hook")
                if not tx.session.after_commit(reconcile):
                    reconcile()
            tx.session.run("RELEASE callboard_hook")


def _inboxes(inbox_ids: Iterable[str]) -> tuple[str, ...]:
    if isinstance(inbox_ids, str):
        raise ConfigurationError(f"give several inbox ids, such as [{inbox_ids!r}], not one string")
    return tuple(check_inbox_id(inbox_id) for inbox_id in inbox_ids)


def _instant(name: str, at_ns: int) -> int:
    if isinstance(at_ns, bool) or not isinstance(at_ns, int):
        raise ConfigurationError(f"{name} is an int of nanoseconds since the epoch, not {at_ns!r}")
    return min(max(at_ns, 0), NEVER_NS)


def _check_consent(consent: str) -> None:
    if consent not in ("allowed", "denied", "unknown"):
        raise ConfigurationError(f"consent must be 'allowed', 'denied' or 'unknown', not {consent!r}")
