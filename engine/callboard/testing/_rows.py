"""Read the tables for a test, whole, and say what is in a row."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import text_format
from google.protobuf.message import Message

from callboard._clock import NEVER_NS
from callboard._codec import decode
from callboard._engine import Engine
from callboard._task import DeadTask, FinishedTask, Task

_PAGE = 1_000
_LONGEST = 200
"""How much of a payload or an error is shown, in characters."""


def all_rows(engine: Engine, kind: str | None = None) -> Iterator[Task]:
    """Iterate over live tasks, those included that a transaction on PostgreSQL has handed in and nobody merged."""
    _merge(engine)
    page = engine.tasks(kind=kind, limit=_PAGE)
    while page:
        yield from page
        page = engine.tasks(kind=kind, limit=_PAGE, after_id=page[-1].id) if len(page) == _PAGE else []


def _merge(engine: Engine) -> None:
    core = engine._core
    with core.reading() as session:
        accepted = core.store.tasks.heads(session, core.registry.runnable, 0).accepted
    died: list[FinishedTask] = []
    while accepted:  # only then, because another thread may be in a transaction that would hold this one up
        with core.store.transaction() as session:
            accepted = core.store.tasks.merge_accepted(session, core.recurring_kinds, died, _PAGE) == _PAGE


def described(engine: Engine, row: Task | DeadTask) -> str:
    """Return one line about a row."""
    words = [f"task {row.id} {row.state}" if isinstance(row, Task) else f"dead task {row.id} {row.reason}"]
    if isinstance(row, Task):
        words.append(f"due {_when(row.next_attempt_at_ns, engine.clock.now_ns())}")
    if row.group_id is not None:
        words.append(f"group {row.group_id!r}")
    if row.identity != row.data_hash:
        words.append("with a key")
    if row.origin is not None:
        words.append(f"origin {row.origin!r}")
    if row.attempts:
        words.append(f"attempts {row.attempts}")
    line = f"{', '.join(words)}: {_payload(engine, row)}"
    return line if row.last_error is None else f"{line}\n    failed: {_last_line(row.last_error)}"


def one_line(message: Message) -> str:
    """Return a message's fields on one line."""
    text = text_format.MessageToString(message, as_one_line=True) or "no field is set"
    return f"{{{text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''}}}"


def _payload(engine: Engine, row: Task | DeadTask) -> str:
    kind = engine._core.registry.get(row.kind)
    if kind is not None:
        try:
            return one_line(decode(row.data, row.kind, kind.message_type))
        except Exception:  # a malformed one, or a message inside whose type is not here
            pass
    return row.data[: _LONGEST // 2].hex() or "empty"


def _when(at_ns: int, now_ns: int) -> str:
    if at_ns == NEVER_NS:
        return "never"
    seconds = (at_ns - now_ns) / 1e9
    return "now" if seconds == 0 else f"in {seconds:g} s" if seconds > 0 else f"since {-seconds:g} s"


def _last_line(error: str) -> str:
    return error.strip().rpartition("\n")[2][:_LONGEST]
