"""What is done in a process of its own: prepare the surroundings, run a task to its end, encode, reconcile.

Each function is given the plugin's surroundings and a folder, and returns what can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from callboard._codec import encode, hash_of, kind_of
from callboard._engine import Engine
from callboard._error_text import trace_of
from callboard._log import logger
from callboard._store.sqlite import SqliteStore
from callboard._task import DeadReason
from callboard.errors import CallboardError
from callboard.testing.contract._fault import NONE, Fault, Passed
from callboard.testing.contract._given import Given
from callboard.testing.contract._observed import ObservedClock, ObservedStore, observed
from callboard.testing.contract._scene import Scene
from callboard.testing.contract._snapshot import Snapshot, TaskRow, snapshot, task_rows

_ROUNDS = 100
"""How often a task is tried that fails again and again: more than any sensible policy allows."""

_TO_TRY_AGAIN = (
    "SELECT min(next_attempt_at_ns) FROM callboard_task WHERE state = 'pending' AND (last_error IS NOT NULL"
    " OR alone > 0 OR crashes > 0 OR (last_attempted_at_ns IS NULL AND identity = ?))"
)


class Part(NamedTuple):
    """One message for one handler, and what is to happen to it.

    Attributes:
        kind: the kind's name.
        payload: the message's bytes.
        fault: what is done to the handler.
        enqueued: whether the task is there, because an earlier process enqueued it.
        groupless: whether its group is lost first.
        newer: what a newer version has written into its row, with the identity that the message has here.
    """

    kind: str
    payload: bytes
    fault: Fault = NONE
    enqueued: bool = False
    groupless: bool = False
    newer: bytes | None = None


class Played(NamedTuple):
    """What came of it.

    Attributes:
        left: what there is afterwards.
        passed: what the handler came by.
        runs: how often the handler was called.
        raised: what it raised by itself.
        escaped: the traceback of what got out of the engine.
        problems: what hooks of the plugin raised.
    """

    left: Snapshot
    passed: Passed
    runs: int
    raised: tuple[str, ...]
    escaped: str | None
    problems: tuple[str, ...]


def database_in(folder: Path) -> Path:
    """Return where the engine's tables are."""
    return folder / "callboard.db"


class _Life:
    """An engine in the surroundings that the author gave."""

    def __init__(self, given: Given, folder: Path, now_ns: int, fault: Fault = NONE) -> None:
        self.given = given
        self.folder = folder
        self.clock = ObservedClock(now_ns)
        self.scene = Scene(self.clock, fault)
        self.store: SqliteStore = ObservedStore(database_in(folder), self.scene)
        services = given.services(folder, self.clock)
        self.engine = Engine(
            self.store,
            services={type_: observed(service, self.scene) for type_, service in services.items()},
            plugins=[given.plugin],
            clock=self.clock,
        )
        self.engine.load_plugins()
        self.engine.migrate()

    def problems(self) -> tuple[str, ...]:
        [health] = self.engine.health().plugins
        return tuple(f"{where}: {problem}" for where, problem in health.problems.items())

    def snapshot(self) -> Snapshot:
        effects = self.given.effects(self.engine, self.folder)
        return snapshot(self.engine, database_in(self.folder), self.given.volatile, effects)

    def message(self, part: Part) -> Any:
        kind = self.engine._core.registry.get(part.kind)
        assert kind is not None
        return kind.message_type.FromString(part.payload)

    def settle(self, identity: bytes) -> None:
        """Run until nothing is to be tried again, and the task with this identity has been tried."""
        for _ in range(_ROUNDS):
            self.engine.run_due()
            with self.store.reading() as session:
                [(at_ns,)] = session.rows(_TO_TRY_AGAIN, (identity,))
            if at_ns is None:
                return
            self.clock.advance_to(at_ns)


def prepare(given: Given, folder: Path, now_ns: int) -> None:
    """Make the surroundings in `folder`, which each case begins with a copy of."""
    life = _Life(given, folder, now_ns)
    given.prepare(life.engine, folder)
    life.engine.stop()


def services_given(given: Given, folder: Path, now_ns: int) -> list[str]:
    """Return the names of the services that the author gives."""
    services = given.services(folder, ObservedClock(now_ns))
    return [f"{type_.__module__}.{type_.__qualname__}" for type_ in services]


def play(given: Given, folder: Path, now_ns: int, part: Part) -> Played:
    """Run a task until it is done, dead, or waits for another time; be killed on the way if the fault says so."""
    life = _Life(given, folder, now_ns, part.fault)
    message = life.message(part)
    identity = hash_of(encode(message))
    if part.groupless:
        _lose_group(life, message)
    if not part.enqueued:
        life.engine.enqueue(message)
    if part.newer is not None:
        _rewrite(life, message, part.newer)
    life.scene.enter(life.engine, identity)
    escaped = None
    try:
        life.settle(identity)
        revived = [
            life.engine.retry_dead(dead.id)
            for dead in life.engine.dead_tasks()
            if dead.reason == DeadReason.CANCELLED and dead.kind == part.kind
        ]
        if revived:
            life.settle(identity)
    except BaseException as error:
        escaped = trace_of(error)
    life.scene.leave()
    return _ended(life, escaped)


def play_all(given: Given, folder: Path, now_ns: int, kind: str, payloads: Sequence[bytes]) -> Played:
    """Run a task of one kind for each of these messages."""
    life = _Life(given, folder, now_ns)
    for payload in payloads:
        try:
            life.engine.enqueue(life.message(Part(kind, payload)))
        except CallboardError as error:  # such as a group id that is none: refused at the door, as it should be
            logger.debug("not enqueued: {}", error)
    life.scene.enter(life.engine, b"")
    escaped = None
    try:
        life.settle(b"")
    except BaseException as error:
        escaped = trace_of(error)
    life.scene.leave()
    return _ended(life, escaped)


def _ended(life: _Life, escaped: str | None) -> Played:
    scene = life.scene
    played = Played(life.snapshot(), scene.passed, scene.runs, tuple(scene.raised), escaped, life.problems())
    life.engine.stop()
    return played


def _rewrite(life: _Life, message: Any, newer: bytes) -> None:
    data = encode(type(message).FromString(newer))
    with life.store.transaction() as session:
        session.run("UPDATE callboard_task SET data = ? WHERE data = ?", (data, encode(message)))


def _lose_group(life: _Life, message: Any) -> None:
    kind = life.engine._core.registry.get(kind_of(type(message)))
    assert kind is not None
    group_id = kind.group_of(message)
    assert group_id is not None
    with life.store.transaction() as session:
        for table in ("callboard_group", "callboard_group_member", "callboard_pending_remove"):
            session.run(f"DELETE FROM {table} WHERE group_id = ?", (group_id,))
    life.given.lose_group(life.engine, life.folder, group_id)


class Encoded(NamedTuple):
    """A message as its row has it in one process."""

    kind: str
    data: bytes
    group_id: bytes | None


def encoded(given: Given, folder: Path, now_ns: int, payloads: Sequence[tuple[str, bytes]]) -> list[Encoded]:
    """Return how these messages are written here, and the author's samples."""
    life = _Life(given, folder, now_ns)
    messages = [life.message(Part(kind, payload)) for kind, payload in payloads]
    return [as_row(life.engine, message) for message in (*messages, *given.samples())]


def as_row(engine: Engine, message: Any) -> Encoded:
    """Return how a message is written in this process."""
    name = kind_of(type(message))
    kind = engine._core.registry.get(name)
    try:
        group_id = None if kind is None else kind.group_of(message)
    except Exception:  # no group can have that id, in any process
        group_id = None
    return Encoded(name, encode(message), group_id)


class Reconciled(NamedTuple):
    """What events made, and what reconciling makes of it once they were lost.

    Attributes:
        made: the tasks that the events enqueued.
        once: all tasks after all were lost and the plugin has reconciled.
        twice: all tasks after it has reconciled once more.
        left_once: what else there was after the first time.
        left_twice: what else there was after the second time.
        problems: what hooks raised.
    """

    made: set[TaskRow]
    once: set[TaskRow]
    twice: set[TaskRow]
    left_once: Snapshot
    left_twice: Snapshot
    problems: tuple[str, ...]


def reconcile(given: Given, folder: Path, now_ns: int) -> Reconciled:
    """Let events happen, lose all tasks of the plugin's kinds, and have it reconcile twice."""
    life = _Life(given, folder, now_ns)
    engine = life.engine
    before = task_rows(engine)
    given.events(engine, folder)
    made = task_rows(engine) - before
    with life.store.transaction() as session:
        for kind, _ in engine._core.registry:
            session.run("DELETE FROM callboard_task WHERE kind = ?", (kind.name,))
    seen = []
    for reason in ("start", "interval"):
        for hook in engine._core.plugins.hooks("callboard_reconcile"):
            engine._core.plugins.call(hook, engine=engine, reason=reason)
        seen.append((task_rows(engine), life.snapshot()))
    (once, left_once), (twice, left_twice) = seen
    problems = life.problems()
    engine.stop()
    return Reconciled(made, once, twice, left_once, left_twice, problems)
