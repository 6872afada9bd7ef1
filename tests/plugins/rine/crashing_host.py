"""A host as small as one can be; as a process of its own, one that dies at the crash point in its environment."""

import sys

from callboard import Engine, InstallationAdded
from callboard.testing import crash_point
from callboard_mls.backend import Backend
from callboard_rine import Device, LocalNetwork, Message, RineBackend

PLUGINS = ("process_pending_self_remove", "add_missing_installations", "kp_liveness", "pull_in_deadline")


def receive(engine: Engine, device: Device, group_id: bytes) -> int:
    """Take what has come for a group, as a host's message processing does; return how many messages it was."""

    def handle(message: Message) -> None:
        if message.is_leave_request:
            inbox_id = device.network.directory.inboxes_of([message.sender])[message.sender]
            engine.group(group_id).leave_requested(inbox_id, message.message_id)

    return device.receive(group_id, handle)


def main(store: str, network: str, database: str, group: str, new_inbox_id: str, new_installation: str) -> None:
    """Run the engine until nothing is due; die on the way if so armed."""
    device = Device(store, LocalNetwork(network), crash_point=crash_point)
    with Engine(database, services={Backend: RineBackend(device)}, plugins=PLUGINS) as engine:
        receive(engine, device, group.encode())
        if new_installation:
            engine.publish(InstallationAdded(new_inbox_id, bytes.fromhex(new_installation)))
        engine.wait_idle(timeout=30)


if __name__ == "__main__":
    main(*sys.argv[1:])
