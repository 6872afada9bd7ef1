"""A real file with a damaged page."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

_OVERWRITE = """
import sys
path, at, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "r+b", buffering=0) as file:
    file.seek(at)
    file.write(b"\\xa5" * size)
"""


def damage(path: Path, name: str) -> None:
    """Overwrite the first page of a table or index, in a process of its own.

    A file that this process closed would drop the locks that SQLite holds on it here.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        while True:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("BEGIN IMMEDIATE")
            if path.with_name(f"{path.name}-wal").stat().st_size == 0:
                break
            connection.execute("ROLLBACK")  # an engine has written since: its log would hide the damage
        [page] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        [size] = connection.execute("PRAGMA page_size").fetchone()
        arguments = [str(path), str((page - 1) * size), str(size)]
        subprocess.run([sys.executable, "-c", _OVERWRITE, *arguments], check=True)
        connection.execute("INSERT INTO callboard_stamp VALUES ('another', 0)")  # others have to read anew
        connection.execute("COMMIT")
