"""What the engine knows of one group, as a value that handlers and hosts read."""

from __future__ import annotations

from typing import Literal, NamedTuple

Consent = Literal["allowed", "denied", "unknown"]


class PendingRemove(NamedTuple):
    """A member who asked to be removed and whose removal has not been seen yet."""

    inbox_id: str
    message_id: bytes
    requested_at_ns: int


class GroupState(NamedTuple):
    """One group's rows. Times are nanoseconds since the epoch, UTC.

    Attributes:
        version: grows with each change of the group's rows.
        own_inbox_id: the inbox of this client in the group; `None` until the host told.
        is_leaving: whether this client itself asked to be removed.
        has_pending_leave_request: whether it is for this client to evict somebody: a request of somebody
            else is pending, and this client is a super-admin who is not leaving.
        active_at_ns: when the group was last active; 0 when the host never told.
    """

    group_id: bytes
    version: int
    own_inbox_id: str | None
    consent: str
    active_at_ns: int
    is_leaving: bool
    has_pending_leave_request: bool
    members: frozenset[str]
    super_admins: frozenset[str]
    pending_removes: tuple[PendingRemove, ...]

    @property
    def is_super_admin(self) -> bool:
        """Whether this client is a super-admin of the group."""
        return self.own_inbox_id in self.super_admins
