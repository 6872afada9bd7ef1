"""Count what the engine accepted and what became of it, without taking the engine's word for both.

A trigger writes down each task row in the transaction that accepts it, whoever enqueues: the demo, a plugin or
a killed process. That a task is done is known from the host's own report. A row that vanished otherwise is
lost.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

_SCHEMA = """
CREATE TABLE demo_accepted (task_id INTEGER PRIMARY KEY);
CREATE TRIGGER demo_accepts AFTER INSERT ON callboard_task
BEGIN INSERT INTO demo_accepted VALUES (new.id); END;
"""


class Ledger:
    """The accepted tasks of one engine database.

    Attributes:
        done: Ids of tasks that the host reported as done.
    """

    def __init__(self, database: Path) -> None:
        """Write down what is accepted from now on in `database`, whose tables exist."""
        self._database = database
        self.done: set[int] = set()
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(_SCHEMA)

    def accepted(self) -> set[int]:
        """Return the ids of all tasks accepted so far."""
        with closing(sqlite3.connect(self._database)) as connection:
            return {task_id for (task_id,) in connection.execute("SELECT task_id FROM demo_accepted")}

    def lost(self, live: Iterable[int], dead: Iterable[int]) -> set[int]:
        """Return the ids of accepted tasks that are neither done nor among the live or dead."""
        return self.accepted() - self.done - set(live) - set(dead)
