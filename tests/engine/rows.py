"""The tables as an operator sees them: plain SQL on a connection that is not the engine's."""

import sqlite3
from contextlib import closing
from typing import Any

from google.protobuf.message import Message
from tests.engine.messages import ReceiptThread, SendReceipt

from callboard._codec import encode, hash_of
from callboard.wire import Task as Envelope


def path_of(url: str) -> str:
    """Return the file of a database's URL."""
    return url.removeprefix("sqlite:///")


def is_postgres(url: str) -> bool:
    """Return whether a URL is that of a PostgreSQL database."""
    return url.startswith("postgresql:")


def sql(url: str, statement: str, *params: Any) -> list[Any]:
    """Run a statement and commit it; return its rows."""
    if is_postgres(url):
        import psycopg  # not everybody who runs these tests has it

        with psycopg.connect(url) as server:
            cursor = server.execute(statement.replace("?", "%s").encode(), params or None)
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(path_of(url))) as connection, connection:
        return connection.execute(statement, params).fetchall()


def write_by_hand(url: str, kind: str, data: bytes, **columns: Any) -> int:
    """Insert a task with the columns that have no default, and others if given; return its id."""
    row = {"kind": kind, "identity": hash_of(data), "data": data, "data_hash": hash_of(data), **columns}
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    task_id: int = sql(url, f"INSERT INTO callboard_task ({names}) VALUES ({marks}) RETURNING id", *row.values())[
        0
    ][0]
    return task_id


def payload(message: Message) -> bytes:
    """Return the bytes of a message's row."""
    return encode(message)


def text_of(data: bytes) -> str:
    """Return the text of a receipt's row, or of the receipt in a thread's."""
    plugin = Envelope.FromString(data).plugin
    if plugin.type_url.endswith("SendReceipt"):
        return SendReceipt.FromString(plugin.value).text
    return ReceiptThread.FromString(plugin.value).receipt.text
