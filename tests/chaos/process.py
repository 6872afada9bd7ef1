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
from callboard._actors.node import Node
from callboard._store.interface import Session

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
        options["database"],
        plugins=[Plugin(*work.kinds(journal, options["node"], options["database"]))],
        workers=8,
        synchronous="NORMAL",
        lease=timedelta(seconds=options["lease_s"]),
        max_crashes=options["max_crashes"],
    )

    note_lapses(journal)
    if options["sabotage"]:
        sabotage.commit(options["sabotage"], options["database"])
    with engine:
        Path(options["ready"]).touch()
        sys.stdin.read()


def note_lapses(journal: Journal) -> None:
    """Have the node note when others have taken its tasks over; until its lease ended it was certain of them."""
    beat = Node._beat

    def noting(node: Node, session: Session) -> None:
        node_id, certain_until_ns = node.id, node.lease_until_ns
        beat(node, session)
        if node_id not in (0, node.id):
            now_ns = time.monotonic_ns()
            journal.note(What.LAPSED, at_ns=min(now_ns, certain_until_ns))
            journal.note(What.RESUMED, at_ns=now_ns + _AWAKENING_NS)

    Node._beat = noting  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
