"""Is a group whole? Its members at one epoch and reading each other, and nobody else reading them."""

from collections.abc import Sequence

from ..device import Device
from ..mailbox import Message


def is_converged(group_id: bytes, members: Sequence[Device]) -> bool:
    """Tell whether these are all the group's members, at one epoch, and each reads what each other sends."""
    everybody = {device.installation_id for device in members}
    epochs = set()
    for device in members:
        device.receive(group_id, lambda message: None)
        with device.group(group_id) as group:
            if group.installation_ids() != everybody:
                return False
            epochs.add(group.mls.epoch())
    sent = {device.installation_id: device.send(group_id, b"can you read this?") for device in members}
    return len(epochs) == 1 and all(
        _received(group_id, device) == set(sent.values()) - {sent[device.installation_id]} for device in members
    )


def keeps_out(group_id: bytes, sender: Device, evicted: Sequence[Device]) -> bool:
    """Tell whether the evicted, who have not even heard that they are, cannot read what is sent now."""
    delivery = sender.network.delivery
    seen = delivery.read(group_id)[-1].seq
    sender.send(group_id, b"not for those who left")
    return not any(
        device.can_read(group_id, entry.payload)
        for entry in delivery.read(group_id, after_seq=seen)
        for device in evicted
    )


def _received(group_id: bytes, device: Device) -> set[bytes]:
    messages: list[Message] = []
    device.receive(group_id, messages.append)
    return {message.message_id for message in messages}
