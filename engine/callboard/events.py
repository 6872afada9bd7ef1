"""What happens in the world: events that a host publishes, and events of a group that plugins see."""

from __future__ import annotations

from dataclasses import dataclass

from callboard.errors import ConfigurationError

__all__ = [
    "ConsentChanged",
    "Event",
    "GroupCreated",
    "GroupEvent",
    "InstallationAdded",
    "LeaveRequested",
    "MembershipChanged",
]

Event = object
"""Anything may be published; plugins react to the types they know."""


def check_inbox_id(inbox_id: str) -> str:
    """Return `inbox_id` if it can name an inbox.

    Raises:
        ConfigurationError: it is not a string, or is empty.
    """
    if not isinstance(inbox_id, str) or not inbox_id:
        raise ConfigurationError(f"inbox_id must be a non-empty string, not {inbox_id!r}")
    return inbox_id


@dataclass(frozen=True, slots=True)
class InstallationAdded:
    """An inbox has a new installation (a device). Publish it with `Engine.publish`.

    Raises:
        ConfigurationError: the inbox id is empty.
    """

    inbox_id: str
    installation_id: bytes

    def __post_init__(self) -> None:
        """Refuse an empty inbox id."""
        check_inbox_id(self.inbox_id)


@dataclass(frozen=True, slots=True)
class GroupCreated:
    """This client learnt of a group: created it, or was added to it."""

    group_id: bytes


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """A commit changed who is in the group or who is a super-admin of it."""

    group_id: bytes
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    promoted: tuple[str, ...] = ()
    demoted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """A member asked to be removed from the group."""

    group_id: bytes
    inbox_id: str
    message_id: bytes


@dataclass(frozen=True, slots=True)
class ConsentChanged:
    """The user allowed or denied the group, or took that back."""

    group_id: bytes
    consent: str


GroupEvent = GroupCreated | MembershipChanged | LeaveRequested | ConsentChanged
