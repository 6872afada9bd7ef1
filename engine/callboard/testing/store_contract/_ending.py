"""The contract's tests of how a run ends: outcomes, burials, cancelling, and the dead (rules 4, 8, 9 and 10)."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.stores import (
    DeadReason,
    DeadTask,
    Finish,
    FinishedTask,
    Held,
    Keep,
    Task,
    TaskState,
)
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
    discarded,
    kept,
    note,
    texts,
)


class EndingTests(ContractTests):
    """Settled, buried and cancelled rows, the dead-task table, and backoffs after the clock was set."""

    def test_finish_deletes_the_row(self, steps: Steps) -> None:
        steps.enqueue_many([note("done"), note("sleeps", next_attempt_at_ns=NOW_NS + DAY_NS)])
        [task] = steps.claim(steps.node())

        steps.settle((task, Finish()))

        assert (texts(steps.rows()), steps.dead(), steps.held(task)) == (["sleeps"], [], {})

    @pytest.mark.parametrize("next_ns", [NOW_NS + 1, NOW_NS + DAY_NS])
    def test_keep_writes_its_columns_and_leaves_the_others(self, steps: Steps, next_ns: int) -> None:
        steps.enqueue(note("read", group_id=b"g", origin="a test"))
        [task] = steps.claim(steps.node())
        keep = Keep(2, 3, next_ns, NOW_NS + 4, NOW_NS + 5 * DAY_NS, "it failed")

        steps.settle((task, keep))

        assert steps.row() == task._replace(
            **keep._asdict(), state="pending", last_attempted_at_ns=NOW_NS, owner=None
        )
        assert steps.heads() == {KIND: next_ns}
        assert steps.due(now_ns=next_ns - 1) == []
        assert texts(steps.claim(steps.node(), now_ns=next_ns)) == ["read"]
        assert steps.enqueue(note("read")).status == "rerun"

    def test_bury_keeps_the_whole_task_with_reason_and_error(self, steps: Steps) -> None:
        new = note("read", group_id=b"g", origin="a test", key="k")
        steps.enqueue(new)
        [task] = steps.claim(steps.node())

        steps.settle((task, discarded(task, "why\nnot")._replace(attempts=7)), now_ns=NOW_NS + 5)

        [dead] = steps.dead()
        same = {name: getattr(task, name) for name in DeadTask._fields if name in Task._fields}
        expected = {**same, "id": dead.id, "task_id": task.id, "attempts": 7, "last_error": "why\nnot"}
        assert dead._asdict() == {**expected, "reason": DeadReason.DISCARDED, "died_at_ns": NOW_NS + 5}
        assert steps.rows() == []

    def test_a_batch_may_hold_every_sort_of_end(self, steps: Steps) -> None:
        steps.enqueue_many([note(text) for text in ("done", "kept", "dead", "runs")])
        done, again, dead, runs = steps.claim(steps.node())

        steps.settle((dead, discarded(dead)), (done, Finish()), (again, kept(again)))

        assert [(row.data, row.state) for row in steps.rows()] == [(b"kept", "pending"), (b"runs", "running")]
        assert (texts(steps.dead()), set(steps.held(runs))) == (["dead"], {runs.id})
        steps.settle()
        assert len(steps.rows()) == 2

    @pytest.mark.parametrize("reason", DeadReason)
    def test_rows_that_never_ran_are_buried_too(self, steps: Steps, reason: DeadReason) -> None:
        steps.enqueue(note("read", next_attempt_at_ns=NOW_NS + DAY_NS))
        task = steps.row()
        steps.do(steps.tasks.bury, [(task.id, discarded(task)._replace(reason=reason, last_error=None))], NOW_NS)

        assert [(dead.reason, dead.last_error, dead.data) for dead in steps.dead()] == [(reason, None, b"read")]
        assert steps.rows() == []

    # Cancelling

    def test_a_pending_task_is_cancelled_at_once(self, steps: Steps) -> None:
        steps.enqueue(note("read"))
        task = steps.row()

        assert steps.do(steps.tasks.cancel, task, NOW_NS) == FinishedTask(task, None, DeadReason.CANCELLED)

        assert [(dead.reason, dead.task_id) for dead in steps.dead()] == [("cancelled", task.id)]
        assert steps.rows() == []

    def test_a_deferred_task_is_cancelled_at_once(self, steps: Steps) -> None:
        steps.enqueue(note("read"))
        steps.do(steps.tasks.set_aside, KIND, NOW_NS, NOW_NS + MINUTE_NS, MANY)
        assert steps.do(steps.tasks.cancel, steps.row(), NOW_NS) is not None
        assert (steps.rows(), texts(steps.dead())) == ([], ["read"])

    def test_a_running_task_is_marked_and_occupies_its_group_until_it_is_buried(self, steps: Steps) -> None:
        node_id = steps.node()
        steps.enqueue_many([note("read", group_id=b"g"), note("next", group_id=b"g")])
        steps.enqueue(note("read", group_id=b"g"))
        [task] = steps.claim(node_id, limit=1)
        assert task.requests == 2

        assert steps.do(steps.tasks.cancel, steps.rows()[0], NOW_NS) is None

        [held] = steps.held(task).values()
        assert (held.requests, held.cancelled) == (2, 2)
        assert held.token == task.token + 1, "its run no longer holds the row"
        assert steps.dead() == []
        assert steps.due(steps.node()) == []

        steps.do(steps.tasks.cancel, steps.rows()[0], NOW_NS)
        assert steps.held(task) == {task.id: held}, "once is enough"

        buried = steps.do(steps.tasks.bury_cancelled, [(task, held)], NOW_NS, ())
        assert buried == [FinishedTask(task, None, DeadReason.CANCELLED)]
        assert (texts(steps.dead()), texts(steps.due(steps.node()))) == (["read"], ["next"])

    def test_a_request_after_the_cancel_starts_a_new_life(self, steps: Steps) -> None:
        steps.enqueue(note("read", group_id=b"g"))
        [task] = steps.claim(steps.node())
        steps.do(steps.tasks.cancel, steps.row(), NOW_NS)
        assert steps.enqueue(note("read")).status == "rerun"
        [held] = steps.held(task).values()
        assert held == Held(task.token + 1, 2, 1)

        after_ns = NOW_NS + MINUTE_NS
        steps.do(steps.tasks.bury_cancelled, [(task, held)], after_ns, ())

        row = steps.row()
        assert (row.id > task.id, row.requests, row.attempts, row.group_id) == (True, 1, 0, b"g")
        assert (row.created_at_ns, row.next_attempt_at_ns) == (after_ns, after_ns)
        assert row.expires_at_ns - row.created_at_ns == task.expires_at_ns - task.created_at_ns
        assert [(dead.task_id, dead.reason) for dead in steps.dead()] == [(task.id, "cancelled")]

    # The dead

    def bury(self, steps: Steps, text: str, died_at_ns: int, **columns: Any) -> DeadTask:
        """Return the row of a task that died."""
        task_id = steps.enqueue(note(text, **columns)).task_id
        [task] = [row for row in steps.rows() if row.id == task_id]
        steps.do(steps.tasks.bury, [(task.id, discarded(task))], died_at_ns)
        return steps.dead()[-1]

    def test_dead_rows_are_listed_by_id_and_found_by_it(self, steps: Steps) -> None:
        a = self.bury(steps, "a", NOW_NS + 3, group_id=b"g")
        b = self.bury(steps, "b", NOW_NS + 2, group_id=b"g", kind=OTHER)
        c = self.bury(steps, "c", NOW_NS + 1)

        assert steps.dead() == [a, b, c]
        assert steps.dead(after_id=a.id, limit=1) == [b]
        assert steps.dead(group_id=b"g") == [a, b]
        assert steps.dead(group_id=b"g", kind=OTHER) == [b]
        with steps.store.reading() as session:
            assert steps.tasks.dead_by_id(session, b.id) == b
            assert steps.tasks.dead_by_id(session, c.id + 1) is None

    def test_a_dead_row_is_forgotten(self, steps: Steps) -> None:
        a, b = self.bury(steps, "a", NOW_NS), self.bury(steps, "a", NOW_NS)
        steps.do(steps.tasks.forget_dead, a.id)
        assert steps.dead() == [b]

    def test_the_oldest_dead_are_pruned_a_bounded_number_at_once(self, steps: Steps) -> None:
        for age in (1, 4, 2, 3, 0):
            self.bury(steps, str(age), NOW_NS - age)

        assert steps.do(steps.tasks.prune_dead, NOW_NS - 1, 2) == 2
        assert texts(steps.dead()) == ["1", "2", "0"]
        assert steps.do(steps.tasks.prune_dead, NOW_NS - 1, 2) == 1
        assert steps.do(steps.tasks.prune_dead, NOW_NS - 1, 2) == 0
        assert texts(steps.dead()) == ["1", "0"], "who died at that moment has not died before it"

    # A clock that was set back

    def test_only_backoffs_beyond_their_cap_are_shortened(self, steps: Steps) -> None:
        new = [
            note("its own cap", max_backoff_ns=5 * SECOND_NS),
            note("the default cap", max_backoff_ns=None),
            note("soon enough", max_backoff_ns=5 * SECOND_NS),
            note("deferred by its handler"),
            note("failed before the clock's new time"),
        ]
        steps.enqueue_many([*new, note("enqueued for later", next_attempt_at_ns=NOW_NS + DAY_NS)])
        claimed = steps.claim(steps.node(), now_ns=NOW_NS + MINUTE_NS)
        steps.settle(
            (claimed[0], kept(claimed[0], last_error="no", next_attempt_at_ns=NOW_NS + DAY_NS)),
            (claimed[1], kept(claimed[1], last_error="no", next_attempt_at_ns=NOW_NS + DAY_NS)),
            (claimed[2], kept(claimed[2], last_error="no", next_attempt_at_ns=NOW_NS + 5 * SECOND_NS)),
            (claimed[3], kept(claimed[3], next_attempt_at_ns=NOW_NS + DAY_NS)),
        )
        steps.do(steps.tasks.hand_back, [claimed[4].id])
        [early] = steps.claim(steps.node(), now_ns=NOW_NS)
        steps.settle((early, kept(early, last_error="no", next_attempt_at_ns=NOW_NS + DAY_NS)))

        assert steps.do(steps.tasks.shorten_backoff, NOW_NS, 7 * SECOND_NS) == 2
        assert [row.next_attempt_at_ns - NOW_NS for row in steps.rows()] == [
            5 * SECOND_NS, 7 * SECOND_NS, 5 * SECOND_NS, DAY_NS, DAY_NS, DAY_NS,
        ]  # fmt: skip
        assert steps.do(steps.tasks.shorten_backoff, NOW_NS, 7 * SECOND_NS) == 0
        assert {row.state for row in steps.rows()} == {TaskState.PENDING}

    def test_a_backoff_after_a_crash_is_shortened_too(self, steps: Steps) -> None:
        steps.enqueue_many([note("crashed", initial_backoff_ns=MINUTE_NS), note("innocent")])
        late_ns = NOW_NS + DAY_NS - SECOND_NS
        for _ in range(2):
            node_id = steps.node()
            steps.do(steps.tasks.start, [row.id for row in steps.rows()][:1], late_ns, node_id)
            steps.lose(node_id)
            steps.rescue(late_ns)
        assert steps.rows()[0].next_attempt_at_ns == late_ns + MINUTE_NS

        assert steps.do(steps.tasks.shorten_backoff, NOW_NS, 7 * SECOND_NS) == 1
        assert [row.next_attempt_at_ns - NOW_NS for row in steps.rows()] == [MINUTE_NS, 0]

    def test_what_was_due_before_the_clock_was_set_back_stays_due(self, steps: Steps) -> None:
        """The clock went back from a minute after now to now."""
        due_ns = {
            "was due": NOW_NS + MINUTE_NS,
            "was due for long": NOW_NS + 1,
            "parked": NOW_NS + 2,
            "runs": NOW_NS + 3,
            "is due all the same": NOW_NS,
            "was not due": NOW_NS + MINUTE_NS + 1,
            "sleeps": NOW_NS + DAY_NS,
        }
        for text, at_ns in due_ns.items():
            steps.enqueue(note(text, next_attempt_at_ns=at_ns, group_id=text.encode()))
        steps.enqueue(note("deferred", kind=OTHER))
        steps.do(steps.tasks.set_aside, OTHER, NOW_NS, NOW_NS + 5, MANY)
        ids = {row.data.decode(): row.id for row in steps.rows()}
        steps.do(steps.tasks.park, [ids["parked"]])
        steps.do(steps.tasks.start, [ids["runs"]], NOW_NS, steps.node())

        assert steps.do(steps.tasks.keep_due, NOW_NS, MINUTE_NS) == 4

        due_ns["deferred"] = NOW_NS + 5
        moved = ("was due", "was due for long", "parked", "runs")
        assert {row.data.decode(): row.next_attempt_at_ns for row in steps.rows()} == {
            text: at_ns - (MINUTE_NS if text in moved else 0) for text, at_ns in due_ns.items()
        }
