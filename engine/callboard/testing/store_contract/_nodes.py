"""The contract's tests of nodes, and of what becomes of the tasks of one that is gone (rules 3 and 7)."""

from __future__ import annotations

import os
import signal
import warnings
from functools import partial

import pytest

from callboard._clock import NEVER_NS
from callboard.stores import DeadReason, FinishedTask, NodeRow, Task
from callboard.testing.store_contract._steps import (
    DAY_NS,
    KIND,
    MANY,
    MINUTE_NS,
    NOW_NS,
    OTHER,
    SECOND_NS,
    ContractTests,
    MakeStore,
    Steps,
    at_once,
    eventually,
    kept,
    note,
    texts,
)


def others(steps: Steps, node_id: int) -> list[NodeRow]:
    """Return the nodes that `node_id` sees."""
    with steps.store.reading() as session:
        return steps.store.nodes.others(session, node_id)


class NodesTests(ContractTests):
    """Who is there, who is not, and a second run for what they had claimed."""

    def test_a_node_sees_the_others_and_whether_they_hold_tasks(self, steps: Steps, other: Steps) -> None:
        mine, theirs = steps.node(), other.node(lease_ns=7 * SECOND_NS)
        [seen] = others(steps, mine)
        assert (seen.id, seen.pid, seen.lease_ns, seen.holds) == (theirs, os.getpid(), 7 * SECOND_NS, False)

        steps.enqueue(note("read"))
        [task] = other.claim(theirs)
        assert [node.holds for node in others(steps, mine)] == [True]
        assert [node.holds for node in others(other, theirs)] == [False]
        other.settle((task, kept(task)))
        assert [node.holds for node in others(steps, mine)] == [False]

        other.lose(theirs)
        assert others(steps, mine) == []
        steps.lose(mine)

    def test_a_node_may_tell_anew_which_kinds_it_runs(self, steps: Steps, other: Steps) -> None:
        mine, theirs = steps.node(), other.node()
        before = others(steps, mine)

        other.do(other.store.nodes.tell_kinds, theirs, f"{KIND},!{KIND}")
        other.lose(theirs)
        other.do(other.store.nodes.tell_kinds, theirs, KIND)  # nothing to tell of

        assert [node.id for node in before] == [theirs]
        assert others(steps, mine) == []

    def test_an_id_of_a_node_is_never_given_twice(self, steps: Steps) -> None:
        first = steps.node()
        steps.lose(first)
        assert steps.node() > first

    def test_each_heartbeat_is_another_one_wherever_the_clock_stands(self, steps: Steps, other: Steps) -> None:
        mine, theirs = steps.node(), other.node()
        seen = [others(steps, mine)[0].heartbeat]
        for now_ns in (NOW_NS, NOW_NS, NOW_NS - DAY_NS, NOW_NS + DAY_NS):
            assert other.do(other.store.nodes.renew, theirs, now_ns)
            seen.append(others(steps, mine)[0].heartbeat)
        assert len(set(seen)) == len(seen)

    def test_a_node_that_gave_a_sign_of_life_is_not_buried(self, steps: Steps, other: Steps) -> None:
        mine, theirs = steps.node(), other.node()
        [seen] = others(steps, mine)
        other.do(other.store.nodes.renew, theirs, NOW_NS)

        assert not steps.do(steps.store.nodes.bury, seen)
        assert len(others(steps, mine)) == 1

    def test_a_node_that_was_buried_finds_out_at_its_next_heartbeat(self, steps: Steps, other: Steps) -> None:
        mine, theirs = steps.node(), other.node()
        [seen] = others(steps, mine)

        assert steps.do(steps.store.nodes.bury, seen)
        assert not steps.do(steps.store.nodes.bury, seen), "it is gone already"

        assert others(steps, mine) == []
        assert not other.do(other.store.nodes.renew, theirs, NOW_NS)
        other.store.nodes.unlock(theirs)
        other.store.nodes.unlock(theirs)

    def test_a_heartbeat_and_a_burial_at_once_cannot_both_succeed(self, steps: Steps, other: Steps) -> None:
        mine = steps.node()
        for _ in range(10):
            theirs = other.node()
            [seen] = others(steps, mine)
            buried, renewed = at_once(
                partial(steps.do, steps.store.nodes.bury, seen),
                partial(other.do, other.store.nodes.renew, theirs, NOW_NS),
            )
            assert buried != renewed
            other.lose(theirs)

    def test_silent_nodes_that_hold_nothing_are_pruned(self, steps: Steps, other: Steps) -> None:
        mine, silent, holds, beats = steps.node(), other.node(), other.node(), other.node()
        steps.enqueue(note("read"))
        other.claim(holds)
        other.do(other.store.nodes.renew, beats, NOW_NS + MINUTE_NS)

        assert steps.do(steps.store.nodes.prune, mine, NOW_NS) == []
        [pruned] = steps.do(steps.store.nodes.prune, mine, NOW_NS + MINUTE_NS)

        assert pruned.id == silent
        assert {node.id for node in others(steps, 0)} == {mine, holds, beats}
        other.store.nodes.unlock(silent)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="nobody can be killed here")
    def test_a_process_that_ended_is_told_from_one_that_has_not(self, steps: Steps, make_store: MakeStore) -> None:
        if not self.tells_ended_processes:
            pytest.skip("this store learns it from the lease")
        mine = steps.node()
        steps.store.close()  # or the child would inherit connections
        told, tell = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads do no harm to this child
            child = os.fork()
        if child == 0:
            try:
                Steps(make_store()).node()
                os.write(tell, b"!")
                signal.pause()
            finally:
                os._exit(1)
        try:
            os.close(tell)
            assert os.read(told, 1) == b"!"
            [seen] = others(steps, mine)
            assert seen.pid == child
            assert not steps.store.nodes.has_ended(seen)
        finally:
            os.close(told)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        eventually(lambda: steps.store.nodes.has_ended(seen))
        assert steps.do(steps.store.nodes.bury, seen)

    # Rescue

    def lost(self, steps: Steps, *texts: str) -> list[Task]:
        """Return tasks that a node had claimed when it was gone."""
        node_id = steps.node()
        steps.enqueue_many([note(text) for text in texts])
        claimed = steps.claim(node_id)
        steps.lose(node_id)
        return claimed

    def alone(
        self, steps: Steps, node_id: int = 0, now_ns: int = NOW_NS, kinds: tuple[str, ...] = (KIND,)
    ) -> list[Task]:
        """Return what is to run next with nothing beside it."""
        rows: list[Task] = steps.do(steps.tasks.alone_due, kinds, node_id, now_ns)
        return rows

    def test_rows_of_a_node_that_is_gone_run_again_one_at_a_time(self, steps: Steps) -> None:
        mine = steps.node()
        claimed = self.lost(steps, "a", "b")
        before = steps.rows()
        steps.enqueue(note("innocent"))

        assert steps.rescue() == (2, [])

        tokens = {task.id: task.token for task in claimed}
        rescued = steps.rows()[:2]
        assert [row._replace(token=0) for row in rescued] == [
            row._replace(token=0, state="pending", owner=None) for row in before
        ]
        assert all(row.token > tokens[row.id] for row in rescued), "the outcome of the first run is stale"
        assert texts(steps.due(mine)) == ["innocent"]
        assert steps.heads() == {KIND: NOW_NS}
        [first] = self.alone(steps, mine)
        steps.do(steps.tasks.start, [first.id], NOW_NS, mine)
        assert steps.held(first)[first.id].token == first.token
        [second] = self.alone(steps, mine)
        assert {first.data, second.data} == {b"a", b"b"}
        assert steps.rescue() == (0, [])

    def test_rows_of_nodes_that_are_there_are_left_alone(self, steps: Steps, other: Steps) -> None:
        steps.enqueue_many([note("mine"), note("theirs", kind=OTHER)])
        steps.claim(steps.node())
        other.claim(other.node(), [OTHER])
        before = steps.rows()

        assert steps.rescue() == (0, [])
        assert steps.rows() == before

    def test_pending_and_deferred_rows_are_no_business_of_a_rescue(self, steps: Steps) -> None:
        self.lost(steps, "lost")
        steps.enqueue_many([note("pending"), note("deferred", kind=OTHER)])
        steps.do(steps.tasks.set_aside, OTHER, NOW_NS, NOW_NS + MINUTE_NS, MANY)
        before = steps.rows()

        assert steps.rescue() == (1, [])
        assert steps.rows()[1:] == before[1:]

    def test_a_row_that_is_running_by_hand_need_not_run_alone(self, steps: Steps) -> None:
        steps.enqueue(note("read"))
        steps.run("UPDATE callboard_task SET state = 'running'")

        assert steps.rescue() == (1, [])
        assert (self.alone(steps), texts(steps.due())) == ([], ["read"])

    def test_a_pull_in_of_a_lost_run_counts(self, steps: Steps) -> None:
        self.lost(steps, "read")
        steps.do(steps.tasks.pull_in, note("read").identity, NOW_NS - 9)
        steps.rescue()
        assert (steps.row().next_attempt_at_ns, steps.row().pulled_in_ns) == (NOW_NS - 9, None)

    def test_a_settled_row_need_no_longer_run_alone(self, steps: Steps) -> None:
        self.lost(steps, "read")
        steps.rescue()
        node_id = steps.node()
        [task] = self.alone(steps, node_id)
        steps.do(steps.tasks.start, [task.id], NOW_NS, node_id)
        steps.settle((task, kept(task)))
        assert (self.alone(steps), texts(steps.due())) == ([], ["read"])

    def crash_alone(self, steps: Steps, now_ns: int, max_crashes: int = 3) -> tuple[int, list[FinishedTask]]:
        """Let a node be gone while it ran nothing but the row that must run alone."""
        node_id = steps.node()
        [task] = self.alone(steps, node_id, now_ns)
        steps.do(steps.tasks.start, [task.id], now_ns, node_id)
        steps.lose(node_id)
        return steps.rescue(now_ns, max_crashes=max_crashes)

    def test_only_crashes_alone_count_and_too_many_in_a_row_are_its_death(self, steps: Steps) -> None:
        self.lost(steps, "read")
        assert steps.rescue(max_crashes=1) == (1, []), "it was not alone"

        assert self.crash_alone(steps, NOW_NS) == (1, [])
        assert self.alone(steps) == [], "it waits for its backoff"
        assert steps.row().next_attempt_at_ns == NOW_NS + SECOND_NS
        assert self.crash_alone(steps, NOW_NS + SECOND_NS) == (1, [])
        assert steps.row().next_attempt_at_ns == NOW_NS + 3 * SECOND_NS
        rescued, died = self.crash_alone(steps, NOW_NS + 3 * SECOND_NS)

        assert (rescued, [ended.dead_reason for ended in died]) == (0, [DeadReason.CRASHED])
        [dead] = steps.dead()
        assert (dead.reason, dead.data, dead.attempts) == ("crashed", b"read", 0)
        assert dead.last_error
        assert steps.rows() == []

    def test_crashes_with_others_beside_it_do_not_count(self, steps: Steps) -> None:
        self.lost(steps, "a", "b")
        for _ in range(4):
            steps.rescue(max_crashes=1)
            node_id = steps.node()
            steps.do(steps.tasks.start, [row.id for row in steps.rows()], NOW_NS, node_id)
            steps.lose(node_id)
        assert steps.rescue(max_crashes=1) == (2, [])

    def test_a_row_that_outlives_an_orderly_stop_is_no_suspect(self, steps: Steps) -> None:
        node_id = steps.node()
        steps.enqueue_many([note("spared"), note("suspect")])
        spared, suspect = steps.claim(node_id)
        steps.do(steps.tasks.spare, [spared.id], node_id + 1)
        steps.do(steps.tasks.spare, [spared.id], node_id)
        assert set(steps.held(spared, suspect)) == {spared.id, suspect.id}
        steps.lose(node_id)

        assert steps.rescue(max_crashes=1) == (2, [])
        assert (texts(steps.due()), texts(self.alone(steps))) == (["spared"], ["suspect"])

        node_id = steps.node()
        steps.do(steps.tasks.start, [suspect.id], NOW_NS, node_id)
        steps.do(steps.tasks.spare, [suspect.id], node_id)
        steps.lose(node_id)
        assert steps.rescue(max_crashes=1) == (1, []), "it did not crash"
        assert texts(self.alone(steps)) == ["suspect"], "but it was a suspect before"

    def test_a_row_of_another_node_is_not_spared(self, steps: Steps) -> None:
        gone = steps.node()
        steps.enqueue(note("read"))
        [task] = steps.claim(gone)
        steps.do(steps.tasks.spare, [task.id], steps.node())
        steps.lose(gone)
        steps.rescue()
        assert texts(self.alone(steps)) == ["read"]

    def test_a_run_that_ends_makes_up_for_the_crashes(self, steps: Steps) -> None:
        self.lost(steps, "read")
        steps.rescue()
        self.crash_alone(steps, NOW_NS, max_crashes=2)
        now_ns = NOW_NS + SECOND_NS
        node_id = steps.node()
        [task] = self.alone(steps, node_id, now_ns)
        steps.do(steps.tasks.start, [task.id], now_ns, node_id)
        steps.settle((task, kept(task)))

        steps.claim(node_id, now_ns=now_ns)
        steps.lose(node_id)
        assert steps.rescue(now_ns, max_crashes=2) == (1, [])
        assert self.crash_alone(steps, now_ns, max_crashes=2) == (1, [])

    def test_a_cancelled_row_of_a_node_that_is_gone_is_buried(self, steps: Steps) -> None:
        node_id = steps.node()
        steps.enqueue_many([note("unwanted"), note("wanted again")])
        claimed = steps.claim(node_id)
        for row in steps.rows():
            steps.do(steps.tasks.cancel, row, NOW_NS)
        steps.enqueue(note("wanted again"))
        steps.lose(node_id)

        rescued, died = steps.rescue(NOW_NS + 5)

        assert rescued == 0
        assert sorted((ended.task.id, str(ended.dead_reason)) for ended in died) == [
            (task.id, "cancelled") for task in claimed
        ]
        assert sorted(texts(steps.dead())) == ["unwanted", "wanted again"]
        assert [(row.data, row.requests, row.created_at_ns) for row in steps.rows()] == [
            (b"wanted again", 1, NOW_NS + 5)
        ]
        assert len(steps.due(now_ns=NOW_NS + 5)) == 1

    def test_groups_that_nobody_runs_any_more_are_unparked(self, steps: Steps) -> None:
        mine, gone = steps.node(), steps.node()
        steps.enqueue_many([note("a1", group_id=b"a"), note("b1", group_id=b"b")])
        steps.claim(gone, limit=1)
        steps.claim(mine, limit=1)
        steps.enqueue_many([note("a2", group_id=b"a"), note("b2", group_id=b"b")])
        steps.do(steps.tasks.park, [row.id for row in steps.rows(state="pending")])
        steps.lose(gone)

        steps.rescue()

        running = {row.group_id for row in steps.rows(state="running")}
        assert {task.group_id for task in steps.due(mine)} == {b"a", b"b"} - running

    def test_the_next_to_run_alone_is_the_earliest_of_a_kind_and_a_free_group(self, steps: Steps) -> None:
        gone, mine, theirs = steps.node(), steps.node(), steps.node()
        steps.enqueue(note("unknown", kind=OTHER, next_attempt_at_ns=1))
        steps.enqueue(note("second", next_attempt_at_ns=3))
        steps.enqueue(note("first", next_attempt_at_ns=2, group_id=b"g"))
        steps.claim(gone, [KIND, OTHER])
        steps.lose(gone)

        def head(node_id: int, *kinds: str) -> int:
            return steps.all_heads(node_id, kinds).alone_ns

        assert head(mine, KIND) == NEVER_NS
        steps.rescue()
        assert (head(mine, KIND), head(mine, KIND, OTHER), head(mine, "acme.Unknown")) == (2, 1, NEVER_NS)
        assert self.alone(steps, mine, now_ns=0) == []
        assert texts(self.alone(steps, mine)) == ["first"]
        assert texts(self.alone(steps, mine, kinds=(KIND, OTHER))) == ["unknown"]

        steps.enqueue(note("theirs", group_id=b"g"))
        steps.claim(theirs)
        assert texts(self.alone(steps, mine)) == ["second"], "another node runs the group"
        assert head(mine, KIND) == 3
        assert texts(self.alone(steps, theirs)) == ["first"]

    def test_what_must_run_alone_and_cannot_run_here_is_set_aside(self, steps: Steps) -> None:
        gone = steps.node()
        steps.enqueue_many([note("known"), note("a", kind=OTHER), note("b", kind="acme.Third")])
        steps.enqueue(note("not yet", kind=OTHER, next_attempt_at_ns=NOW_NS + 1))
        steps.claim(gone, [KIND, OTHER, "acme.Third"], now_ns=NOW_NS + 1)
        steps.lose(gone)
        steps.rescue()
        ids = {row.data: row.id for row in steps.rows()}

        def head(*kinds: str) -> int:
            return steps.all_heads(kinds=kinds).stray_ns

        def set_aside(limit: int, *kinds: str, now_ns: int = NOW_NS) -> dict[str, list[int]]:
            aside: dict[str, list[int]] = steps.do(
                steps.tasks.set_strays_aside, kinds, now_ns, NOW_NS + MINUTE_NS, limit
            )
            return aside

        assert (head(KIND, OTHER, "acme.Third"), head(KIND)) == (NEVER_NS, NOW_NS)
        assert len(set_aside(1, KIND, OTHER)) == 1
        assert set_aside(MANY, KIND) == {OTHER: [ids[b"a"]]}
        assert head(KIND) == NOW_NS + 1
        assert [row.data for row in steps.rows(state="deferred")] == [b"a", b"b"]
        assert set_aside(MANY, now_ns=NOW_NS - 1) == {}

        steps.do(steps.tasks.take_up, [OTHER], [], NOW_NS, MANY)
        assert steps.due(0, [OTHER]) == []
        assert texts(self.alone(steps, kinds=(OTHER,))) == ["a"], "it still has to run alone"

    def test_of_two_that_rescue_at_once_one_does(self, steps: Steps, other: Steps) -> None:
        self.lost(steps, *"abcdefgh")

        answers = at_once(steps.rescue, other.rescue)

        assert sorted(rescued for rescued, _ in answers) == [0, 8]
