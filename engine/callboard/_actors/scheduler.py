"""The scheduler's work: claim what is due, send it to run, write what became of it. One pass at a time.

It is the only place that reschedules or finishes rows. It knows no thread of its own: the mailbox drives it
in a started engine, `Engine.run_due` drives it on the caller's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from callboard import _crash_points
from callboard._actors import reporting
from callboard._actors.claiming import BATCH, PATIENCE_NS, Claim, Memory
from callboard._actors.deferral import Deferral
from callboard._actors.hooks import HookCaller
from callboard._actors.node import Node
from callboard._actors.outbox import Outbox
from callboard._actors.router import Router
from callboard._actors.settling import Settlement
from callboard._actors.watch import Watch
from callboard._actors.workload import Workload
from callboard._clock import NEVER_NS
from callboard._outcome import Failure
from callboard._run import Run
from callboard._store.task_table import Heads
from callboard._task import FinishedTask

if TYPE_CHECKING:
    from callboard._core import Core
    from callboard._store.interface import Session


_BETWEEN_SERVICES_NS = 60 * 10**9

_LOCKED_NS = 2 * 10**8
"""How long an outcome or an accepted task waits whose row somebody else has locked, before it is tried again."""

_MERGE_BATCH = 5_000
"""Accepted tasks merged by one transaction: about 0.1 s, so that outcomes are written in between."""


class Scheduler:
    """Make passes over the task table.

    Attributes:
        deadline_ns: when the next pass is due, as far as the last one knew.
        counters: how many tasks were `done`, `dead`, `failed` and `stale` since the start.
        stopping: set to claim nothing more.
    """

    def __init__(
        self,
        core: Core,
        node: Node,
        workload: Workload,
        router: Router,
        outbox: Outbox,
        hooks: HookCaller,
    ) -> None:
        """Schedule for `core`, as `node`."""
        self._core = core
        self._node = node
        self._workload = workload
        self._router = router
        self._outbox = outbox
        self._hooks = hooks
        self._memory = Memory()
        self._deferral = Deferral(core, self._memory)
        self._unsettled: list[Run] = []
        self._away: set[str] = set()
        self._was_idle = False
        self._guesses = False
        self._alone_due = False
        self._has_more_accepted = False
        self._told_paused: Collection[str] = frozenset()
        self._told_runnable = core.registry.runnable
        self._next_service_ns = 0  # on the monotonic clock
        self.watch = Watch(core, workload)
        self.deadline_ns = NEVER_NS
        self.counters: Counter[str] = Counter(done=0, dead=0, failed=0, stale=0)
        self.stopping = False

    def prepare(self) -> None:
        """Become a node, and take over the rows of those that are gone, before the first pass."""
        self._node.join()
        try:
            self.watch.shorten_backoffs()
        except BaseException:
            self._node.leave()
            raise

    def others_wrote(self) -> None:
        """Look at deferred rows anew in the next pass: another node may have set them aside."""
        self._deferral.may_have_changed = True

    def step(self) -> bool:
        """Make one pass; return whether another one has something to do at once.

        Raises:
            StoreError: the database refused. Nothing is lost: the outcomes are kept for the next pass.
        """
        now_ns = self._core.clock.now_ns()
        self._unsettled += self._outbox.take()
        self._has_more_accepted = False
        # Of something new: nothing else is known that this pass could be for.
        is_told = self._was_idle and not self._unsettled and self.deadline_ns > now_ns
        self._was_idle = False
        is_guess = self._guesses and is_told and not self._alone_due and not self.stopping
        heads = self._guess(now_ns) if is_guess else self._read()
        runs, self._unsettled = self._unsettled, []
        alone = self._workload.alone
        for run in runs:
            self._workload.remove(run)
        due = self._due(heads, now_ns)
        concerned = not is_guess and self._deferral.concerns(heads, now_ns)
        is_stale = heads.accepted or concerned
        paused = self._workload.throttle.paused_kinds()
        runnable = self._core.registry.runnable  # another dictionary once a plugin is disabled
        is_news = paused != self._told_paused or runnable is not self._told_runnable
        settlement = Settlement(self._core, runs)
        self._workload.shared = self._node.has_company()
        claim: Claim | None = None
        died: list[FinishedTask] = []
        try:
            if runs or is_stale or is_news or self._wants_claim(due):
                store = self._core.store
                # No outcome, no wait for the disk: what a power failure undoes of the rest is done again.
                opened = store.transaction() if runs else store.claiming()
                with self._node.renewing(opened, always=False) as session:
                    if runs:
                        settlement.write(session, now_ns)
                    if is_news:
                        self._node.tell_kinds(session)
                    if heads.accepted:
                        self._merge(session, died)
                    if concerned:
                        died += self._deferral.tend(session, heads, now_ns)
                    if is_stale:
                        due = self._due(self._heads(session), now_ns)
                    if self._wants_claim(due):
                        node_id = self._node.id
                        claim = Claim(self._core, self._workload, self._memory, session, now_ns, node_id)
                        claim.make(due, alone_due=self._alone_due)
        except BaseException:
            if claim is not None:
                claim.abandon()
            for run in runs:
                self._workload.add(run)
            self._workload.alone = alone
            self._unsettled = runs
            raise
        self._told_paused, self._told_runnable = paused, runnable
        self._postpone(settlement.postponed)
        self._account(runs, settlement)
        self.report(died)
        again = settlement.again or self._has_more_accepted
        if claim is not None:
            _crash_points.reach("callboard.claim.committed")
            self.report([FinishedTask(task, None, burial.reason) for task, burial in claim.buried])
            self._router.send(claim.runs)
            again = again or claim.more or bool(claim.runs)
        if is_told:
            self._guesses = claim is not None and bool(claim.runs) and not heads.accepted
        if not self.stopping:
            self._hooks.start_due(now_ns)
        self._outbox.expect(min(BATCH, (len(self._workload.runs) + 1) // 2))
        again = again or is_guess
        self._was_idle = not again and not self._workload.runs
        return again and not self.stopping

    def hand_back_unstarted(self) -> None:
        """Make claimed rows pending again whose handlers have not begun, once nothing starts any more.

        Those that go on running keep their rows, marked: the end of this process tells nothing against them.
        """
        runs = self._workload.runs
        unstarted = [run for run in runs.values() if run.started_ns == 0]
        if not runs and not self._workload.backlogged:
            return
        for run in unstarted:
            run.cancelled, run.result = True, "handed back"
        settlement = Settlement(self._core, unstarted)  # some may have been cancelled or taken over meanwhile
        with self._core.store.transaction() as session:
            settlement.write(session, self._core.clock.now_ns())
            self._core.store.tasks.unpark(session, self._workload.backlogged)
            left = [task_id for task_id, run in runs.items() if run.started_ns]
            if left:
                self._core.store.tasks.spare(session, left, self._node.id)
        for run in unstarted:
            self._workload.remove(run)
        self._account(unstarted, settlement)

    def is_due(self) -> bool:
        """Return whether a pass has something to do, as far as the last one knew."""
        return len(self._outbox) > 0 or self._core.clock.now_ns() >= self.deadline_ns

    def is_drained(self) -> bool:
        """Return whether nothing claimed is left and plugins were told of it, once nothing is claimed any more."""
        return self.stopping and not self._workload.runs and not self._unsettled and self._hooks.is_told()

    def has_ended(self) -> bool:
        """Return whether no handler runs and plugins were told, once none begins any more."""
        runs = list(self._workload.runs.values())
        begun = any(run.started_ns > 0 and run.result is None for run in runs)
        return self.stopping and not begun and self._hooks.is_told()

    def is_quiet(self) -> bool:
        """Return whether nothing runs, waits to be written, or may enqueue from a hook."""
        idle_hooks = self._hooks.is_idle(self._core.clock.now_ns())
        return idle_hooks and not self._workload.runs and not self._unsettled and len(self._outbox) == 0

    def _read(self) -> Heads:
        """Return the earliest deadlines, none once nothing is claimed any more."""
        if self.stopping:
            return Heads({}, {})
        with self._core.store.reading() as session:
            return self._heads(session)

    def _guess(self, now_ns: int) -> Heads:
        """Return what the deadlines are if a task has just been enqueued that is due and begins at once.

        It spares that task a quarter of its way to the handler. The next pass reads what this one has guessed.
        """
        throttle = self._workload.throttle
        kinds = (kind for kind in self._core.registry.runnable if not throttle.is_narrow(kind))
        return Heads(dict.fromkeys(kinds, now_ns), {})

    def _heads(self, session: Session) -> Heads:
        return self._core.store.tasks.heads(session, self._core.registry.runnable, self._node.id)

    def _due(self, heads: Heads, now_ns: int) -> dict[str, int]:
        """Return the kinds that have rows to see to now, and set the deadline to when the next will."""
        self._alone_due = heads.alone_ns <= now_ns
        if self.stopping:
            self.deadline_ns = NEVER_NS  # one that passes while handlers end would ring without a pause
            return {}
        runnable = self._core.registry.runnable
        earliest = dict(heads.pending)
        for kind, at_ns in heads.deferred.items():
            if kind not in runnable:
                earliest[kind] = min(at_ns, earliest.get(kind, NEVER_NS))
        future = [at_ns for at_ns in (*earliest.values(), *heads.deferred.values()) if at_ns > now_ns]
        alone_ns = now_ns + PATIENCE_NS if self._alone_due else heads.alone_ns
        self.deadline_ns = min([*future, alone_ns, heads.stray_ns, heads.expiry_ns, self._hooks.deadline_ns()])
        if heads.accepted:  # once merged: some of it met a row that somebody else has locked
            self.deadline_ns = min(self.deadline_ns, now_ns + _LOCKED_NS)
        monotonic_ns, throttle = self._core.clock.monotonic_ns(), self._workload.throttle
        resumes_ns = throttle.resumes_ns(monotonic_ns)
        if resumes_ns != NEVER_NS:
            self.deadline_ns = min(self.deadline_ns, now_ns + resumes_ns - monotonic_ns)
        # What is held back is not due for this node: the end of a run or of a pause brings the next pass.
        due = [(kind, at_ns) for kind, at_ns in earliest.items() if at_ns <= now_ns]
        return {kind: at_ns for kind, at_ns in due if throttle.room(kind, monotonic_ns) != 0}

    def _wants_claim(self, due: dict[str, int]) -> bool:
        return bool(due) or (not self.stopping and (self._alone_due or bool(self._workload.thirsty())))

    def _merge(self, session: Session, died: list[FinishedTask]) -> None:
        """Have what hosts' transactions enqueued become tasks, a bounded number."""
        tasks = self._core.store.tasks
        merged = tasks.merge_accepted(session, self._core.recurring_kinds, died, _MERGE_BATCH)
        self._has_more_accepted = merged == _MERGE_BATCH

    def _postpone(self, runs: list[Run]) -> None:
        """Keep outcomes that could not be written yet; their rows go on being this node's."""
        for run in runs:
            self._workload.add(run)
        self._unsettled += runs
        if runs:
            self.deadline_ns = min(self.deadline_ns, self._core.clock.now_ns() + _LOCKED_NS)

    def _account(self, runs: list[Run], settlement: Settlement) -> None:
        """Count what was committed, and notice that a service is back (rule 19)."""
        if not runs:
            return
        _crash_points.reach("callboard.settle.committed")
        self.counters["failed"] += len(settlement.failures)
        reporting.log_failures(settlement.failures)
        self.counters["stale"] += settlement.stale
        self.report(settlement.finished)
        postponed = {id(run) for run in settlement.postponed}
        for run in runs:
            if id(run) in postponed:
                continue
            if isinstance(run.result, Failure) and not run.result.counted:
                self._away.add(run.task.kind)
            elif self._away and run.task.kind in self._away and not isinstance(run.result, str):
                self._away.discard(run.task.kind)
                self._hooks.want_reconcile("service", self._after_service_ns())

    def _after_service_ns(self) -> int:
        """Return when plugins may reconcile because a service is back; one may flicker."""
        now_ns = self._core.clock.monotonic_ns()
        wait_ns = max(self._next_service_ns - now_ns, 0)
        self._next_service_ns = now_ns + wait_ns + _BETWEEN_SERVICES_NS
        return self._core.clock.now_ns() + wait_ns

    def report(self, finished: list[FinishedTask]) -> None:
        """Count tasks that ended, and have plugins told."""
        if not finished:
            return
        dead = sum(1 for ended in finished if ended.dead_reason is not None)
        self.counters["dead"] += dead
        self.counters["done"] += len(finished) - dead
        if dead:
            reporting.log_deaths(finished)
        self._hooks.tell_finished(finished)
