"""The contract's tests of what is taken in a transaction whose end is not near, and of rows that are locked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from callboard.stores import DeadReason, Enqueued, EnqueueStatus, FinishedTask, NewTask
from callboard.testing.store_contract._steps import (
    DAY_NS,
    KIND,
    MINUTE_NS,
    NOW_NS,
    ContractTests,
    Steps,
    note,
    texts,
)


class AcceptingTests(ContractTests):
    """Accepting, merging and locking."""

    def accept(self, steps: Steps, *new: NewTask) -> list[Enqueued]:
        """Take tasks in one transaction."""
        with steps.store.transaction() as session:
            return steps.tasks.accept(session, new, (), steps.died)

    def merge(self, steps: Steps, recurring: Sequence[str] = (), limit: int = 100) -> int:
        """Have accepted tasks enqueued, as far as there are any."""
        with steps.store.transaction() as session:
            return steps.tasks.merge_accepted(session, recurring, steps.died, limit)

    def waits(self, steps: Steps) -> bool:
        """Return whether something is to be merged."""
        return steps.all_heads().accepted

    def test_accepted_tasks_are_tasks_once_they_are_merged(self, steps: Steps, other: Steps) -> None:
        answers = self.accept(steps, note("one"), note("two", key="k"))
        assert {answer.status for answer in answers} <= {EnqueueStatus.INSERTED, EnqueueStatus.ACCEPTED}
        assert [answer.task_id is None for answer in answers] == [
            answer.status == EnqueueStatus.ACCEPTED for answer in answers
        ]

        self.merge(other)

        assert texts(steps.rows()) == ["one", "two"]
        row = steps.rows()[1]._asdict()
        assert {name: row[name] for name in NewTask._fields} == note("two", key="k")._asdict()
        assert not self.waits(steps)
        assert self.merge(steps) == 0

    def test_what_is_accepted_and_rolled_back_was_never_there(self, steps: Steps) -> None:
        with pytest.raises(ZeroDivisionError), steps.store.transaction() as session:
            steps.tasks.accept(session, [note("read")], (), steps.died)
            steps.tasks.accept_pull_in(session, note("read").identity, NOW_NS)
            raise ZeroDivisionError

        assert not self.waits(steps)
        assert steps.rows() == []

    def test_an_accepted_task_that_is_live_is_one_more_request(self, steps: Steps) -> None:
        steps.enqueue(note("waits"))
        steps.enqueue(note("runs"))
        steps.claim(steps.node(), now_ns=NOW_NS)

        self.accept(steps, note("waits"), note("runs"), note("runs"))
        self.merge(steps)

        assert [(row.data, row.requests) for row in steps.rows()] == [(b"waits", 2), (b"runs", 3)]

    def test_an_accepted_task_with_another_payload_changes_nothing(self, steps: Steps) -> None:
        steps.enqueue(note("first", key="k"))
        before = steps.row()

        self.accept(steps, note("second", key="k"))
        self.merge(steps)

        assert steps.row() == before
        assert not self.waits(steps)

    def test_what_is_overdue_makes_room_for_an_accepted_task(self, steps: Steps) -> None:
        steps.enqueue(note("read", expires_at_ns=NOW_NS + 1))
        old = steps.row()

        late_ns = NOW_NS + MINUTE_NS
        self.accept(steps, note("read", created_at_ns=late_ns), note("read", created_at_ns=late_ns))
        self.merge(steps)

        assert steps.died == [FinishedTask(old, None, DeadReason.EXPIRED)]
        assert texts(steps.dead()) == ["read"]
        assert (steps.row().id != old.id, steps.row().requests) == (True, 2)

    def test_a_recurring_task_is_never_overdue_for_an_accepted_one(self, steps: Steps) -> None:
        steps.enqueue(note("read", expires_at_ns=NOW_NS + 1))
        with steps.store.transaction() as session:
            new = note("read", created_at_ns=NOW_NS + MINUTE_NS)
            steps.tasks.accept(session, [new], (KIND,), steps.died)
        self.merge(steps, (KIND,))

        assert (steps.died, steps.row().requests) == ([], 2)

    def test_a_pull_in_is_merged_after_the_task_that_it_is_for(self, steps: Steps) -> None:
        new = note("read", next_attempt_at_ns=NOW_NS + DAY_NS)
        with steps.store.transaction() as session:
            steps.tasks.accept(session, [new], (), steps.died)
            assert steps.tasks.accept_pull_in(session, new.identity, NOW_NS + MINUTE_NS)
            assert not steps.tasks.accept_pull_in(session, note("nobody").identity, NOW_NS)
        self.merge(steps)

        assert steps.row().next_attempt_at_ns == NOW_NS + MINUTE_NS

    def test_a_pull_in_of_a_running_task_is_kept_apart(self, steps: Steps) -> None:
        steps.enqueue(note("read"))
        steps.claim(steps.node())
        with steps.store.transaction() as session:
            assert steps.tasks.accept_pull_in(session, note("read").identity, NOW_NS + 7)
        self.merge(steps)

        assert (steps.row().next_attempt_at_ns, steps.row().pulled_in_ns) == (NOW_NS, NOW_NS + 7)

    def test_no_more_is_merged_at_once_than_was_asked_for(self, steps: Steps) -> None:
        self.accept(steps, *(note(str(number)) for number in range(5)))
        waited = self.waits(steps)

        merged = []
        while self.waits(steps):
            merged.append(self.merge(steps, limit=2))

        assert merged == ([2, 2, 1] if waited else [])
        assert texts(steps.rows()) == ["0", "1", "2", "3", "4"]

    def test_nobody_else_keeps_a_row_from_being_changed(self, steps: Steps) -> None:
        steps.enqueue_many([note("one"), note("two")])
        ids = [row.id for row in steps.rows()]
        for wait in (False, True):
            with steps.store.transaction() as session:
                assert steps.tasks.hold(session, [*ids, 999], wait=wait) == {}, "none of them runs"
                assert steps.tasks.hold(session, ids, wait=wait) == {}, "one's own lock is in nobody's way"
        runs = steps.claim(steps.node())
        with steps.store.transaction() as session:
            held = steps.tasks.hold(session, ids, wait=False)
        assert held == steps.held(*runs) != {}
