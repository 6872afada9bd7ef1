"""A messaging service that embeds an engine, to be killed. `python -m tests.chaos.mls.process OPTIONS`, in JSON.

It takes in what the network has for its installation, and announces the installations that it hears of on stdin.
When that ends, because the conductor wants so or is gone, it stops in order.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from loguru import logger
from tests.engine.acting import Plugin
from tests.plugins.rine.crashing_host import receive

from callboard import Engine, InstallationAdded, RetryPolicy, ServiceUnavailable
from callboard.testing import crash_point
from callboard_mls import key_packages, missing_installations, pull_in, self_remove
from callboard_mls.backend import Backend
from callboard_rine import Device, LocalNetwork, RineBackend, database

_POLL_S = 0.03
_IMPATIENT = RetryPolicy(
    initial=timedelta(milliseconds=30), cap=timedelta(milliseconds=300), max_attempts=1_000_000
)
"""The work must be done however often it is disturbed, and soon."""

PLUGINS = (self_remove, missing_installations, key_packages, pull_in)


def impatient(module: ModuleType) -> Plugin:
    """Return a plugin as it is, but for the time between attempts."""
    hooks = {
        name.removeprefix("callboard_"): hook
        for name, hook in vars(module).items()
        if name.startswith("callboard_")
    }
    kinds = [dataclasses.replace(kind, retry=_IMPATIENT) for kind in hooks.pop("task_kinds")()]
    return Plugin(*kinds, name=module.__name__, **hooks)


def main(options: dict[str, Any]) -> None:
    """Serve."""
    faulthandler.enable()
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{time:HH:mm:ss.SSS} " + options["name"] + " {message}")
    logger.enable("callboard")
    database.SYNCHRONOUS = "OFF"  # processes get killed here, the power stays on
    with (
        LocalNetwork(options["network"]) as network,
        Device(
            options["store"],
            network,
            crash_point=crash_point,
            rotation_interval=timedelta(seconds=options["rotation_s"]),
        ) as device,
        Engine(
            options["database"],
            services={Backend: RineBackend(device)},
            plugins=[impatient(module) for module in PLUGINS],
            synchronous="NORMAL",
            max_crashes=1_000_000,
        ) as engine,
    ):
        Path(options["ready"]).touch()
        for pushed in pushes():
            for inbox_id, installation_id in pushed:
                engine.publish(InstallationAdded(inbox_id, bytes.fromhex(installation_id)))
            with suppress(ServiceUnavailable):  # then it comes with the next look
                for group in list(engine.groups()):
                    receive(engine, device, group.group_id)


def pushes() -> Iterator[list[tuple[str, str]]]:
    """Yield again and again what has come on stdin, mostly nothing, until it ends."""
    rest = b""
    while True:
        if not select.select([0], [], [], _POLL_S)[0]:
            yield []
            continue
        read = os.read(0, 65_536)
        if not read:
            return
        *lines, rest = (rest + read).split(b"\n")
        yield [tuple(json.loads(line)) for line in lines]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
