"""The contract's property: whatever steps are made in whatever order, the rows are as a small model has them."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from callboard._lifecycle import after_crash_ns
from callboard.stores import (
    Bury,
    DeadReason,
    Finish,
    Held,
    Keep,
    NewTask,
)
from callboard.testing.store_contract._model import Model, Row
from callboard.testing.store_contract._steps import (
    DAY_NS,
    KIND,
    MINUTE_NS,
    NOW_NS,
    OTHER,
    SECOND_NS,
    ContractTests,
    MakeStore,
    Steps,
    note,
)

KEYS = st.sampled_from("abcd")  # few, so that most steps concern the same rows
KINDS = st.sampled_from([KIND, KIND, OTHER])
GROUPS = st.sampled_from([None, b"g", b"g", b"h"])

SORTED_BY: dict[str, tuple[str, ...]] = {
    "park": (),
    "unpark": ("group_id",),
    "set_aside": ("kind",),
    "take_up": ("kind",),
    "set_strays_aside": ("kind",),
}
"""What chooses the rows of each step that puts some away."""

MAX_CRASHES = 2
TABLES = ("callboard_task", "callboard_dead_task", "callboard_node")


class Machine(RuleBasedStateMachine):
    """Make each step on the store and on the model."""

    def __init__(self, store: Any) -> None:
        """Begin with empty tables and two nodes."""
        super().__init__()
        self.steps = Steps(store)
        for table in TABLES:
            self.steps.run(f"DELETE FROM {table}")
        self.model = Model()
        self.nodes = [self.steps.node(), self.steps.node()]
        self.now_ns = NOW_NS

    def teardown(self) -> None:
        """Give the nodes' locks back."""
        for node_id in self.nodes:
            self.steps.store.nodes.unlock(node_id)

    @rule(
        step=st.sampled_from(["time_passes", "time_passes", "the_clock_is_set_back"]),
        duration_ns=st.sampled_from([1, SECOND_NS, SECOND_NS, MINUTE_NS, DAY_NS]),
    )
    def set_the_clock(self, step: str, duration_ns: int) -> None:
        """Let time pass or go back."""
        getattr(self, step)(duration_ns)

    @rule(
        step=st.sampled_from(["park", "unpark", "set_aside", "take_up", "set_strays_aside"]),
        kind=KINDS,
        group_id=st.sampled_from([b"g", b"h"]),
    )
    def put_away(self, step: str, **of: Any) -> None:
        """Put rows where claims do not see them, or back. It is one rule, so that runs are more frequent."""
        getattr(self, step)(**{name: value for name, value in of.items() if name in SORTED_BY[step]})

    def time_passes(self, duration_ns: int) -> None:
        """Let time pass."""
        self.now_ns += duration_ns

    @initialize(groups=st.lists(GROUPS, min_size=4, max_size=4))
    def enqueue_some(self, groups: list[bytes | None]) -> None:
        """Begin with something to do."""
        new = [
            note(key, key=key, group_id=group_id, max_attempts=1)
            for key, group_id in zip("abcd", groups, strict=True)
        ]
        for each, answer in zip(new, self.steps.enqueue_many(new), strict=True):
            assert answer.status == "inserted"
            assert answer.task_id is not None
            self.model.insert(each, answer.task_id)

    @rule(
        key=KEYS,
        text=st.sampled_from(["", "", "!"]),
        kind=KINDS,
        group_id=GROUPS,
        max_attempts=st.sampled_from([1, 3, None]),
        delay_ns=st.sampled_from([0, 0, SECOND_NS, DAY_NS]),
        lifetime_ns=st.sampled_from([MINUTE_NS, 9 * DAY_NS]),
    )
    def enqueue(self, key: str, text: str, **columns: Any) -> None:
        """Enqueue one of few identities, sometimes with another payload."""
        new = self.compose(key, text, **columns)
        live = self.model.of_identity(new.identity)
        answer = self.steps.enqueue(new)
        assert answer.task_id is not None
        if live is not None and live.task.state != "running":
            if live.task.expires_at_ns <= self.now_ns:
                self.model.bury(live, DeadReason.EXPIRED, live.task.attempts)
                live = None
            elif live.task.max_attempts is not None and live.task.attempts >= live.task.max_attempts:
                self.model.bury(live, DeadReason.EXHAUSTED, live.task.attempts)
                live = None
        if live is None:
            assert answer.status == "inserted"
            self.model.insert(new, answer.task_id)
        elif live.task.data_hash != new.data_hash:
            assert answer == (live.task.id, "conflict")
        else:
            assert answer == (live.task.id, "rerun" if live.task.state == "running" else "merged")
            live.set(requests=live.task.requests + 1)

    def compose(self, key: str, text: str, *, delay_ns: int, lifetime_ns: int, **columns: Any) -> NewTask:
        """Return a row to enqueue."""
        return note(
            key + text,
            key=key,
            **columns,
            created_at_ns=self.now_ns,
            expires_at_ns=self.now_ns + lifetime_ns,
            next_attempt_at_ns=self.now_ns + delay_ns,
        )

    @rule(data=st.data(), delay_ns=st.sampled_from([-1, 1, MINUTE_NS]))
    def pull_in(self, data: st.DataObject, delay_ns: int) -> None:
        """Lower a deadline, preferably of what runs."""
        running = [row.task.identity for row in self.model.running()]
        identity = data.draw(st.sampled_from(running or [note("", key=key).identity for key in "abcde"]))
        at_ns = self.now_ns + delay_ns
        live = self.model.of_identity(identity)
        assert self.steps.do(self.steps.tasks.pull_in, identity, at_ns) == (live is not None)
        if live is None:
            return
        if live.task.state == "running":
            pulled_ns = live.task.pulled_in_ns
            live.set(pulled_in_ns=at_ns if pulled_ns is None else min(at_ns, pulled_ns))
        else:
            live.set(next_attempt_at_ns=min(at_ns, live.task.next_attempt_at_ns))

    @precondition(lambda self: any(row.is_claimable(self.now_ns) for row in self.model.rows.values()))
    @rule(
        place=st.sampled_from([0, 1]),
        kinds=st.sampled_from([(KIND,), (OTHER, KIND)]),
        limit=st.sampled_from([1, 1, 2, 99]),
        grouped_only=st.sampled_from([False, False, True]),
    )
    def claim(self, place: int, kinds: tuple[str, ...], limit: int, grouped_only: bool) -> None:
        """Start what is due on one of the nodes."""
        node_id = self.nodes[place]
        elsewhere = self.model.elsewhere(node_id)
        may_run = {
            row.task.id: row
            for row in self.model.rows.values()
            if row.is_claimable(self.now_ns)
            and row.task.kind in kinds
            and row.task.group_id not in elsewhere
            and (row.task.group_id is not None or not grouped_only)
        }
        claimed = self.steps.claim(node_id, kinds, now_ns=self.now_ns, limit=limit, grouped_only=grouped_only)
        deadlines = sorted(row.task.next_attempt_at_ns for row in may_run.values())
        assert [task.next_attempt_at_ns for task in claimed] == deadlines[:limit]
        for task in claimed:
            row = may_run.pop(task.id)
            assert task == row.task._replace(state="running", token=row.task.token + 1, owner=node_id)
            self.model.start(row, node_id, self.now_ns)

    @precondition(lambda self: any(row.alone for row in self.model.rows.values()))
    @rule(place=st.sampled_from([0, 1]), crashes=st.booleans())
    def claim_alone(self, place: int, crashes: bool) -> None:
        """Start the next row that must run alone, which may take its node down."""
        node_id = self.nodes[place]
        elsewhere = self.model.elsewhere(node_id)
        may_run = {
            row.task.id: row
            for row in self.model.rows.values()
            if row.is_due(self.now_ns) and row.alone and row.task.group_id not in elsewhere
        }
        claimed = self.steps.do(self.steps.tasks.alone_due, [KIND, OTHER], node_id, self.now_ns)
        deadlines = sorted(row.task.next_attempt_at_ns for row in may_run.values())
        assert [task.next_attempt_at_ns for task in claimed] == deadlines[:1]
        for task in claimed:
            row = may_run[task.id]
            assert task == row.task._replace(state="running", token=row.task.token + 1, owner=node_id)
            self.steps.do(self.steps.tasks.start, [task.id], self.now_ns, node_id)
            self.model.start(row, node_id, self.now_ns)
            if crashes:
                self.crash(place)

    @precondition(lambda self: self.model.running())
    @rule(data=st.data(), end=st.sampled_from(["finish", "keep", "fail", "fail", "bury", "hand back"]))
    def settle(self, data: st.DataObject, end: str) -> None:
        """End a run."""
        row = data.draw(st.sampled_from(self.model.running()))
        if row.cancelled:
            self.end_cancelled(row)
            return
        task = row.task
        if end == "finish":
            self.steps.settle((task, Finish()), now_ns=self.now_ns)
            del self.model.rows[task.id]
        elif end == "hand back":
            self.steps.do(self.steps.tasks.hand_back, [task.id])
            self.model.release(row, task.next_attempt_at_ns)
        elif end == "bury":
            self.steps.settle((task, Bury(DeadReason.DISCARDED, task.attempts, "no")), now_ns=self.now_ns)
            self.model.bury(row, DeadReason.DISCARDED, task.attempts)
        else:
            failed = end == "fail"
            next_ns = self.now_ns + (SECOND_NS if failed else DAY_NS)
            attempts = task.attempts + 1 if failed else 0
            error = "it failed" if failed else None
            keep = Keep(attempts, 1 - failed, next_ns, task.created_at_ns, task.expires_at_ns + 1, error)
            self.steps.settle((task, keep), now_ns=self.now_ns)
            row.set(attempts=attempts, outages=1 - failed, expires_at_ns=task.expires_at_ns + 1, last_error=error)
            self.model.release(row, next_ns)
            row.alone, row.crashes = False, 0

    def end_cancelled(self, row: Row) -> None:
        """Bury a row whose run was cancelled; it is born again if it was wanted since."""
        held = Held(row.task.token, row.task.requests, row.cancelled)
        self.steps.do(self.steps.tasks.bury_cancelled, [(row.task, held)], self.now_ns, ())
        self.bury_cancelled(row)

    def bury_cancelled(self, row: Row) -> None:
        """Do that to the model."""
        task = row.task
        self.model.bury(row, DeadReason.CANCELLED, task.attempts)
        if task.requests > row.cancelled:
            span_ns = task.expires_at_ns - task.created_at_ns
            columns = {name: getattr(task, name) for name in NewTask._fields}
            columns.update(created_at_ns=self.now_ns, next_attempt_at_ns=self.now_ns)
            new = NewTask(**{**columns, "expires_at_ns": self.now_ns + span_ns})
            [born] = [each for each in self.steps.rows() if each.identity == task.identity]
            self.model.insert(new, born.id)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), wanted=st.booleans())
    def cancel(self, data: st.DataObject, wanted: bool) -> None:
        """Cancel a task, whatever its state; a running one may be wanted again."""
        row = data.draw(st.sampled_from(self.model.running() or list(self.model.rows.values())))
        died = self.steps.do(self.steps.tasks.cancel, row.task, self.now_ns)
        if row.task.state != "running":
            assert died == (row.task, None, DeadReason.CANCELLED)
            self.model.bury(row, DeadReason.CANCELLED, row.task.attempts)
            return
        assert died is None
        if not row.cancelled:
            row.cancelled = row.task.requests
            row.set(token=row.task.token + 1)
        if wanted:
            again = NewTask(**{name: getattr(row.task, name) for name in NewTask._fields})
            assert self.steps.enqueue(again) == (row.task.id, "rerun")
            row.set(requests=row.task.requests + 1)

    def park(self) -> None:
        """Park what is due in groups that run."""
        busy = {row.task.group_id for row in self.model.running()} - {None}
        rows = [
            row for row in self.model.rows.values() if row.is_claimable(self.now_ns) and row.task.group_id in busy
        ]
        self.steps.do(self.steps.tasks.park, [row.task.id for row in rows])
        for row in rows:
            row.parked = True

    def unpark(self, group_id: bytes) -> None:
        """Unpark a group."""
        self.steps.do(self.steps.tasks.unpark, [group_id])
        for row in self.model.rows.values():
            row.parked = row.parked and row.task.group_id != group_id

    def set_aside(self, kind: str) -> None:
        """Defer a kind."""
        until_ns = self.now_ns + MINUTE_NS
        ids = set(self.steps.do(self.steps.tasks.set_aside, kind, self.now_ns, until_ns, 99))
        for row in self.model.rows.values():
            task = row.task
            tries = task.max_attempts is None or task.attempts < task.max_attempts
            fresh = row.is_claimable(self.now_ns) and task.expires_at_ns > self.now_ns and tries
            again = task.state == "deferred" and task.next_attempt_at_ns <= self.now_ns
            aside = task.kind == kind and (fresh or again)
            assert (task.id in ids) == aside
            if aside:
                row.set(state="deferred", next_attempt_at_ns=until_ns)

    def take_up(self, kind: str) -> None:
        """Take a kind up."""
        self.steps.do(self.steps.tasks.take_up, [kind], [], self.now_ns, 99)
        for row in self.model.rows.values():
            if row.task.state == "deferred" and row.task.kind == kind:
                row.set(state="pending", next_attempt_at_ns=min(row.task.next_attempt_at_ns, self.now_ns))

    def set_strays_aside(self, kind: str) -> None:
        """Defer what must run alone and is of another kind."""
        until_ns = self.now_ns + MINUTE_NS
        aside = self.steps.do(self.steps.tasks.set_strays_aside, [kind], self.now_ns, until_ns, 99)
        ids = {task_id for of_kind in aside.values() for task_id in of_kind}
        for row in self.model.rows.values():
            stray = row.is_due(self.now_ns) and row.alone and row.task.kind != kind
            assert (row.task.id in ids) == stray
            if stray:
                row.set(state="deferred", next_attempt_at_ns=until_ns)

    def the_clock_is_set_back(self, duration_ns: int) -> None:
        """Set the clock back, and do what a node does that notices."""
        self.now_ns -= duration_ns
        self.steps.do(self.steps.tasks.keep_due, self.now_ns, duration_ns)
        self.steps.do(self.steps.tasks.shorten_backoff, self.now_ns, SECOND_NS)
        for row in self.model.rows.values():
            task = row.task
            if task.state != "deferred" and 0 < task.next_attempt_at_ns - self.now_ns <= duration_ns:
                row.set(next_attempt_at_ns=task.next_attempt_at_ns - duration_ns)
            latest_ns = self.now_ns + (task.max_backoff_ns or SECOND_NS)
            failed = task.last_error is not None or (row.alone and row.crashes > 0)
            too_late = row.task.next_attempt_at_ns > latest_ns and (task.last_attempted_at_ns or 0) > self.now_ns
            if task.state == "pending" and failed and too_late:
                row.set(next_attempt_at_ns=latest_ns, last_attempted_at_ns=self.now_ns)

    @precondition(lambda self: self.model.running())
    @rule(place=st.sampled_from([0, 1]))
    def crash(self, place: int) -> None:
        """Let a node be gone, and the other one find out."""
        gone = self.nodes[place]
        self.steps.lose(gone)
        self.nodes[place] = self.steps.node()
        rescued, died = self.steps.rescue(self.now_ns, max_crashes=MAX_CRASHES)
        orphans = self.model.running(gone)
        expected = 0
        for row in orphans:
            crashes = row.crashes + 1 if row.alone and len(orphans) == 1 else row.crashes
            if row.cancelled:
                self.bury_cancelled(row)
            elif crashes >= MAX_CRASHES:
                self.model.bury(row, DeadReason.CRASHED, row.task.attempts)
            else:
                expected += 1
                not_before_ns = after_crash_ns(row.task, crashes, self.now_ns)
                row.set(token=row.task.token + 1)
                self.model.release(row, row.task.next_attempt_at_ns)
                row.set(next_attempt_at_ns=max(not_before_ns, row.task.next_attempt_at_ns))
                row.alone, row.crashes = True, crashes
        assert (rescued, len(died)) == (expected, len(orphans) - expected)
        if orphans:
            busy = {row.task.group_id for row in self.model.running()}
            for row in self.model.rows.values():
                row.parked = row.parked and row.task.group_id in busy

    @invariant()
    def the_rows_are_as_the_model_has_them(self) -> None:
        """Compare everything that can be seen."""
        rows = [self.model.rows[task_id].task for task_id in sorted(self.model.rows)]
        assert self.steps.rows() == rows
        dead = [(row.task_id, row.data, row.reason, row.attempts) for row in self.steps.dead()]
        assert sorted(dead) == sorted(self.model.dead)
        assert self.steps.held(*rows) == {
            row.task.id: Held(row.task.token, row.task.requests, row.cancelled) for row in self.model.running()
        }
        heads: dict[str, int] = {}
        for row in self.model.rows.values():
            if row.task.state == "pending" and not row.parked and not row.alone:
                at_ns = row.task.next_attempt_at_ns
                heads[row.task.kind] = min(at_ns, heads.get(row.task.kind, at_ns))
        assert self.steps.heads() == heads


class MachineTests(ContractTests):
    """The property.

    Attributes:
        examples: how many sequences of steps are made up.
    """

    examples: int = 100

    def test_the_rows_follow_the_model_whatever_happens(self, make_store: MakeStore) -> None:
        store = make_store()
        store.prepare(NOW_NS)
        repeatable = settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=self.examples,
            stateful_step_count=40,
            report_multiple_bugs=False,
        )

        with store.thread():  # or a store may connect anew for each step
            run_state_machine_as_test(lambda: Machine(store), settings=repeatable)  # type: ignore[arg-type]
