"""An engine in a process of its own, to be killed. `python -m tests.chaos.process OPTIONS`, which are JSON.

It serves the database until its stdin ends, because the conductor wants so or is gone, then it stops in order.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from loguru import logger
from tests.chaos import sabotage, work
from tests.chaos.journal import Journal
from tests.engine.acting import Plugin
from tests.ledger import What

from callboard import Engine

_LEASE_LOST = "this node's lease ran out"
_AWAKENING_NS = 500_000_000
"""How long after it knows that its lease is lost a thread may still start what it was about to start before."""


def main(options: dict[str, Any]) -> None:
    """Serve."""
    faulthandler.enable()
    journal = Journal(Path(options["journal"]), options["node"])
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{time:HH:mm:ss.SSS} " + options["node"] + " {message}")
    logger.enable("callboard")
    engine = Engine(
        f"sqlite:///{options['database']}",
        plugins=[Plugin(*work.kinds(journal, options["node"]))],
        workers=8,
        synchronous="NORMAL",
        lease=timedelta(seconds=options["lease_s"]),
        max_crashes=options["max_crashes"],
    )

    def note_lapse(message: Any) -> None:
        """The lease was certain until then; the warning comes before the engine joins anew."""
        running = engine._core.running
        assert running is not None
        now_ns = time.monotonic_ns()
        journal.note(What.LAPSED, at_ns=min(now_ns, running.node.lease_until_ns))
        journal.note(What.RESUMED, at_ns=now_ns + _AWAKENING_NS)

    logger.add(note_lapse, level="WARNING", filter=lambda record: record["message"].startswith(_LEASE_LOST))
    if options["sabotage"]:
        sabotage.commit(options["sabotage"], options["database"])
    with engine:
        sys.stdin.read()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
