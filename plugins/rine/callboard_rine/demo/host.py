"""Ada's host: the process that runs the engine, and gets killed. `python -m callboard_rine.demo.host FOLDER`.

It is what a messaging service would be: it owns the MLS store and tells the engine what happens. A push from
the network comes as a line on stdin; what it did goes out as lines on stdout. When its stdin ends, because its
parent wants so or has died, it drains and ends.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from loguru import logger

from callboard import Engine, FinishedTask, InstallationAdded, hookimpl
from callboard.testing import crash_point
from callboard_mls.backend import Backend

from ..backend import RineBackend
from ..device import Device
from ..mailbox import Message
from ..network import LocalNetwork
from .world import ADA_PHONE, PLUGINS, database_url, network_path

_IDLE_WITHIN_S = 30.0


class DoneReporter:
    """A plugin of the host's own that reports the tasks that are done."""

    @hookimpl
    def callboard_tasks_finished(self, finished: Sequence[FinishedTask]) -> None:
        """Report them; dead ones can be found in the dead-task table."""
        _report(done=[each.task.id for each in finished if each.dead_reason is None])


def main(folder: Path) -> None:
    """Run the engine on the demo in `folder` until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent as well, which decides
    logger.enable("callboard")
    with (
        LocalNetwork(network_path(folder)) as network,
        Device(folder / ADA_PHONE, network, crash_point=crash_point) as device,
        Engine(
            database_url(folder),
            services={Backend: RineBackend(device)},
            plugins=[*PLUGINS, DoneReporter()],
        ) as engine,
    ):
        for group in engine.groups():
            _receive(engine, device, group.group_id)
        _report_idle(engine)
        for line in sys.stdin:
            push = json.loads(line)
            if "mail" in push:
                _receive(engine, device, bytes.fromhex(push["mail"]))
            else:
                inbox_id, installation_id = push["installation"]
                engine.publish(InstallationAdded(inbox_id, bytes.fromhex(installation_id)))
            _report_idle(engine)


def _receive(engine: Engine, device: Device, group_id: bytes) -> None:
    device.receive(group_id, partial(_handle, engine, device))


def _handle(engine: Engine, device: Device, message: Message) -> None:
    """Take one message, as any host does: after a crash it may come again."""
    if message.is_leave_request:
        inbox_id = device.network.directory.inboxes_of([message.sender])[message.sender]
        engine.group(message.group_id).leave_requested(inbox_id, message.message_id)


def _report_idle(engine: Engine) -> None:
    engine.wait_idle(_IDLE_WITHIN_S)
    _report(idle=True)


def _report(**what: object) -> None:
    # One write for a line, because reports come from several threads and may be the last thing to happen.
    os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
