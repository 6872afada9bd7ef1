"""Choose and claim due rows: rule 6's checks, unknown kinds set aside, and no more than can be run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from callboard import _codec, _lifecycle
from callboard._actors.throttle import line_of
from callboard._actors.workload import CLAIM_AHEAD, Workload
from callboard._admission import Undecodable, admit, malformed
from callboard._lifecycle import Bury
from callboard._log import logger
from callboard._run import Run
from callboard._task import DeadReason, Task

if TYPE_CHECKING:
    from callboard._core import Core
    from callboard._store.interface import Session

BATCH = 1_024
"""Rows read by one claim."""

SET_ASIDE_BATCH = 20_000
"""Rows of an unknown kind deferred by one statement: about 60 ms, so that claims go on in between."""

PARK_BATCH = 20_000
"""Due rows among which those of groups that have fallen behind are parked by one statement, as above."""

SET_ASIDE_NS = 3_600 * 10**9
"""How long a row of an unknown kind is deferred before it is looked at again (rule 16)."""

PATIENCE_NS = 30 * 10**9
"""How long nothing is claimed to let a task run alone; then other work goes on, and it is tried again."""

_SAMPLE = 5


class Memory:
    """What one claim tells the next.

    Attributes:
        undecodable: the rows set aside for their payload, each with the time at which it is looked at again.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._alone_next = True
        self._held_since_ns: int | None = None
        self.undecodable: dict[int, int] = {}
        self._warned_ns: dict[str, int] = {}

    # `is_alones_turn` and `warn` take the monotonic clock: one that is set back would hold everything up, and
    # silence the warnings, until it has caught up.

    def is_alones_turn(self, now_ns: int) -> bool:
        """Return whether a task that must run alone is next: in turn with other work, and for some time only."""
        if self._alone_next and self._held_since_ns is not None and now_ns - self._held_since_ns > PATIENCE_NS:
            self.pass_turn()
            return False
        if not self._alone_next:
            self._alone_next = True
            return False
        self._held_since_ns = now_ns if self._held_since_ns is None else self._held_since_ns
        return True

    def pass_turn(self) -> None:
        """Let other work have the next turn."""
        self._alone_next, self._held_since_ns = False, None

    def forget_undecodable(self, now_ns: int) -> None:
        """Forget the rows whose hour is over: they are looked at again, or were another node's to run."""
        self.undecodable = {task_id: at_ns for task_id, at_ns in self.undecodable.items() if at_ns > now_ns}

    def warn(self, kind: str, ids: Sequence[int], remedy: str, now_ns: int) -> None:
        """Warn of deferred rows and say what to do, once for a kind and hour."""
        if now_ns - self._warned_ns.get(kind, -SET_ASIDE_NS) < SET_ASIDE_NS:
            return
        self._warned_ns[kind] = now_ns
        logger.warning(
            "{} task(s) of kind {} deferred for an hour: nothing here can run them (ids {}); {}",
            len(ids),
            kind,
            ", ".join(map(str, ids[:_SAMPLE])) + (", …" if len(ids) > _SAMPLE else ""),
            remedy,
        )


class Claim:
    """One claim: what it found, inside one transaction.

    Attributes:
        runs: what is to be run once the transaction has committed.
        buried: what moved to the dead-task table.
        more: whether another pass may have something to do at once, or must find out when the next one has.
    """

    def __init__(
        self, core: Core, workload: Workload, memory: Memory, session: Session, now_ns: int, node_id: int
    ) -> None:
        """Claim for `core`, no more than `workload` has room for."""
        self._registry = core.registry
        self._runnable = core.registry.runnable
        self._tasks = core.store.tasks
        self._workload = workload
        self._throttle = workload.throttle
        self._memory = memory
        self._session = session
        self._now_ns = now_ns
        self._monotonic_ns = core.clock.monotonic_ns()
        self._node_id = node_id
        self.runs: list[Run] = []
        self.buried: list[tuple[Task, Bury]] = []
        self.more = False
        self._undecodable: dict[str, list[int]] = {}
        self._emptied: list[bytes] = []

    def make(self, heads: dict[str, int], *, alone_due: bool) -> None:
        """Claim due rows.

        Args:
            heads: the earliest deadlines of all kinds that have pending rows.
            alone_due: whether a row is due that must run with nothing beside it.
        """
        due = [kind for kind, at_ns in heads.items() if at_ns <= self._now_ns]
        for kind in due:
            if kind not in self._runnable:
                self._set_aside(kind)
        if self._workload.alone is not None:
            return
        if alone_due and self._throttle.paused_kinds() and not self._find_alone():
            alone_due = False  # nothing else is to wait for what is not run
        if alone_due and self._memory.is_alones_turn(self._monotonic_ns):
            if not self._workload.runs:
                self._claim_alone()
        else:
            known = [kind for kind in due if kind in self._runnable]
            # The longest due first, or of two that share a group one would always find it taken by the other.
            narrow = sorted((kind for kind in known if self._throttle.is_narrow(kind)), key=heads.__getitem__)
            for kind in narrow:  # first: a group that has become idle for one of them is not to be taken again
                self._claim_narrow(kind)
            self._refill(self._workload.thirsty())
            if narrow:
                known = [kind for kind in known if kind not in narrow]
            if known and not self._workload.is_full():
                self._claim_due(known)
            self.more |= alone_due and not self.runs
        if self.runs:
            self._tasks.start(self._session, [run.task.id for run in self.runs], self._now_ns, self._node_id)
        if self.buried:
            burials = [(task.id, burial) for task, burial in self.buried]
            self._tasks.bury(self._session, burials, self._now_ns)
        if self._undecodable:
            self._set_undecodable_aside()

    def abandon(self) -> None:
        """Forget what was claimed, because the transaction did not commit."""
        for run in self.runs:
            self._workload.remove(run)
        self._workload.backlogged.update(dict.fromkeys(self._emptied))

    def _claim_alone(self) -> None:
        self._memory.pass_turn()
        for task in self._find_alone():
            self._admit(task)
        if self.runs:
            self._workload.alone = self.runs[0].task.id

    def _find_alone(self) -> list[Task]:
        kinds: Collection[str] = self._runnable
        if self._throttle.paused_kinds():
            kinds = [kind for kind in kinds if self._throttle.room(kind, self._monotonic_ns) != 0]
        return self._tasks.alone_due(self._session, kinds, self._node_id, self._now_ns)

    def _claim_narrow(self, kind: str) -> None:
        """Claim of a kind that is limited or tried after a pause: what can begin at once, and what follows it.

        Nothing of it waits here behind other tasks of its group, where it would keep its place from other groups;
        the group is awaited instead. Nor is anything parked, because among a group's parked rows none is stepped
        over.
        """
        workload, throttle, now_ns = self._workload, self._throttle, self._monotonic_ns
        room = throttle.room(kind, now_ns)
        if not room:
            return
        limit = min(BATCH, room * CLAIM_AHEAD)
        beside = {*throttle.busy_groups(kind), *workload.awaited}
        rows = self._tasks.due_beside(self._session, kind, beside, self._node_id, self._now_ns, limit)
        begun: set[bytes] = set()
        recurring = self._runnable[kind].recurring
        may_find_more = False
        for task in rows:
            group_id = task.group_id
            if task.id in workload.runs:
                continue
            if (burial := _lifecycle.overdue(task, self._now_ns, recurring=recurring)) is not None:
                self._bury(task, burial)
                may_find_more = True
            elif not throttle.admits(kind, line_of(task), now_ns):
                continue
            elif group_id is None:
                if workload.loose_room() > 0:
                    self._admit(task)
            elif group_id in begun or workload.is_idle(group_id):
                if workload.room_in(group_id) > 0:
                    self._admit(task)
                    begun.add(group_id)
            else:
                workload.awaited.add(group_id)
                may_find_more = True
        self.more |= may_find_more and len(rows) == limit

    def _claim_due(self, kinds: Sequence[str]) -> None:
        workload = self._workload
        grouped_only = workload.loose_room() <= 0
        limit = min(BATCH, workload.room())
        rows = self._tasks.due(self._session, kinds, self._node_id, self._now_ns, limit, grouped_only=grouped_only)
        park: list[Task] = []
        skipped = 0
        for task in rows:
            group_id = task.group_id
            if task.id in workload.runs:
                # Completed by its handler and requested again: it waits until that handler has returned.
                skipped += 1
                continue
            if group_id is None:
                has_room = workload.loose_room() > 0
            else:
                has_room = group_id not in workload.backlogged and workload.room_in(group_id) > 0
            if has_room:
                self._admit(task)
            elif group_id is None or workload.is_idle(group_id):
                skipped += 1
            else:
                park.append(task)
                workload.backlogged[group_id] = None
        if park:
            self._park(park)
        self.more |= len(rows) == limit and skipped < limit

    def _park(self, tasks: Sequence[Task]) -> None:
        self._tasks.park(self._session, [task.id for task in tasks])
        if len(tasks) < BATCH // 2:
            return
        # So many of them hint at many more, which others would have to wait for, batch after batch.
        groups = {task.group_id for task in tasks if task.group_id is not None}
        for kind in {task.kind for task in tasks}:
            self._tasks.park_more(self._session, kind, groups, self._now_ns, PARK_BATCH)

    def _refill(self, group_ids: Sequence[bytes]) -> None:
        if not group_ids:
            return
        rooms = {group_id: self._workload.room_in(group_id) for group_id in group_ids}
        rows = self._tasks.parked(self._session, rooms, self._node_id, self._now_ns)
        found = Counter(task.group_id for task in rows)
        # They were parked before their kind was paused or its plugin disabled, and could not be stepped over.
        left = {task.id for task in rows if self._is_left(task.kind)}
        mixed = {task.group_id for task in rows if task.id in left}
        emptied = [group_id for group_id, room in rooms.items() if found[group_id] < room or group_id in mixed]
        if emptied:
            for group_id in emptied:
                self._workload.backlogged.pop(group_id, None)
            self._emptied += emptied
            # None should be left; a clock that went back, or another node in the group, may have kept some.
            self._tasks.unpark(self._session, emptied)
        for task in rows:
            if task.id not in left:
                self._admit(task)
        self.more |= bool(left)  # what is unparked is due, and was not when this pass read the deadlines

    def _is_left(self, kind: str) -> bool:
        return kind not in self._runnable or self._throttle.is_narrow(kind)

    def _admit(self, task: Task) -> None:
        """Count one due row as claimed, dead or set aside, as its checks say."""
        found = admit(task, self._runnable[task.kind], self._now_ns)
        if isinstance(found, Bury):
            self._bury(task, found)
        elif isinstance(found, Undecodable):
            self._undecodable.setdefault(task.kind, []).append(task.id)
        else:
            if task.max_attempts is None:
                self._tasks.resolve(self._session, found.task)
                if found.task.group_id != task.group_id:
                    self.more = True  # only now can it be seen whether the group is another node's
                    return
            _check_hash(task)
            self.runs.append(found)
            self._workload.add(found)
            self._throttle.begin(found, self._monotonic_ns)

    def _bury(self, task: Task, burial: Bury) -> None:
        if burial.reason == DeadReason.MALFORMED:
            _log_malformed(task, burial)
        self.buried.append((task, burial))

    def _set_aside(self, kind: str) -> None:
        until_ns = self._now_ns + SET_ASIDE_NS
        ids = self._tasks.set_aside(self._session, kind, self._now_ns, until_ns, SET_ASIDE_BATCH)
        if ids:
            self._memory.warn(kind, ids, self._registry.remedy(kind), self._monotonic_ns)
            self.more = True
        if len(ids) >= SET_ASIDE_BATCH:
            return
        # What is still due was not to be deferred: its time or attempts are up, or it has no payload. But where
        # others write at once, it may just have been enqueued, or have been locked by a node that knows the kind.
        for task in self._tasks.due(self._session, [kind], self._node_id, self._now_ns, BATCH, grouped_only=False):
            burial = _lifecycle.overdue(task, self._now_ns)
            if burial is None and not task.data:
                burial = malformed(task, "the payload is an empty Task")
            if burial is None:
                self.more = True
            else:
                self._bury(task, burial)

    def _set_undecodable_aside(self) -> None:
        ids = [task_id for of_kind in self._undecodable.values() for task_id in of_kind]
        until_ns = self._now_ns + SET_ASIDE_NS
        self._tasks.set_these_aside(self._session, ids, until_ns)
        self._memory.undecodable.update(dict.fromkeys(ids, until_ns))
        for kind, of_kind in self._undecodable.items():
            self._memory.warn(kind, of_kind, "their payloads are a newer build's", self._monotonic_ns)
        self.more = True


def _log_malformed(task: Task, burial: Bury) -> None:
    logger.error(
        "task {} ({}) is malformed and is dead-lettered: {}; payload {}",
        task.id,
        task.kind,
        burial.last_error,
        task.data.hex(),
    )


def _check_hash(task: Task) -> None:
    actual = _codec.hash_of(task.data)
    if actual != task.data_hash:
        logger.warning(
            "task {} ({}): its data_hash is {}, but its data hashes to {}; it runs all the same",
            task.id,
            task.kind,
            task.data_hash.hex(),
            actual.hex(),
        )
