"""A service with messages, for a test to kill: `python serving.py DATABASE MESSAGES [hold]`.

It says which message it is about to delete. With `hold` it comes no further.
"""

import sys
import threading
from pathlib import Path

from callboard import Engine
from callboard_vanish import MessageStore
from callboard_vanish.sqlite import SqliteMessages


class Messages(SqliteMessages):
    """Say what is about to go."""

    def delete(self, group_id: bytes, message_id: bytes) -> None:
        """Delete a message, or hold."""
        print("deleting", message_id.decode(), flush=True)
        if "hold" in sys.argv:
            threading.Event().wait()
        super().delete(group_id, message_id)


def main() -> None:
    """Serve until there is nothing to do."""
    with Engine(sys.argv[1], services={MessageStore: Messages(Path(sys.argv[2]))}) as engine:
        if not engine.wait_idle(timeout=60):
            raise SystemExit("still busy")


if __name__ == "__main__":
    main()
