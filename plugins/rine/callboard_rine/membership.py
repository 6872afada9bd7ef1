"""Change who is in a group: inboxes and directory on one side, leaves and commits on the other."""

from collections.abc import Collection

from callboard_mls.backend import DirectoryBehindError

from .device import Device, OpenGroup
from .keypackages import KeyPackageError, read_key_package


def members(device: Device, group: OpenGroup) -> dict[str, frozenset[bytes]]:
    """Return the members of a held group: inbox to its installations in the group.

    Raises:
        DirectoryBehindError: The directory does not know whose one of the installations is.
        ServiceUnavailable: The network is away.
    """
    installation_ids = group.installation_ids()
    inboxes = device.network.directory.inboxes_of(installation_ids)
    unknown = len(installation_ids) - len(inboxes)
    if unknown:
        raise DirectoryBehindError(f"the directory does not know whose {unknown} of the installations are")
    return {
        inbox_id: frozenset(i for i in installation_ids if inboxes[i] == inbox_id)
        for inbox_id in set(inboxes.values())
    }


def evict(device: Device, group: OpenGroup, inbox_ids: Collection[str]) -> frozenset[str]:
    """Remove all installations of these inboxes from a held group, and return the inboxes that were in it.

    Raises:
        EpochRejectedError: Another commit won.
        DirectoryBehindError: The directory does not know whose one of the installations is.
        ServiceUnavailable: The network is away.
    """
    present = members(device, group)
    leaving = frozenset(inbox_id for inbox_id in inbox_ids if inbox_id in present)
    bundles = [
        group.mls.remove_member(group.mls.member_index(installation_id))
        for inbox_id in sorted(leaving)
        for installation_id in sorted(present[inbox_id])
    ]
    if bundles:
        device.commit(group, bundles, removed=leaving)
    return leaving


def add_installations(device: Device, group: OpenGroup, inbox_ids: Collection[str]) -> frozenset[bytes]:
    """Add what a held group lacks of these inboxes' installations, in one commit, and return what was added.

    Raises:
        EpochRejectedError: Another commit won.
        DirectoryBehindError: The directory lags, or has no usable key package for one; the others were added.
        ServiceUnavailable: The network is away.
    """
    directory = device.network.directory
    present = group.installation_ids()
    key_packages: dict[bytes, bytes] = {}
    left_out: list[str] = []
    for inbox_id in sorted(inbox_ids):
        lookup = directory.look_up(inbox_id)
        if not lookup.caught_up:
            left_out.append(f"the directory has not caught up with {inbox_id}")
        for installation_id in sorted(lookup.installation_ids - present):
            key_package = directory.key_package(installation_id)
            problem = _problem(key_package, installation_id, device.keys.clock())
            if key_package is None or problem is not None:
                left_out.append(f"key package of an installation of {inbox_id}: {problem}")
            else:
                key_packages[installation_id] = key_package
    if key_packages:
        bundle = group.mls.add_members(list(key_packages.values()))
        device.commit(group, [bundle], added=list(key_packages))
    added = frozenset(key_packages)
    if left_out:
        raise DirectoryBehindError("; ".join(left_out), added=added)
    return added


def _problem(key_package: bytes | None, owner: bytes, now_ns: int) -> str | None:
    if key_package is None:
        return "none is published"
    try:
        return read_key_package(key_package).problem(owner, now_ns)
    except KeyPackageError as error:
        return str(error)


def create_group(device: Device, group_id: bytes, inbox_ids: Collection[str]) -> None:
    """Found a group with all installations of these inboxes, or finish founding it.

    Raises:
        MalformedGroupIdError: The id is empty or too long.
        EpochRejectedError: Another commit won; call again.
        DirectoryBehindError: Some could not be added; call again, or leave it to `add_missing_installations`.
        ServiceUnavailable: The network is away; call again.
    """
    device.create_group(group_id)
    with device.group(group_id) as group:
        add_installations(device, group, {*inbox_ids, device.credentials.inbox_id})
