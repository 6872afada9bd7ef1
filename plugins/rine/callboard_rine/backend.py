"""The `callboard_mls` backend on rine-mls: what handlers ask for, said in terms of a device."""

from collections.abc import Collection, Mapping

from callboard_mls.backend import Backend, DirectoryBehindError, KeyPackageStatus

from . import membership
from .device import Device


class RineBackend(Backend):
    """A device, as the MLS task kinds see it. Any thread may call it.

    Give it to the engine as `services={Backend: RineBackend(device)}`. Each method raises what
    `callboard_mls.backend.Backend` says.

    Attributes:
        device: The installation that it works for.
    """

    def __init__(self, device: Device) -> None:
        """Work for `device`, which stays the caller's to close."""
        self.device = device

    def own_inbox_id(self) -> str:
        """Return the device's inbox."""
        return self.device.credentials.inbox_id

    def own_installation_id(self) -> bytes:
        """Return the device's Ed25519 public key."""
        return self.device.installation_id

    def members(self, group_id: bytes) -> Mapping[str, frozenset[bytes]]:
        """Return the members as of the last published commit."""
        with self.device.group(group_id) as group:
            return membership.members(self.device, group)

    def super_admins(self, group_id: bytes) -> frozenset[str]:
        """Return the members that the directory lists as super-admins."""
        super_admins = self.device.network.directory.super_admins(group_id)
        return super_admins & self.members(group_id).keys()

    def remove_members(self, group_id: bytes, inbox_ids: Collection[str]) -> frozenset[str]:
        """Evict inboxes in one publication."""
        if self.own_inbox_id() in inbox_ids:
            raise ValueError("nobody can commit their own removal: leave the own inbox out")
        with self.device.group(group_id) as group:
            repaired = group.repaired.removed.intersection(inbox_ids) if group.repaired else frozenset()
            return repaired | membership.evict(self.device, group, inbox_ids)

    def add_missing_installations(self, group_id: bytes) -> frozenset[bytes]:
        """Add what the directory lists for the members and the group lacks, in one commit."""
        with self.device.group(group_id) as group:
            repaired = group.repaired.added if group.repaired else frozenset()
            inbox_ids = membership.members(self.device, group).keys()
            try:
                return repaired | membership.add_installations(self.device, group, inbox_ids)
            except DirectoryBehindError as error:
                error.added |= repaired
                raise

    def key_package_status(self) -> KeyPackageStatus:
        """Fetch and judge what the directory hands out for the device."""
        return self.device.keys.status()

    def next_rotation_ns(self) -> int:
        """Return when the key package published last gets too old."""
        return self.device.keys.next_rotation_ns()

    def rotate_key_package(self) -> int:
        """Publish a new key package and keep the old one's private part for the grace period."""
        return self.device.keys.rotate()

    def delete_superseded_key_packages(self) -> int | None:
        """Delete private parts whose grace period is over."""
        return self.device.keys.delete_superseded()
