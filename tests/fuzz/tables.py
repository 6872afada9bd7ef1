"""The other harness: rows that nobody checked, written to a real file by plain SQL, and an engine at work there.

Afterwards each row is done, because its handler ran and said so, or dead with a reason, or live and not to be run
now; and plugins were told of exactly those that ended.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.engine.acting import Plugin
from tests.fuzz.rows import INTEGERS, KINDS, NOW_NS, TEXTS, TIMES, kinds, row_of

from callboard import Defer, Discard, Engine, FinishedTask, RescheduleAt, ServiceUnavailable, TaskContext
from callboard._codec import hash_of
from callboard._task import DeadReason
from callboard.testing import FakeClock

ROUNDS = 4
HOUR = timedelta(hours=1)

_NOT_UTF_8 = b"caf\xe9"
_BY_HAND = 10
"""How many dead rows are retried, and live ones cancelled, as an operator would."""


class Handler:
    """Do one of the things that a handler may do, depending on the task; in the end it is done."""

    def __init__(self) -> None:
        self.runs: defaultdict[int, int] = defaultdict(int)

    def __call__(self, message: Any, ctx: TaskContext) -> Any:
        task_id = ctx.task.id
        self.runs[task_id] += 1
        if self.runs[task_id] > 2:
            return RescheduleAt(HOUR) if ctx.task.kind == "kp_rotation" else None
        match task_id % 9:
            case 0:
                raise RuntimeError("half a pair: \udc80")
            case 1:
                raise ServiceUnavailable("away")
            case 2:
                return Defer(HOUR)
            case 3:
                return Discard("no")
            case 4:
                return RescheduleAt(HOUR)
            case 5:
                return "no outcome"
            case 6 if ctx.task.group_id:
                ctx.engine.group(ctx.task.group_id).state()
        return None


class Told:
    """What a plugin was told of tasks that ended."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.dead: list[tuple[int, str]] = []

    def hook(self) -> Callable[..., None]:
        def tasks_finished(finished: Sequence[FinishedTask]) -> None:
            for ended in finished:
                if ended.dead_reason is None:
                    self.done.append(ended.task.id)
                else:
                    self.dead.append((ended.task.id, ended.dead_reason.value))

        return tasks_finished


def check_file(path: Path, batch: Sequence[bytes], chance: random.Random) -> Counter[str]:
    """Write the rows that these bytes choose, run what is due for some hours, and return what became of how many.

    Raises:
        AssertionError: a row vanished, is in two places, or is due and does not run.
    """
    clock, handler, told = FakeClock(NOW_NS), Handler(), Told()
    plugin = Plugin(*kinds(handler), tasks_finished=told.hook())
    engine = Engine(f"sqlite:///{path}", plugins=[plugin], clock=clock, synchronous="NORMAL")
    engine.migrate()
    with closing(sqlite3.connect(path)) as connection:
        with connection:
            ids = [_write(connection, data, number, chance) for number, data in enumerate(batch)]
            _write_around(connection, chance)
        for _ in range(ROUNDS):
            engine.run_due()
            clock.advance(HOUR)
        engine.run_due()
        fates = _fates(connection, ids, handler, told)
        _check_nothing_is_left(connection, clock.now_ns())
    _look(engine)
    engine.stop()
    return fates


def _write(connection: sqlite3.Connection, data: bytes, number: int, chance: random.Random) -> int:
    row = row_of(data)._asdict()
    del row["id"]
    row["identity"] = hash_of(b"%d" % number)  # which nobody compares with the payload
    row["parked"], row["dormant"], row["alone"] = (chance.random() < 0.05 for _ in range(3))
    row["owner"] = chance.choice((None, None, *INTEGERS))
    row["cancelled"], row["crashes"] = (chance.choice((*[0] * 30, *INTEGERS)) for _ in range(2))
    marks = dict.fromkeys(row, "?")
    if chance.random() < 0.01:
        name = chance.choice(("kind", "origin", "last_error", "state"))
        row[name], marks[name] = _NOT_UTF_8, "CAST(? AS TEXT)"
    sql = f"INSERT INTO callboard_task ({', '.join(row)}) VALUES ({', '.join(marks.values())})"
    task_id = connection.execute(sql, list(row.values())).lastrowid
    assert task_id is not None
    return task_id


def _write_around(connection: sqlite3.Connection, chance: random.Random) -> None:
    """Write rows of the other tables that are as odd."""
    texts = ("elsewhere", *TEXTS)
    for _ in range(3):
        connection.execute(
            "INSERT INTO callboard_node (host, pid, version, kinds, lease_ns, started_at_ns, heartbeat_at_ns)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [*(chance.choice(each) for each in (texts, INTEGERS, texts, texts, INTEGERS, TIMES, INTEGERS))],
        )
    for group_id in (b"", b"g", b"\xff" * 300):
        connection.execute(
            "INSERT INTO callboard_group VALUES (?, ?, ?, ?, ?, ?, ?)",
            [group_id, *(chance.choice(each) for each in (INTEGERS, texts, texts, TIMES, INTEGERS, INTEGERS))],
        )
        member = [group_id, chance.choice(texts), chance.choice(INTEGERS)]
        connection.execute("INSERT INTO callboard_group_member VALUES (?, ?, ?)", member)
    connection.execute("INSERT INTO callboard_stamp VALUES ('rounds', ?)", [chance.choice(TIMES)])


def _fates(connection: sqlite3.Connection, ids: list[int], handler: Handler, told: Told) -> Counter[str]:
    live = dict(connection.execute("SELECT id, CAST(state AS BLOB) FROM callboard_task").fetchall())
    dead = dict(connection.execute("SELECT task_id, reason FROM callboard_dead_task").fetchall())
    everything = set(ids) | set(live) | set(dead) | set(told.done)  # a cancelled row may have had a new life
    assert not set(live) & set(dead)
    gone = everything - set(live) - set(dead)
    assert sorted(told.done) == sorted(gone), (set(told.done) ^ gone, len(told.done), len(gone))
    assert sorted(told.dead) == sorted(dead.items())
    assert all(handler.runs[task_id] for task_id in gone)
    assert set(dead.values()) <= set(DeadReason)
    return Counter(["done"] * len(gone) + [*dead.values()] + [_name(state) for state in live.values()])


def _name(state: bytes) -> str:
    text = state.decode(errors="replace")
    return text if text in ("pending", "running", "deferred") else "state of others"


def _check_nothing_is_left(connection: sqlite3.Connection, now_ns: int) -> None:
    """Check that no row is due which this engine knows, but for those whose group another node runs."""
    marks = ", ".join("?" * len(KINDS))
    left = connection.execute(
        f"SELECT id FROM callboard_task AS task WHERE state = 'pending' AND kind IN ({marks})"
        " AND next_attempt_at_ns <= ? AND NOT EXISTS (SELECT 1 FROM callboard_task AS other"
        " WHERE other.state = 'running' AND other.group_id = task.group_id)",
        [*KINDS, now_ns],
    ).fetchall()
    assert left == []
    of_nobody = (
        "SELECT id FROM callboard_task WHERE state = 'running'"
        " AND (owner IS NULL OR owner NOT IN (SELECT id FROM callboard_node))"
    )
    assert connection.execute(of_nobody).fetchall() == []


def _look(engine: Engine) -> None:
    """Do what an operator may do with such rows."""
    for dead in engine.dead_tasks()[:_BY_HAND]:
        engine.retry_dead(dead.id)
    for task in engine.tasks()[:_BY_HAND]:
        engine.cancel(task.id)
    assert engine.health().database_error is None
