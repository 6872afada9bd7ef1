"""Keep this installation's key package usable by others: watch it, rotate it, delete what it superseded.

Three recurring singletons. Liveness asks the network, because a local column cannot know of a key package
that the directory lost; it pulls in the rotation. The rotation asks again, because a deadline does not say
why it came. Each reschedules to the deadline that is live then.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message
from loguru import logger

from callboard import Engine, RescheduleAt, TaskContext, TaskKind, hookimpl
from callboard.wire import KpDeletion, KpLiveness, KpRotation
from callboard_mls.backend import Backend, KeyPackageStatus
from callboard_mls.handling import backend_of

CHECK_INTERVAL = timedelta(hours=6)
"""How often the network is asked; as often as the engine reconciles (design, rule 19)."""

EXPIRY_MARGIN = timedelta(days=7)
"""A key package that ends within this is replaced: time for 28 checks, so that an outage costs nothing."""

OVERDUE_WAIT = timedelta(minutes=1)
"""The wait when a backend's next deadline has passed already (its clock differs), so that nothing spins."""

_NS_PER_DAY = 86_400 * 10**9


def check_key_package(engine: Engine, backend: Backend) -> bool:
    """Ask the network for this installation's key package; if others cannot use it, pull in the rotation.

    Returns:
        Whether it is published, valid and not about to expire.

    Raises:
        callboard.ServiceUnavailable: The network is away, which says nothing about the key package.
    """
    problem = _problem(backend.key_package_status(), engine.clock.now_ns())
    if problem is not None:
        logger.warning("this installation's key package needs replacing: {}", problem)
        _run_now(engine, KpRotation())
    return problem is None


def rotate_key_package(engine: Engine, backend: Backend) -> int:
    """Replace the key package if it is due by age or of no use to others; have the deletion look at the old one.

    Returns:
        When the next rotation is due, ns since the epoch.

    Raises:
        callboard.ServiceUnavailable: The network is away; the old key package stays.
    """
    now_ns = engine.clock.now_ns()
    due_ns = backend.next_rotation_ns()
    if due_ns <= now_ns or _problem(backend.key_package_status(), now_ns) is not None:
        due_ns = backend.rotate_key_package()
    # Whether or not this run rotated: an earlier one may have, and crashed before it came here.
    _run_now(engine, KpDeletion())
    return due_ns


def delete_superseded_key_packages(backend: Backend) -> int | None:
    """Delete the private parts of key packages superseded longer ago than the backend's grace period.

    Returns:
        When the next one's grace period ends, ns since the epoch; None if none is waiting.
    """
    return backend.delete_superseded_key_packages()


def _liveness(message: KpLiveness, ctx: TaskContext) -> RescheduleAt:
    check_key_package(ctx.engine, backend_of(ctx))
    return RescheduleAt(CHECK_INTERVAL)


def _rotation(message: KpRotation, ctx: TaskContext) -> RescheduleAt:
    return _reschedule(rotate_key_package(ctx.engine, backend_of(ctx)), ctx)


def _deletion(message: KpDeletion, ctx: TaskContext) -> RescheduleAt:
    due_ns = delete_superseded_key_packages(backend_of(ctx))
    return RescheduleAt(CHECK_INTERVAL) if due_ns is None else _reschedule(due_ns, ctx)


@hookimpl
def callboard_task_kinds() -> Iterable[TaskKind[Any]]:
    """Bring `kp_liveness`, `kp_rotation` and `kp_deletion`."""
    return [
        TaskKind(KpLiveness, _liveness, recurring=True, requires=(Backend,)),
        TaskKind(KpRotation, _rotation, recurring=True, requires=(Backend,)),
        TaskKind(KpDeletion, _deletion, recurring=True, requires=(Backend,)),
    ]


@hookimpl
def callboard_startup(engine: Engine) -> None:
    """Ensure the three tasks; live ones keep their deadlines."""
    engine.enqueue_many([KpLiveness(), KpRotation(), KpDeletion()])


@hookimpl
def callboard_reconcile(engine: Engine) -> None:
    """Ensure the three tasks again."""
    callboard_startup(engine)


def _problem(status: KeyPackageStatus, now_ns: int) -> str | None:
    if not status.published:
        return "none is published"
    margin_ns = EXPIRY_MARGIN.days * _NS_PER_DAY
    if status.usable and status.not_after_ns is not None and status.not_after_ns - now_ns <= margin_ns:
        return "it is about to expire"
    return status.problem


def _run_now(engine: Engine, singleton: Message) -> None:
    """Pull in a singleton's deadline to now; one that is gone, because somebody cancelled it, is made again."""
    with engine.transaction() as tx:
        if not tx.pull_in(singleton, not_later_than_ns=engine.clock.now_ns()):
            tx.enqueue(singleton)


def _reschedule(due_ns: int, ctx: TaskContext) -> RescheduleAt:
    return RescheduleAt(due_ns if due_ns > ctx.clock.now_ns() else OVERDUE_WAIT)
