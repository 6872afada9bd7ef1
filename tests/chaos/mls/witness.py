"""Who was in a group at each epoch, as a member sees it who applies one commit at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path

from callboard_rine import Device, LocalNetwork
from callboard_rine.delivery import DeliveryService, LogEntry


class _OneByOne(DeliveryService):
    """Hands out a group's log up to the next commit only."""

    def read(self, group_id: bytes, after_seq: int = 0) -> list[LogEntry]:
        entries = super().read(group_id, after_seq)
        commits = [position for position, entry in enumerate(entries) if entry.epoch is not None]
        return entries[: commits[0] + 1] if commits else entries


def memberships(
    store: Path, network_path: Path, group_ids: Collection[bytes]
) -> dict[bytes, list[frozenset[bytes]]]:
    """Return for each group the installations in it after each commit since this member joined."""
    found: dict[bytes, list[frozenset[bytes]]] = {}
    with LocalNetwork(network_path) as network:
        network.delivery = _OneByOne(network._call, network.faults)
        with Device(store, network) as device:
            for group_id in group_ids:
                epochs: dict[int, frozenset[bytes]] = {}
                while True:
                    with device.group(group_id) as group:
                        if group.mls.epoch() in epochs:
                            break
                        epochs[group.mls.epoch()] = group.installation_ids()
                found[group_id] = [epochs[epoch] for epoch in sorted(epochs)]
    return found


def violations(
    group: str,
    history: list[frozenset[bytes]],
    owners: Mapping[bytes, str],
    left: Collection[str],
    expected: frozenset[bytes],
) -> list[str]:
    """Return what must not have happened to a group.

    Args:
        group: Its name.
        history: Its installations after each commit.
        owners: Each installation's name.
        left: The inboxes that asked to leave.
        expected: The installations that should be left.
    """
    found = []
    gone: set[bytes] = set()
    for number, (before, after) in enumerate(pairwise(history)):
        if before == after:
            found.append(f"{group}: commit {number} changed nothing, so it was made twice or for nothing")
        for installation in after & gone:
            found.append(f"{group}: {owners[installation]} was evicted, and is back after commit {number}")
        for installation in before - after:
            inbox_id = owners[installation].partition("-")[0]
            if inbox_id not in left:
                found.append(f"{group}: {owners[installation]} was evicted by commit {number}, but never asked")
        gone = (gone | (before - after)) - after
    for installation in history[-1] ^ expected:
        what = "is still in it" if installation in history[-1] else "is not in it"
        found.append(f"{group}: {owners[installation]} {what} in the end")
    return found
