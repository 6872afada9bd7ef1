"""Add the installations that a membership change missed.

A member is an inbox with any number of devices. One that appears after the member was added, or that the
directory did not show yet, is in none of the inbox's groups until somebody's client adds it.
"""

from collections.abc import Iterable
from datetime import timedelta

from loguru import logger

from callboard import (
    Engine,
    EnqueueStatus,
    GroupCreated,
    GroupEvent,
    GroupState,
    InstallationAdded,
    TaskContext,
    TaskKind,
    Transaction,
    hookimpl,
)
from callboard.wire import AddMissingInstallations
from callboard_mls.backend import Backend
from callboard_mls.handling import backend_of, ends_with_its_group

ACTIVE_WITHIN = timedelta(days=90)
"""A group that was quiet for longer waits until it is active again (design, section 4)."""

_NS_PER_DAY = 86_400 * 10**9


def add_missing_installations(backend: Backend, group_id: bytes) -> frozenset[bytes]:
    """Compare the members' installations with the identity directory, and commit those that are missing.

    Call it as often as you like, from inside no transaction: it asks the network.

    Returns:
        The installations that were added.

    Raises:
        GroupNotFoundError: This installation is not, or no longer, in the group.
        MalformedGroupIdError: The id cannot be a group's.
        EpochRejectedError: Another commit won; call again.
        DirectoryBehindError: The directory has not caught up; what could be added was. Call again.
        callboard.ServiceUnavailable: The network is away; call again.
    """
    return backend.add_missing_installations(group_id)


def schedule_missing_installations(engine: Engine, inbox_id: str) -> int:
    """Ensure a task for each eligible group of an inbox that has a new installation, in one transaction.

    Eligible is a group that the inbox is a member of, that was active within 90 days, and that the user
    allowed or has not judged.

    Returns:
        How many tasks that scheduled; a group whose task was waiting already is not counted.
    """
    return _ensure(engine, _eligible(engine, member=inbox_id))


@ends_with_its_group
def _handle(message: AddMissingInstallations, ctx: TaskContext) -> None:
    added = add_missing_installations(backend_of(ctx), message.group_id)
    ctx.logger.debug("added {} installations", len(added))


@hookimpl
def callboard_task_kinds() -> Iterable[TaskKind[AddMissingInstallations]]:
    """Bring `add_missing_installations`."""
    return [
        TaskKind(AddMissingInstallations, _handle, group_id=lambda message: message.group_id, requires=(Backend,))
    ]


@hookimpl
def callboard_group_event(tx: Transaction, event: GroupEvent) -> None:
    """Ensure the task with the group, so that a crash between creating the group and adding to it heals."""
    if isinstance(event, GroupCreated):
        tx.enqueue(AddMissingInstallations(group_id=event.group_id))


@hookimpl
def callboard_event(engine: Engine, event: object) -> None:
    """Ensure the tasks for a new installation."""
    if isinstance(event, InstallationAdded):
        scheduled = schedule_missing_installations(engine, event.inbox_id)
        logger.info("a new installation: adding it to groups, {} tasks scheduled", scheduled)


@hookimpl
def callboard_reconcile(engine: Engine) -> None:
    """Ensure the task of every group that a lost announcement may have been about."""
    _ensure(engine, _eligible(engine))


def _eligible(engine: Engine, member: str | None = None) -> Iterable[GroupState]:
    since_ns = engine.clock.now_ns() - ACTIVE_WITHIN.days * _NS_PER_DAY
    return engine.groups(member=member, consent=("allowed", "unknown"), active_since_ns=since_ns)


def _ensure(engine: Engine, groups: Iterable[GroupState]) -> int:
    answers = engine.enqueue_many([AddMissingInstallations(group_id=state.group_id) for state in groups])
    return sum(answer.status != EnqueueStatus.MERGED for answer in answers)
