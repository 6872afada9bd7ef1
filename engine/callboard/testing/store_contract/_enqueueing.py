"""The contract's tests of enqueues, identities, pull-ins and rows written by hand (rules 13 to 15)."""

from __future__ import annotations

import time
from functools import partial

import pytest

from callboard._clock import NEVER_NS
from callboard.errors import StoreError
from callboard.stores import DeadReason, EnqueueStatus, Finish, NewTask, TaskState
from callboard.testing.store_contract._steps import (
    DAY_NS,
    KIND,
    MANY,
    MINUTE_NS,
    NOW_NS,
    OTHER,
    SECOND_NS,
    ContractTests,
    Steps,
    at_once,
    discarded,
    kept,
    note,
    texts,
)

FAR_NS = NOW_NS + 30 * DAY_NS
"""Far enough from due that a store may keep such rows apart."""


class EnqueueingTests(ContractTests):
    """One live row for one identity, and no request is swallowed."""

    def test_a_new_row_has_what_was_enqueued_and_defaults(self, steps: Steps) -> None:
        new = note("read", group_id=b"\0g\xff", origin="a test", next_attempt_at_ns=NOW_NS + 5)

        answer = steps.enqueue(new)

        row = steps.row()
        assert answer == (row.id, EnqueueStatus.INSERTED)
        assert {name: getattr(row, name) for name in NewTask._fields} == new._asdict()
        assert (row.state, row.attempts, row.requests, row.outages) == (TaskState.PENDING, 0, 1, 0)
        assert (row.pulled_in_ns, row.last_attempted_at_ns, row.last_error) == (None, None, None)
        with steps.store.reading() as session:
            assert steps.tasks.by_id(session, row.id) == row
            assert steps.tasks.by_id(session, row.id + 1) is None

    def test_a_row_may_come_without_group_and_policy(self, steps: Steps) -> None:
        nothing = dict.fromkeys(("max_attempts", "initial_backoff_ns", "backoff_factor", "max_backoff_ns"))
        steps.enqueue(note("read", **nothing))
        row = steps.row()
        assert {name: getattr(row, name) for name in nothing} == nothing

        whole = row._replace(
            group_id=b"g", max_attempts=9, expires_at_ns=FAR_NS, initial_backoff_ns=7, backoff_factor=1.5,
            max_backoff_ns=70,
        )  # fmt: skip
        steps.do(steps.tasks.resolve, whole)

        assert steps.row() == whole

    def test_the_largest_numbers_and_the_strangest_bytes_come_back(self, steps: Steps) -> None:
        text = "\0 ünïcödé 💌 \n'\"%s ?"
        steps.enqueue(
            note(
                text,
                key=text,
                group_id=bytes(range(255)),
                origin=text.replace("\0", ""),
                expires_at_ns=NEVER_NS,
                next_attempt_at_ns=NEVER_NS,
                max_attempts=2**31 - 1,
                backoff_factor=1e300,
            )
        )

        row = steps.row()
        assert (row.data, row.group_id, row.origin) == (text.encode(), bytes(range(255)), text.replace("\0", ""))
        assert (row.expires_at_ns, row.next_attempt_at_ns) == (NEVER_NS, NEVER_NS)
        assert (row.max_attempts, row.backoff_factor) == (2**31 - 1, 1e300)

    def test_an_id_is_never_given_twice(self, steps: Steps) -> None:
        node_id = steps.node()
        first = steps.enqueue(note("read")).task_id
        [task] = steps.claim(node_id)
        steps.settle((task, Finish()))
        assert steps.rows() == []

        again = steps.enqueue(note("read")).task_id

        assert first is not None
        assert again is not None
        assert again > first

    @pytest.mark.parametrize("due_ns", [NOW_NS, FAR_NS])
    @pytest.mark.parametrize("again_ns", [NOW_NS, FAR_NS])
    def test_a_live_identity_merges_and_keeps_its_row(self, steps: Steps, due_ns: int, again_ns: int) -> None:
        first = steps.enqueue(note("read", next_attempt_at_ns=due_ns))
        before = steps.row()

        again = steps.enqueue(note("read", next_attempt_at_ns=again_ns, group_id=b"other", max_attempts=1))

        assert again == (first.task_id, EnqueueStatus.MERGED)
        assert steps.row() == before._replace(requests=2)

    @pytest.mark.parametrize("due_ns", [NOW_NS, FAR_NS])
    def test_a_live_key_with_another_payload_is_a_conflict(self, steps: Steps, due_ns: int) -> None:
        first = steps.enqueue(note("read", key="k", next_attempt_at_ns=due_ns))
        before = steps.row()

        assert steps.enqueue(note("seen", key="k")) == (first.task_id, EnqueueStatus.CONFLICT)
        assert steps.row() == before

    def test_a_request_during_a_run_asks_for_another(self, steps: Steps) -> None:
        steps.enqueue(note("read", key="k"))
        [task] = steps.claim(steps.node())

        assert steps.enqueue(note("read", key="k")) == (task.id, EnqueueStatus.RERUN)
        assert steps.enqueue(note("seen", key="k")) == (task.id, EnqueueStatus.CONFLICT)

        assert steps.held(task)[task.id].requests == task.requests + 1

    def test_a_deferred_row_merges(self, steps: Steps) -> None:
        steps.enqueue(note("read"))
        steps.do(steps.tasks.set_aside, KIND, NOW_NS, NOW_NS + MINUTE_NS, MANY)

        assert steps.enqueue(note("read")).status == EnqueueStatus.MERGED
        assert steps.row().state == TaskState.DEFERRED

    @pytest.mark.parametrize("due_ns", [NOW_NS, FAR_NS])
    def test_an_overdue_row_is_no_obstacle(self, steps: Steps, due_ns: int) -> None:
        late = note("late", expires_at_ns=NOW_NS + MINUTE_NS, next_attempt_at_ns=due_ns)
        tried = note("tried", max_attempts=1, next_attempt_at_ns=due_ns)
        steps.enqueue(tried)
        [task] = steps.claim(steps.node(), now_ns=due_ns)
        steps.settle((task, kept(task, attempts=1, last_error="no")))
        steps.enqueue(late)
        before = steps.rows()

        after_ns = NOW_NS + MINUTE_NS
        for new in (late, tried):
            fresh = new._replace(created_at_ns=after_ns, expires_at_ns=FAR_NS)
            assert steps.enqueue(fresh).status == EnqueueStatus.INSERTED

        assert {row.id for row in before}.isdisjoint(row.id for row in steps.rows())
        assert [(dead.task_id, dead.reason, dead.died_at_ns) for dead in steps.dead()] == [
            (before[1].id, DeadReason.EXPIRED, after_ns),
            (before[0].id, DeadReason.EXHAUSTED, after_ns),
        ]
        assert [(ended.task, ended.outcome, ended.dead_reason) for ended in steps.died] == [
            (before[1], None, DeadReason.EXPIRED),
            (before[0], None, DeadReason.EXHAUSTED),
        ]

    def test_an_overdue_row_of_a_recurring_kind_is_live(self, steps: Steps) -> None:
        steps.enqueue(note("read", expires_at_ns=NOW_NS))
        assert steps.enqueue(note("read"), [KIND]).status == EnqueueStatus.MERGED

    def test_an_overdue_row_that_runs_is_live(self, steps: Steps) -> None:
        steps.enqueue(note("read", expires_at_ns=NOW_NS))
        steps.claim(steps.node())
        assert steps.enqueue(note("read")).status == EnqueueStatus.RERUN

    def test_dead_rows_block_nothing(self, steps: Steps) -> None:
        steps.enqueue(note("read"))
        task = steps.row()
        steps.do(steps.tasks.bury, [(task.id, discarded(task))], NOW_NS)

        assert steps.enqueue(note("read")).status == EnqueueStatus.INSERTED

    def test_many_are_answered_in_their_order_as_one_by_one(self, steps: Steps) -> None:
        steps.enqueue(note("live"))
        steps.enqueue(note("key", key="k"))
        steps.enqueue(note("far", next_attempt_at_ns=FAR_NS))
        steps.enqueue(note("late", expires_at_ns=NOW_NS))

        answers = steps.enqueue_many(
            [
                note("new"),
                note("live"),
                note("other", key="k"),
                note("far"),
                note("late"),
                note("new"),
                note("sleeps", next_attempt_at_ns=FAR_NS),
                note("sleeps"),
            ]
        )

        assert [str(answer.status) for answer in answers] == [
            "inserted", "merged", "conflict", "merged", "inserted", "merged", "inserted", "merged",
        ]  # fmt: skip
        by_id = {row.id: row.data.decode() for row in steps.rows()}
        assert [by_id[answer.task_id or 0] for answer in answers] == [
            "new", "live", "key", "far", "late", "new", "sleeps", "sleeps",
        ]  # fmt: skip
        assert [row.requests for row in steps.rows() if row.data in (b"new", b"live", b"sleeps")] == [2, 2, 2]
        assert texts(steps.dead()) == ["late"]
        assert steps.enqueue_many([]) == []

    @pytest.mark.parametrize("due_ns", [NOW_NS, FAR_NS])
    def test_of_two_that_enqueue_at_once_one_inserts(self, steps: Steps, other: Steps, due_ns: int) -> None:
        for number in range(10):
            new = note(f"read {number}", next_attempt_at_ns=due_ns)
            answers = at_once(partial(steps.enqueue, new), partial(other.enqueue, new))
            assert sorted(answer.status for answer in answers) == ["inserted", "merged"]
            assert len({answer.task_id for answer in answers}) == 1

        assert [row.requests for row in steps.rows()] == [2] * 10

    def test_two_that_enqueue_many_at_once_do_not_deadlock(self, steps: Steps, other: Steps) -> None:
        new = [note(str(number)) for number in range(1_000)]

        forth, back = at_once(lambda: steps.enqueue_many(new), lambda: other.enqueue_many(new[::-1]))

        assert [answer.task_id for answer in forth] == [answer.task_id for answer in back[::-1]]
        assert {row.requests for row in steps.rows()} == {2}

    # Pulling in

    @pytest.mark.parametrize("due_ns", [NOW_NS + SECOND_NS, FAR_NS])
    def test_a_pull_in_lowers_the_deadline_and_never_raises_it(self, steps: Steps, due_ns: int) -> None:
        new = note("read", next_attempt_at_ns=due_ns)
        steps.enqueue(new)
        before = steps.row()

        assert steps.do(steps.tasks.pull_in, new.identity, due_ns + 1)
        assert steps.row() == before
        assert steps.do(steps.tasks.pull_in, new.identity, NOW_NS)
        assert steps.row() == before._replace(next_attempt_at_ns=NOW_NS)
        assert steps.heads() == {KIND: NOW_NS}

    def test_a_pull_in_of_nothing_says_so(self, steps: Steps) -> None:
        assert not steps.do(steps.tasks.pull_in, note("read").identity, NOW_NS)

    def test_a_pull_in_during_a_run_is_kept_apart_and_merged_at_its_end(self, steps: Steps) -> None:
        new = note("read")
        steps.enqueue(new)
        [task] = steps.claim(steps.node())
        later = kept(task, next_attempt_at_ns=NOW_NS + MINUTE_NS)

        for at_ns in (NOW_NS + 7, NOW_NS + 5, NOW_NS + 9):
            assert steps.do(steps.tasks.pull_in, new.identity, at_ns)
        assert (steps.row().next_attempt_at_ns, steps.row().pulled_in_ns) == (NOW_NS, NOW_NS + 5)
        steps.settle((task, later))

        assert (steps.row().next_attempt_at_ns, steps.row().pulled_in_ns) == (NOW_NS + 5, None)
        [task] = steps.claim(steps.node(), now_ns=NOW_NS + 5)
        steps.settle((task, later))
        assert steps.row().next_attempt_at_ns == NOW_NS + MINUTE_NS

    def test_a_pull_in_during_a_run_never_puts_the_next_one_off(self, steps: Steps) -> None:
        new = note("read")
        steps.enqueue(new)
        [task] = steps.claim(steps.node())
        steps.do(steps.tasks.pull_in, new.identity, NOW_NS + MINUTE_NS)
        steps.settle((task, kept(task, next_attempt_at_ns=NOW_NS + 1)))

        assert (steps.row().next_attempt_at_ns, steps.row().pulled_in_ns) == (NOW_NS + 1, None)

    def test_a_deferred_row_is_pulled_in(self, steps: Steps) -> None:
        new = note("read")
        steps.enqueue(new)
        steps.do(steps.tasks.set_aside, KIND, NOW_NS, NOW_NS + MINUTE_NS, MANY)

        assert steps.do(steps.tasks.pull_in, new.identity, NOW_NS + 1)
        assert (steps.row().state, steps.row().next_attempt_at_ns) == (TaskState.DEFERRED, NOW_NS + 1)

    # Rows by hand

    def write_by_hand(self, steps: Steps, new: NewTask) -> None:
        """Insert a row with plain SQL and no column that has a default."""
        columns = {"kind": new.kind, "identity": new.identity, "data": new.data, "data_hash": new.data_hash}
        names = ", ".join(columns)
        steps.run(f"INSERT INTO callboard_task ({names}) VALUES ({self.marks(len(columns))})", *columns.values())

    def test_a_row_by_hand_is_due_now_and_expires_in_three_days(self, steps: Steps) -> None:
        before_ns = time.time_ns()
        self.write_by_hand(steps, note("read"))

        row = steps.row()
        assert abs(row.created_at_ns - before_ns) < MINUTE_NS, "by the database's clock"
        assert abs(row.expires_at_ns - row.created_at_ns - 3 * DAY_NS) < SECOND_NS
        assert row.next_attempt_at_ns <= row.created_at_ns
        assert (row.state, row.attempts, row.requests, row.token, row.outages) == ("pending", 0, 1, 0, 0)
        left_out = (row.group_id, row.max_attempts, row.initial_backoff_ns, row.backoff_factor, row.max_backoff_ns)
        assert left_out == (None,) * 5
        assert (row.last_error, row.origin, row.pulled_in_ns, row.last_attempted_at_ns) == (None,) * 4
        assert steps.heads() == {KIND: row.next_attempt_at_ns}
        assert texts(steps.claim(steps.node(), now_ns=before_ns)) == ["read"]

    @pytest.mark.parametrize("due_ns", [NOW_NS, FAR_NS])
    def test_a_row_by_hand_cannot_take_a_live_identity(self, steps: Steps, due_ns: int) -> None:
        steps.enqueue(note("read", next_attempt_at_ns=due_ns))
        with pytest.raises(StoreError):
            self.write_by_hand(steps, note("read"))
        assert len(steps.rows()) == 1

    def test_only_the_identity_of_a_row_by_hand_is_unique(self, steps: Steps) -> None:
        self.write_by_hand(steps, note("read", key="a"))
        self.write_by_hand(steps, note("read", key="b"))
        with pytest.raises(StoreError):
            self.write_by_hand(steps, note("seen", key="b", kind=OTHER))
        assert texts(steps.rows()) == ["read", "read"]

    def test_an_enqueue_merges_into_a_row_by_hand(self, steps: Steps) -> None:
        self.write_by_hand(steps, note("read"))
        assert steps.enqueue(note("read", created_at_ns=time.time_ns())).status == EnqueueStatus.MERGED

    def test_the_promised_columns_are_there(self, steps: Steps) -> None:
        names = (
            "id, kind, group_id, identity, data, data_hash, state, attempts, max_attempts, created_at_ns,"
            " expires_at_ns, next_attempt_at_ns, last_attempted_at_ns, initial_backoff_ns, backoff_factor,"
            " max_backoff_ns, requests, pulled_in_ns, token, origin, last_error"
        )
        dead = names.replace(" state,", "").replace(" next_attempt_at_ns, last_attempted_at_ns,", "")
        dead = dead.replace(" requests, pulled_in_ns, token,", "") + ", task_id, reason, died_at_ns"
        with steps.store.reading() as session:
            assert session.rows(f"SELECT {names} FROM callboard_task") == []
            assert session.rows(f"SELECT {dead} FROM callboard_dead_task") == []
