"""The contract's tests of rows that nothing here can run: set aside, taken up, expired (rules 16 and 17)."""

from __future__ import annotations

from callboard._clock import NEVER_NS
from callboard.stores import TaskState
from callboard.testing.store_contract._steps import (
    DAY_NS,
    KIND,
    MANY,
    MINUTE_NS,
    NOW_NS,
    OTHER,
    ContractTests,
    Steps,
    kept,
    note,
    texts,
)

LATER_NS = NOW_NS + MINUTE_NS


class DeferringTests(ContractTests):
    """Deferred rows are no claim's business."""

    def set_aside(self, steps: Steps, kind: str = KIND, *, now_ns: int = NOW_NS, limit: int = MANY) -> list[int]:
        """Defer a kind's due rows for a minute."""
        ids: list[int] = steps.do(steps.tasks.set_aside, kind, now_ns, now_ns + MINUTE_NS, limit)
        return ids

    def take_up(self, steps: Steps, *kinds: str, but: tuple[int, ...] = (), now_ns: int = NOW_NS) -> int:
        """Take deferred rows of these kinds up."""
        taken: int = steps.do(steps.tasks.take_up, kinds, but, now_ns, MANY)
        return taken

    def test_due_rows_of_a_kind_are_set_aside(self, steps: Steps) -> None:
        steps.enqueue_many([note("a"), note("b"), note("known", kind=OTHER)])
        steps.enqueue(note("not yet", next_attempt_at_ns=NOW_NS + 1))
        before = steps.rows()

        ids = self.set_aside(steps)

        assert sorted(ids) == [before[0].id, before[1].id]
        assert [row.state for row in steps.rows()] == ["deferred", "deferred", "pending", "pending"]
        assert steps.rows()[0] == before[0]._replace(state="deferred", next_attempt_at_ns=LATER_NS)
        assert steps.heads() == {KIND: NOW_NS + 1, OTHER: NOW_NS}
        assert steps.all_heads().deferred == {KIND: LATER_NS}
        assert texts(steps.due(0, [KIND, OTHER], now_ns=NEVER_NS)) == ["known", "not yet"]

    def test_a_bounded_number_is_set_aside_at_once(self, steps: Steps) -> None:
        steps.enqueue_many([note(str(number)) for number in range(5)])
        assert [len(self.set_aside(steps, limit=2)) for _ in range(4)] == [2, 2, 1, 0]

    def test_deferred_rows_whose_time_has_come_are_set_aside_again(self, steps: Steps) -> None:
        steps.enqueue(note("a"))
        ids = self.set_aside(steps)

        assert self.set_aside(steps, now_ns=LATER_NS - 1) == []
        assert self.set_aside(steps, now_ns=LATER_NS) == ids
        assert steps.row().next_attempt_at_ns == LATER_NS + MINUTE_NS

    def test_rows_that_are_to_be_buried_are_not_set_aside(self, steps: Steps) -> None:
        steps.enqueue_many([note("late", expires_at_ns=NOW_NS), note(""), note("tried", max_attempts=1)])
        [task] = [row for row in steps.rows() if row.data == b"tried"]
        steps.do(steps.tasks.start, [task.id], NOW_NS, steps.node())
        steps.settle((task, kept(task, attempts=1)))

        assert self.set_aside(steps) == []
        assert sorted(texts(steps.due())) == ["", "late", "tried"]

    def test_a_row_without_a_policy_is_set_aside_whatever_its_attempts(self, steps: Steps) -> None:
        steps.enqueue(note("a", max_attempts=None))
        assert len(self.set_aside(steps)) == 1

    def test_deferred_rows_are_taken_up_and_due(self, steps: Steps) -> None:
        steps.enqueue_many([note("a"), note("b", kind=OTHER)])
        for kind in (KIND, OTHER):
            self.set_aside(steps, kind)

        assert self.take_up(steps, KIND, "acme.Unknown") == 1

        assert [row.state for row in steps.rows()] == ["pending", "deferred"]
        assert steps.heads() == {KIND: NOW_NS}
        assert texts(steps.claim(steps.node())) == ["a"]
        assert self.take_up(steps) == 0

    def test_a_row_that_was_due_before_stays_so(self, steps: Steps) -> None:
        steps.enqueue(note("a"))
        self.set_aside(steps)
        steps.do(steps.tasks.pull_in, note("a").identity, NOW_NS - 7)
        self.take_up(steps, KIND)
        assert steps.row().next_attempt_at_ns == NOW_NS - 7

    def test_a_bounded_number_is_taken_up_at_once(self, steps: Steps) -> None:
        steps.enqueue_many([note(str(number)) for number in range(5)])
        self.set_aside(steps)
        assert [steps.do(steps.tasks.take_up, [KIND], [], NOW_NS, 2) for _ in range(4)] == [2, 2, 1, 0]

    def test_undecodable_rows_are_set_aside_and_taken_up_when_their_time_has_come(self, steps: Steps) -> None:
        steps.enqueue_many([note("newer"), note("plain")])
        newer, plain = steps.rows()
        steps.do(steps.tasks.set_these_aside, [newer.id, plain.id], LATER_NS)
        assert [row.next_attempt_at_ns for row in steps.rows(state=TaskState.DEFERRED)] == [LATER_NS] * 2

        assert self.take_up(steps, KIND, but=(newer.id,)) == 1
        assert texts(steps.due()) == ["plain"]
        assert self.take_up(steps, KIND, but=(newer.id,), now_ns=LATER_NS) == 1
        assert texts(steps.due(now_ns=LATER_NS)) == ["plain", "newer"]

    def test_a_parked_row_that_is_set_aside_is_not_parked_when_it_comes_back(self, steps: Steps) -> None:
        steps.enqueue(note("newer", group_id=b"g"))
        ids = [steps.row().id]
        steps.do(steps.tasks.park, ids)
        steps.do(steps.tasks.set_these_aside, ids, NOW_NS)
        self.take_up(steps, KIND)
        assert texts(steps.due()) == ["newer"]

    def test_deferred_rows_expire(self, steps: Steps) -> None:
        steps.enqueue_many([note(f"{age}", expires_at_ns=NOW_NS + age * MINUTE_NS) for age in (1, 2, 3)])
        assert steps.all_heads().expiry_ns == NEVER_NS
        self.set_aside(steps)
        steps.enqueue(note("pending", expires_at_ns=NOW_NS + 1))

        assert steps.all_heads().expiry_ns == LATER_NS
        expired = steps.do(steps.tasks.deferred_expired, NOW_NS + 2 * MINUTE_NS, MANY)
        assert texts(expired) == ["1", "2"]
        assert {row.state for row in expired} == {"deferred"}
        assert len(steps.do(steps.tasks.deferred_expired, NOW_NS + DAY_NS, 2)) == 2
        assert steps.do(steps.tasks.deferred_expired, NOW_NS, MANY) == []
