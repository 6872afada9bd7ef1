"""The insert of one task by libpq's own calls, since psycopg's cursor takes a tenth of an enqueue.

For each call the cursor finds out anew how each of thirteen parameters is written and which kept plan that means.
Here both are known. An answer that does not come at once is psycopg's to wait for, which has Ctrl-C cancel it.
"""

from __future__ import annotations

from struct import Struct

import psycopg
from psycopg import errors, generators, pq

from callboard._store.postgres_database import OwnConnection
from callboard._store.postgres_session import translate
from callboard._task import NewTask

_NAME = "callboard_insert"

_FORMATS = [pq.Format.BINARY] * len(NewTask._fields)
_BIGINT = Struct(">q")
_DOUBLE = Struct(">d")
_AT_ONCE_MS = 100
"""More than a commit takes that waits for nothing but the disk."""

_FORGOTTEN = b"26000"
"""The SQLSTATE when somebody had the session forget its statements, by DEALLOCATE ALL or DISCARD ALL."""


class DirectInsert:
    """Run the one statement that writes a `NewTask`, on connections of our own."""

    def __init__(self, sql: str) -> None:
        """Run `sql`, which returns an id or nothing, and whose parameters are `$1` and so on."""
        self._prepare = f"PREPARE {_NAME} AS {sql}"

    def run(self, own: OwnConnection, new: NewTask, where: str) -> int | None:
        """Write and commit a row, and return its id; `None`, and nothing written, when its identity is live.

        Args:
            own: a connection that nobody else uses meanwhile.
            new: the row.
            where: the database as messages name it.

        Raises:
            StoreError: the database refused.
        """
        try:
            if not own.knows_insert:
                self._teach(own)
            result = _ask(own, new)
            if result.error_field(pq.DiagnosticField.SQLSTATE) == _FORGOTTEN:
                self._teach(own)
                result = _ask(own, new)
            task_id = result.get_value(0, 0)
            if task_id is None and result.status != pq.ExecStatus.TUPLES_OK:
                raise errors.error_from_result(result, own.raw.info.encoding)
        except psycopg.Error as error:
            raise translate(error, where) from error
        return None if task_id is None else int(task_id)

    def _teach(self, own: OwnConnection) -> None:
        own.raw.execute(self._prepare, prepare=False)
        own.knows_insert = True


def _ask(own: OwnConnection, new: NewTask) -> pq.abc.PGresult:
    params = [
        new.kind.encode(),  # a protobuf name, which is ASCII
        new.group_id,
        new.identity,
        new.data,
        new.data_hash,
        None if new.max_attempts is None else _BIGINT.pack(new.max_attempts),
        _BIGINT.pack(new.created_at_ns),
        _BIGINT.pack(new.expires_at_ns),
        _BIGINT.pack(new.next_attempt_at_ns),
        None if new.initial_backoff_ns is None else _BIGINT.pack(new.initial_backoff_ns),
        None if new.backoff_factor is None else _DOUBLE.pack(new.backoff_factor),
        None if new.max_backoff_ns is None else _BIGINT.pack(new.max_backoff_ns),
        None if new.origin is None else new.origin.encode(own.raw.info.encoding),
    ]
    libpq = own.raw.pgconn
    libpq.send_query_prepared(_NAME.encode(), params, _FORMATS)
    if libpq.flush() == 0 and own.speaks(_AT_ONCE_MS):
        libpq.consume_input()
        if not libpq.is_busy() and (result := libpq.get_result()) is not None:
            libpq.get_result()  # that there is no other
            return result
    results: list[pq.abc.PGresult] = own.raw.wait(generators.execute(libpq))
    return results[0]
