"""Work on a group as a process that is killed at a crash point; run by test_rine_crash.py."""

import os
import signal
import sys

from callboard_rine import Device, LocalNetwork, RineBackend


def main(store: str, network: str, group_id: str, work: str, point: str) -> None:
    """Evict bob or add the missing installations, and die with SIGKILL at `point`."""

    def crash_point(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    backend = RineBackend(Device(store, LocalNetwork(network), crash_point=crash_point))
    if work == "evict":
        backend.remove_members(group_id.encode(), ["bob"])
    else:
        backend.add_missing_installations(group_id.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
