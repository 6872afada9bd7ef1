"""Evict the members who asked to leave a group, and forget the requests that are settled.

MLS lets nobody commit their own removal, so a member who wants to go asks, and a super-admin's client has to
do it. The request is a row that the engine writes; the task is what makes sure that somebody acts on it.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from callboard import (
    Engine,
    GroupEvent,
    LeaveRequested,
    MembershipChanged,
    TaskContext,
    TaskKind,
    Transaction,
    hookimpl,
)
from callboard.wire import ProcessPendingSelfRemove
from callboard_mls.backend import Backend
from callboard_mls.handling import backend_of, ends_with_its_group


def process_pending_self_removals(
    engine: Engine,
    backend: Backend,
    group_id: bytes,
    *,
    commit: Callable[[], AbstractContextManager[Transaction]] | None = None,
) -> frozenset[str]:
    """Remove the pending members that are still in the group, then clean up.

    Removing is for super-admins and leaves out one's own pending request. Cleaning up is for everybody: it
    drops the requests of members who are no longer in the group, and the group's mark with the last of them.
    Call it as often as you like, from inside no transaction: it asks the network.

    Args:
        engine: Where the requests are.
        backend: The MLS stack to remove with.
        group_id: The group.
        commit: Opens the transaction that cleans up; by default `engine.transaction`. The task's handler
            gives `ctx.complete`, so that the task ends with it.

    Returns:
        The inboxes whose requests are settled: they are out of the group, whoever removed them.

    Raises:
        GroupNotFoundError: This installation is not, or no longer, in the group.
        MalformedGroupIdError: The id cannot be a group's.
        EpochRejectedError: Another commit won; call again.
        DirectoryBehindError: The directory cannot say yet who is in the group; call again.
        callboard.ServiceUnavailable: The network is away; call again.
    """
    state = engine.group(group_id).state()
    requests = () if state is None else state.pending_removes
    staying = set(backend.members(group_id))
    own_inbox_id = backend.own_inbox_id()
    leaving = {request.inbox_id for request in requests if request.inbox_id != own_inbox_id} & staying
    if leaving and own_inbox_id in backend.super_admins(group_id):
        backend.remove_members(group_id, sorted(leaving))
        staying -= leaving
    with (engine.transaction if commit is None else commit)() as tx:
        group = tx.group(group_id)
        current = group.state()
        # Only requests that are still the ones seen above: who was added again meanwhile, and asks again, is
        # another case.
        unchanged = () if current is None else set(requests).intersection(current.pending_removes)
        settled = frozenset(request.inbox_id for request in unchanged if request.inbox_id not in staying)
        if settled:
            group.membership_changed(removed=sorted(settled))
        else:
            group.leave_settled(())  # a mark that nothing asks for goes, too
    return settled


@ends_with_its_group
def _handle(message: ProcessPendingSelfRemove, ctx: TaskContext) -> None:
    settled = process_pending_self_removals(ctx.engine, backend_of(ctx), message.group_id, commit=ctx.complete)
    ctx.logger.debug("settled {} leave requests", len(settled))


@hookimpl
def callboard_task_kinds() -> Iterable[TaskKind[ProcessPendingSelfRemove]]:
    """Bring `process_pending_self_remove`."""
    return [
        TaskKind(ProcessPendingSelfRemove, _handle, group_id=lambda message: message.group_id, requires=(Backend,))
    ]


@hookimpl
def callboard_group_event(tx: Transaction, event: GroupEvent) -> None:
    """Ensure the task for each leave request, and for a promotion that makes a pending one ours to act on.

    One's own request gets a task as well: it cleans up what others settled.
    """
    asked = isinstance(event, LeaveRequested)
    if asked or (isinstance(event, MembershipChanged) and _may_now_evict(tx, event)):
        tx.enqueue(ProcessPendingSelfRemove(group_id=event.group_id))


@hookimpl
def callboard_reconcile(engine: Engine) -> None:
    """Ensure the task of every group that is marked or has pending requests."""
    engine.enqueue_many(
        [ProcessPendingSelfRemove(group_id=state.group_id) for state in engine.groups(pending=True)]
    )


def _may_now_evict(tx: Transaction, event: MembershipChanged) -> bool:
    state = tx.group(event.group_id).state()
    if state is None or state.own_inbox_id not in event.promoted:
        return False
    return any(request.inbox_id != state.own_inbox_id for request in state.pending_removes)
