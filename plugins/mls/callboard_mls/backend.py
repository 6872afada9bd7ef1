"""What the MLS task kinds need from an MLS stack, and nothing more.

The handlers hold policy (who may evict, when a key package is too old); a backend holds keys, group state
and the way to the network. This protocol is the line between them, so that a host can put its own MLS
stack under the same tasks. A backend is called from many threads at once, never twice at once for one
group by the same engine.

Group ids and installation ids are bytes, inbox ids are strings. Every method may raise
`callboard.ServiceUnavailable` where it says that it asks the network; the engine then backs off without
counting the attempt.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from callboard import CallboardError


class GroupNotFoundError(CallboardError):
    """This installation has no such group, or is no longer a member of it: there is nothing left to do."""


class MalformedGroupIdError(CallboardError):
    """The bytes cannot be the id of a group in this backend: trying again cannot help."""


class EpochRejectedError(CallboardError):
    """Somebody else's commit took the epoch first; the own one was rolled back. Retryable."""


class DirectoryBehindError(CallboardError):
    """The identity or key-package directory does not show yet what it is known to have. Retryable.

    Attributes:
        added: Installations that were committed before this was raised, so that they can be counted.
    """

    def __init__(self, message: str, *, added: frozenset[bytes] = frozenset()) -> None:
        """Say what is missing, and what was added all the same."""
        super().__init__(message)
        self.added = added


@dataclass(frozen=True, slots=True)
class KeyPackageStatus:
    """What the network hands out as this installation's key package, judged at the time of asking.

    Attributes:
        published: The network has a key package of this installation.
        problem: Why nobody could use it to reach this installation (unreadable, badly signed, somebody
            else's, expired, private part gone); None if it is usable now.
        not_after_ns: When its lifetime ends, ns since the epoch; None if unpublished or unreadable.
    """

    published: bool
    problem: str | None
    not_after_ns: int | None

    @property
    def usable(self) -> bool:
        """True if others can add this installation with what is published now."""
        return self.published and self.problem is None


class Backend(Protocol):
    """An MLS stack of one installation, as the handlers of `callboard_mls` see it."""

    def own_inbox_id(self) -> str:
        """Return the inbox that this installation belongs to. Asks nobody."""
        ...

    def own_installation_id(self) -> bytes:
        """Return this installation's id. Asks nobody."""
        ...

    def members(self, group_id: bytes) -> Mapping[str, frozenset[bytes]]:
        """Return the group's members: inbox id to the installations of it that are in the group.

        Repairs an interrupted commit and applies what others have committed first, so the answer is the
        network's state as of now.

        Raises:
            GroupNotFoundError: This installation is not, or no longer, in the group.
            MalformedGroupIdError: The id cannot be a group's.
            DirectoryBehindError: The directory cannot say yet whose one of the installations is.
            ServiceUnavailable: The network is away.
        """
        ...

    def super_admins(self, group_id: bytes) -> frozenset[str]:
        """Return the inboxes that are members and may remove others.

        Raises:
            GroupNotFoundError: This installation is not, or no longer, in the group.
            MalformedGroupIdError: The id cannot be a group's.
            DirectoryBehindError: The directory cannot say yet whose one of the installations is.
            ServiceUnavailable: The network is away.
        """
        ...

    def remove_members(self, group_id: bytes, inbox_ids: Collection[str]) -> frozenset[str]:
        """Evict all installations of these inboxes, all or none, and publish that crash-safely.

        Safe to call again after a crash or an error at any point: an eviction that an earlier call began is
        finished, never published a second time. Inboxes that are not in the group are passed over.

        Returns:
            The inboxes that this call removed, or whose interrupted removal it finished; empty if all were
            gone already.

        Raises:
            ValueError: The own inbox is among them; MLS lets nobody commit their own removal.
            GroupNotFoundError: This installation is not, or no longer, in the group.
            MalformedGroupIdError: The id cannot be a group's.
            EpochRejectedError: Another commit won; nothing was removed.
            DirectoryBehindError: The directory cannot say yet whose one of the installations is.
            ServiceUnavailable: The network is away; whether the commit arrived is found out by the next call.
        """
        ...

    def add_missing_installations(self, group_id: bytes) -> frozenset[bytes]:
        """Add the members' installations that the identity directory lists and the group lacks.

        One commit for all of them, as crash-safe as `remove_members`. One installation that cannot be added
        yet does not hold up the others: what can be added is committed, then `DirectoryBehindError` says
        what is left.

        Returns:
            The installations that this call added, or whose interrupted addition it finished.

        Raises:
            GroupNotFoundError: This installation is not, or no longer, in the group.
            MalformedGroupIdError: The id cannot be a group's.
            EpochRejectedError: Another commit won; nothing was added.
            DirectoryBehindError: The directory is known to lag, or has no usable key package for an
                installation; its `added` holds those that were added.
            ServiceUnavailable: The network is away; whether the commit arrived is found out by the next call.
        """
        ...

    def key_package_status(self) -> KeyPackageStatus:
        """Fetch this installation's key package as others would, and judge it.

        Raises:
            ServiceUnavailable: The network is away, which says nothing about the key package.
        """
        ...

    def next_rotation_ns(self) -> int:
        """Return when the key package is to be replaced by its age alone, ns since the epoch.

        A time in the past, or 0 if none was ever published, means now. Asks nobody, so it does not know of
        a key package that the network lost: ask `key_package_status` for that.
        """
        ...

    def rotate_key_package(self) -> int:
        """Generate and publish a new key package, whether it is due or not.

        The private part of the superseded one is kept for a grace period, because Welcomes that were made
        with it may be on their way. A crash half-way leaves `next_rotation_ns` as it was, so the next
        attempt rotates again.

        Returns:
            When the next rotation is due, ns since the epoch.

        Raises:
            ServiceUnavailable: The network is away; the old key package stays.
        """
        ...

    def delete_superseded_key_packages(self) -> int | None:
        """Delete the private parts of key packages superseded longer ago than the grace period.

        Asks nobody. Deleting what is gone already is success.

        Returns:
            When the next one's grace period ends, ns since the epoch; None if none is waiting.
        """
        ...
