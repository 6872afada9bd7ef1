"""The contract's tests of claims: which rows are due for whom, and what starting them means (rules 7 and 10)."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from callboard.stores import LOOK, Held, Task, TaskState
from callboard.testing.store_contract._steps import (
    KIND,
    MANY,
    MINUTE_NS,
    NOW_NS,
    OTHER,
    ContractTests,
    MakeStore,
    Steps,
    at_once,
    kept,
    note,
    texts,
)


class ClaimingTests(ContractTests):
    """Heads, due rows, starts, groups and parked rows."""

    def test_heads_are_the_earliest_deadlines_of_every_kind(self, steps: Steps) -> None:
        assert steps.heads() == {}
        for text, kind, due_ns in (("a", KIND, 9), ("b", KIND, 5), ("c", OTHER, 7), ("d", "a.kind", 10**18)):
            steps.enqueue(note(text, kind=kind, next_attempt_at_ns=due_ns))
        assert steps.heads() == {KIND: 5, OTHER: 7, "a.kind": 10**18}

        steps.claim(steps.node(), [KIND], now_ns=5)
        assert steps.heads() == {KIND: 9, OTHER: 7, "a.kind": 10**18}

    def test_what_is_due_comes_in_the_order_of_deadlines_whatever_its_kind(self, steps: Steps) -> None:
        for number, kind in enumerate([KIND, OTHER] * 3):
            steps.enqueue(note(str(number), kind=kind, next_attempt_at_ns=NOW_NS - 10 + number))
        steps.enqueue(note("not yet", next_attempt_at_ns=NOW_NS + 1))
        steps.enqueue(note("of no kind here", kind="acme.Unknown"))

        assert texts(steps.due(0, [KIND, OTHER])) == ["0", "1", "2", "3", "4", "5"]
        assert texts(steps.due(0, [OTHER, KIND], limit=2)) == ["0", "1"]
        assert texts(steps.due(0, [OTHER])) == ["1", "3", "5"]
        assert texts(steps.due(0, [KIND], now_ns=NOW_NS - 10)) == ["0"]

    def test_a_claim_may_be_from_any_number_of_kinds(self, steps: Steps) -> None:
        kinds = [f"acme.Kind{number}" for number in range(1_200)]
        steps.enqueue_many([note(kind, kind=kind, next_attempt_at_ns=NOW_NS - len(kind)) for kind in kinds])
        steps.enqueue(note("first", kind=kinds[-1], next_attempt_at_ns=1))

        due = steps.due(0, kinds)

        assert [row.next_attempt_at_ns for row in due] == sorted(row.next_attempt_at_ns for row in due)
        assert sorted(texts(due)) == sorted([*kinds, "first"])
        assert texts(steps.due(0, kinds, limit=1)) == ["first"]
        assert len(steps.heads()) == len(kinds)
        assert steps.due(0, []) == []

    def test_a_backlog_of_an_unknown_kind_holds_no_claim_up(self, steps: Steps) -> None:
        unknown = [note(str(number), kind="acme.Unknown", next_attempt_at_ns=1) for number in range(MANY)]
        steps.enqueue_many(unknown)
        steps.enqueue(note("known"))

        assert texts(steps.due(limit=1)) == ["known"]
        assert steps.heads() == {KIND: NOW_NS, "acme.Unknown": 1}

    def test_only_grouped_rows_are_given_when_asked(self, steps: Steps) -> None:
        steps.enqueue(note("loose", next_attempt_at_ns=1))
        steps.enqueue(note("grouped", group_id=b"g"))

        assert texts(steps.due(grouped_only=True)) == ["grouped"]
        assert texts(steps.due(grouped_only=True, limit=1)) == ["grouped"]
        assert texts(steps.due()) == ["loose", "grouped"]

    def test_rows_of_groups_that_are_left_out_are_stepped_over(self, steps: Steps) -> None:
        for place, group_id in enumerate([b"g", b"\0", None, b"h", b"g"]):
            steps.enqueue(note(str(place), group_id=group_id, next_attempt_at_ns=NOW_NS - 9 + place))
        steps.enqueue(note("of another kind", kind=OTHER))
        steps.enqueue(note("not yet", next_attempt_at_ns=NOW_NS + 1))

        assert texts(steps.beside()) == ["0", "1", "2", "3", "4"]
        assert texts(steps.beside(b"g", b"\0", b"of no row")) == ["2", "3"]
        assert texts(steps.beside(b"g", limit=2)) == ["1", "2"]
        assert texts(steps.beside(b"h", now_ns=NOW_NS - 8)) == ["0", "1"]
        assert steps.beside() == steps.due()

        other = steps.node()
        [task] = [task for task in steps.beside(node_id=other) if task.group_id == b"h"]
        steps.do(steps.tasks.start, [task.id], NOW_NS, other)
        steps.enqueue(note("behind it", group_id=b"h", next_attempt_at_ns=NOW_NS))
        assert texts(steps.beside(b"g", b"\0")) == ["2"], "another node runs the group"
        assert texts(steps.beside(b"g", b"\0", node_id=other)) == ["2", "behind it"]

    def test_a_backlog_of_groups_that_are_left_out_is_stepped_over_as_far_as_promised(self, steps: Steps) -> None:
        backlog = [note(str(number), group_id=b"g", next_attempt_at_ns=1) for number in range(LOOK - 1)]
        steps.enqueue_many(backlog)
        steps.enqueue(note("other", group_id=b"h"))

        assert texts(steps.beside(b"g", limit=1)) == ["other"]

    def test_a_started_row_is_what_due_said_and_due_no_more(self, steps: Steps) -> None:
        node_id = steps.node()
        steps.enqueue(note("read"))
        before = steps.row()

        [claimed] = steps.claim(node_id, now_ns=NOW_NS + 3)

        row = steps.row()
        assert row.token != before.token, "a start gives a new token"
        assert row == before._replace(
            state="running", token=claimed.token, last_attempted_at_ns=NOW_NS + 3, owner=node_id
        )
        assert claimed == row._replace(last_attempted_at_ns=None)
        assert (steps.due(), steps.heads()) == ([], {})
        assert steps.rows(state=TaskState.RUNNING) == [row]
        assert steps.held(claimed) == {claimed.id: Held(claimed.token, 1, 0)}

    def test_each_start_gives_another_token(self, steps: Steps) -> None:
        node_id = steps.node()
        steps.enqueue(note("read"))
        tokens = set()
        for _ in range(3):
            [task] = steps.claim(node_id)
            tokens.add(task.token)
            steps.settle((task, kept(task)))
        assert len(tokens) == 3

    def test_what_is_not_running_is_not_held(self, steps: Steps) -> None:
        steps.enqueue_many([note("a"), note("b")])
        a, b = steps.rows()
        steps.do(steps.tasks.start, [a.id], NOW_NS, steps.node())

        assert set(steps.held(a, b, b._replace(id=10**9))) == {a.id}

    def test_a_row_that_is_handed_back_is_as_it_was_but_for_its_token(self, steps: Steps) -> None:
        new = note("read", next_attempt_at_ns=NOW_NS - 3)
        steps.enqueue(new)
        [task] = steps.claim(steps.node())
        steps.do(steps.tasks.pull_in, new.identity, NOW_NS - 5)

        steps.do(steps.tasks.hand_back, [task.id])

        row = steps.row()
        assert (row.state, row.attempts, row.requests, row.pulled_in_ns) == ("pending", 0, 1, None)
        assert row.next_attempt_at_ns == NOW_NS - 5
        assert row.token == task.token
        assert steps.held(task) == {}
        assert texts(steps.claim(steps.node())) == ["read"]

    def test_handing_back_what_does_not_run_changes_nothing(self, steps: Steps) -> None:
        steps.enqueue_many([note("pending"), note("deferred", kind=OTHER)])
        steps.do(steps.tasks.set_aside, OTHER, NOW_NS, NOW_NS + MINUTE_NS, MANY)
        before = steps.rows()

        steps.do(steps.tasks.hand_back, [row.id for row in before])

        assert steps.rows() == before

    # Groups

    def test_a_group_that_another_node_runs_is_left_out(self, steps: Steps) -> None:
        mine, theirs = steps.node(), steps.node()
        for text, group in (("1", b"g"), ("2", b"g"), ("3", b"h"), ("4", None)):
            steps.enqueue(note(text, group_id=group, next_attempt_at_ns=int(text)))
        steps.claim(theirs, limit=1)

        assert texts(steps.due(mine)) == ["3", "4"]
        assert texts(steps.due(mine, limit=1)) == ["3"]
        assert texts(steps.due(theirs)) == ["2", "3", "4"]

    def test_a_backlog_of_a_group_that_another_node_runs_holds_no_claim_up(self, steps: Steps) -> None:
        mine, theirs = steps.node(), steps.node()
        steps.enqueue_many([note(str(number), group_id=b"g", next_attempt_at_ns=1) for number in range(MANY)])
        steps.enqueue(note("free", group_id=b"h"))
        steps.claim(theirs, limit=1)

        for _ in range(2):  # whatever the first one has learned
            assert texts(steps.due(mine, limit=5)) == ["free"]

    def test_a_group_is_free_when_what_ran_has_ended(self, steps: Steps) -> None:
        mine, theirs = steps.node(), steps.node()
        steps.enqueue_many([note("1", group_id=b"g"), note("2", group_id=b"g")])
        [task] = steps.claim(theirs, limit=1)
        assert steps.due(mine) == []

        steps.settle((task, kept(task, next_attempt_at_ns=NOW_NS + MINUTE_NS)))

        assert len(steps.due(mine)) == 1

    @pytest.mark.parametrize("group_id", [None, b"g"])
    def test_a_row_is_claimed_once_however_many_claim_at_once(
        self, steps: Steps, make_store: MakeStore, group_id: bytes | None
    ) -> None:
        steps.enqueue_many([note(str(number), group_id=group_id) for number in range(60)])
        nodes = [Steps(make_store()) for _ in range(3)]
        ids = [each.node() for each in nodes]

        def claim_all(each: Steps, node_id: int) -> list[Task]:
            claimed: list[Task] = []
            for _ in range(20):
                claimed += each.claim(node_id, limit=5)
            return claimed

        claims = at_once(*(partial(claim_all, each, node_id) for each, node_id in zip(nodes, ids, strict=True)))

        counted = Counter(task.id for claimed in claims for task in claimed)
        assert set(counted.values()) == {1}
        if group_id is None:
            assert len(counted) == 60
        else:
            assert sum(1 for claimed in claims if claimed) == 1, "a group is on one node only"

    def test_no_group_is_on_two_nodes_however_many_claim_at_once(self, steps: Steps, other: Steps) -> None:
        steps.enqueue_many([note(f"{n}", group_id=b"group %d" % (n % 20)) for n in range(80)])
        mine, theirs = steps.node(), other.node()

        def groups(of: Steps, node_id: int) -> set[bytes | None]:
            return {task.group_id for _ in range(10) for task in of.claim(node_id, limit=8)}

        ours, others = at_once(lambda: groups(steps, mine), lambda: groups(other, theirs))

        assert ours.isdisjoint(others)
        assert len(ours | others) == 20

    # Parked rows

    def test_parked_rows_are_out_of_the_way_until_they_are_unparked(self, steps: Steps) -> None:
        for text in ("1", "2", "3"):
            steps.enqueue(note(text, group_id=b"g", next_attempt_at_ns=NOW_NS - 9 + int(text)))
        steps.enqueue(note("of another group", group_id=b"h"))
        ids = [row.id for row in steps.rows(group_id=b"g")]
        node_id = steps.node()
        before = steps.rows()

        def parked(now_ns: int = NOW_NS, limit: int = MANY, node: int = node_id) -> list[Task]:
            rows: list[Task] = steps.do(steps.tasks.parked, {b"g": limit, b"empty": limit}, node, now_ns)
            return rows

        steps.do(steps.tasks.park, ids)
        assert texts(steps.due()) == ["of another group"]
        assert steps.heads() == {KIND: NOW_NS}
        assert steps.rows() == before, "nobody else can tell"
        assert texts(parked()) == ["1", "2", "3"]
        assert texts(parked(limit=2)) == ["1", "2"]
        assert texts(parked(NOW_NS - 8)) == ["1"]

        first = parked(limit=1)
        assert first == [before[0]._replace(state="running", token=first[0].token, owner=node_id)]
        steps.do(steps.tasks.start, [first[0].id], NOW_NS, node_id)
        assert steps.held(*first)[first[0].id].token == first[0].token
        assert texts(parked()) == ["2", "3"]
        assert parked(node=steps.node()) == [], "another node runs the group"

        steps.do(steps.tasks.unpark, [b"h", b"g"])
        assert parked() == []
        assert texts(steps.due(node_id)) == ["2", "3", "of another group"]

    def test_more_rows_of_groups_are_parked_among_the_first_of_a_kind(self, steps: Steps) -> None:
        for place, group_id in enumerate([b"g", b"h", b"\0", None, b"g", b"g"]):
            steps.enqueue(note(str(place), group_id=group_id, next_attempt_at_ns=NOW_NS - 9 + place))
        steps.enqueue(note("of another kind", kind=OTHER, group_id=b"g"))
        steps.enqueue(note("not yet", group_id=b"g", next_attempt_at_ns=NOW_NS + 1))

        steps.do(steps.tasks.park_more, KIND, [b"g", b"\0"], NOW_NS, 5)

        assert texts(steps.due(0, [KIND, OTHER], now_ns=NOW_NS + 1)) == [
            "1",
            "3",
            "5",
            "of another kind",
            "not yet",
        ]
        steps.do(steps.tasks.unpark, [b"g"])
        assert texts(steps.due()) == ["0", "1", "3", "4", "5"]

    def test_a_parked_row_is_as_live_as_any(self, steps: Steps) -> None:
        new = note("read", group_id=b"g")
        steps.enqueue(new)
        steps.do(steps.tasks.park, [steps.row().id])

        assert steps.enqueue(new).status == "merged"
        steps.do(steps.tasks.pull_in, new.identity, NOW_NS - 7)
        assert (steps.row().requests, steps.row().next_attempt_at_ns) == (2, NOW_NS - 7)
        [task] = steps.do(steps.tasks.parked, {b"g": 1}, 0, NOW_NS)
        steps.do(steps.tasks.start, [task.id], NOW_NS, steps.node())
        steps.settle((task, kept(task)))
        assert texts(steps.due()) == ["read"], "it is not parked again after its run"
