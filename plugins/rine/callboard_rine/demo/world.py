"""The people of the demo, their installations and their groups: real MLS clients on a local network."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from ..aging import expired_copy
from ..device import Device
from ..membership import create_group
from ..network import LocalNetwork

ADA, ADA_PHONE = "ada", "ada-phone"
BEN, BEN_PHONE, BEN_LAPTOP = "ben", "ben-phone", "ben-laptop"
CLEO, CLEO_PHONE, CLEO_LAPTOP = "cleo", "cleo-phone", "cleo-laptop"
DAN, DAN_PHONE = "dan", "dan-phone"

CLIMBING, BOOK_CLUB, FAMILY = b"climbing", b"book club", b"family"
GROUPS = {
    CLIMBING: (ADA, BEN, CLEO, DAN),
    BOOK_CLUB: (ADA, BEN, CLEO),
    FAMILY: (ADA, CLEO),
}
"""The groups and, by inbox, who is in them at first; Ada founds each and is its only super-admin."""

PLUGINS = ("process_pending_self_remove", "add_missing_installations", "kp_liveness", "pull_in_deadline")
"""The entry points of callboard-mls: Ada's engine loads these, whatever else is installed."""

_INSTALLATIONS = (ADA_PHONE, BEN_PHONE, BEN_LAPTOP, CLEO_PHONE, DAN_PHONE)
_DAY_S = 86_400


def network_path(folder: Path) -> Path:
    """Return where the network is kept."""
    return folder / "network.db"


def database_path(folder: Path) -> Path:
    """Return where Ada's engine keeps its tasks."""
    return folder / "callboard.db"


def database_url(folder: Path) -> str:
    """Return the same, as the engine takes it."""
    return f"sqlite:///{database_path(folder)}"


class World:
    """Everybody's installations, by name; the inbox is what comes before the dash.

    Attributes:
        network: The network that they are on.
        devices: Those that are open in this process.
    """

    def __init__(self, folder: Path) -> None:
        """Keep all of it in `folder`, which is empty."""
        self._folder = folder
        self.network = LocalNetwork(network_path(folder))
        self.devices: dict[str, Device] = {}

    def __enter__(self) -> Self:
        """Return the world, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what is open."""
        for device in self.devices.values():
            device.close()
        self.network.close()

    def begin(self) -> None:
        """Found the groups with everybody in them."""
        for name in _INSTALLATIONS:
            self.open(name).enroll()
        for group_id, inbox_ids in GROUPS.items():
            create_group(self.devices[ADA_PHONE], group_id, inbox_ids)
        for device in self.devices.values():
            device.join_groups()

    def open(self, name: str) -> Device:
        """Open an installation, or make it."""
        inbox_id, _, _ = name.partition("-")
        self.devices[name] = Device(self._folder / name, self.network, inbox_id=inbox_id)
        return self.devices[name]

    def close(self, name: str) -> None:
        """Close an installation, so that another process can open it."""
        self.devices.pop(name).close()

    def expire_key_package(self, name: str) -> bytes:
        """Put a key package that ran out yesterday into the directory for an installation, and return it."""
        device = self.devices[name]
        fresh = self.network.directory.key_package(device.installation_id)
        if fresh is None:
            raise LookupError(f"{name} has not enrolled")
        expired = expired_copy(fresh, device.credentials.signing_seed, int(time.time()) - _DAY_S)
        self.network.directory.publish_key_package(device.installation_id, expired)
        return expired

    def installations_of(self, *inbox_ids: str) -> list[Device]:
        """Return the open installations of these inboxes."""
        return [device for device in self.devices.values() if device.credentials.inbox_id in inbox_ids]

    def commits(self, group_id: bytes) -> int:
        """Return how many commits a group has seen."""
        return sum(entry.epoch is not None for entry in self.network.delivery.read(group_id))
