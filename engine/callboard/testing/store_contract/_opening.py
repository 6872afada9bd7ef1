"""The contract's tests of preparing a database, of transactions, and of what is told of others' commits."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from callboard.errors import ConfigurationError, SchemaError, StoreError
from callboard.stores import Finish, Store
from callboard.testing.store_contract._steps import (
    MANY,
    MINUTE_NS,
    NOW_NS,
    OTHER,
    PATIENCE_S,
    ContractTests,
    MakeStore,
    Steps,
    at_once,
    discarded,
    eventually,
    note,
    texts,
)


class OpeningTests(ContractTests):
    """Tables, transactions, sessions, and the version of the data."""

    def test_a_store_is_a_store(self, make_store: MakeStore) -> None:
        store = make_store()

        assert isinstance(store, Store)
        assert store.where
        assert store.poll_interval_s > 0

    def test_prepare_says_what_it_did_and_does_nothing_the_second_time(self, make_store: MakeStore) -> None:
        assert make_store().prepare(NOW_NS)

        steps = Steps(make_store())
        assert steps.store.prepare(NOW_NS) == []
        steps.enqueue(note("read"))
        assert steps.store.prepare(NOW_NS) == []
        assert texts(steps.rows()) == ["read"]

    def test_two_that_prepare_at_once_do_it_once(self, make_store: MakeStore) -> None:
        stores = [make_store() for _ in range(4)]

        done = at_once(*(partial(store.prepare, NOW_NS) for store in stores))

        assert sorted(map(bool, done)) == [False, False, False, True]
        Steps(stores[0]).enqueue(note("read"))
        assert texts(Steps(stores[1]).rows()) == ["read"]

    def test_prepare_inside_a_transaction_is_rolled_back_with_it(self, make_store: MakeStore) -> None:
        store = make_store()

        with pytest.raises(ZeroDivisionError), store.transaction():
            store.prepare(NOW_NS)
            raise ZeroDivisionError

        assert make_store().prepare(NOW_NS)

    def test_without_tables_there_is_a_store_error(self, make_store: MakeStore) -> None:
        steps = Steps(make_store())

        with pytest.raises(StoreError):
            steps.enqueue(note("read"))
        with pytest.raises(StoreError):
            steps.rows()

    def test_tables_of_a_newer_engine_are_refused(self, steps: Steps, make_store: MakeStore) -> None:
        with steps.store.thread(), steps.store.watching(lambda: None):
            self.wait_for_ears(steps.store)
            with make_store().transaction() as session:
                session.run(
                    "INSERT INTO callboard_migration (name, number, title, compatible_with, applied_at_ns)"
                    " VALUES ('callboard', 999, 'of a newer engine', 999, 1)"
                )
            with pytest.raises(SchemaError):
                eventually(lambda: steps.store.data_version() < 0)
        with pytest.raises(SchemaError):
            make_store().prepare(NOW_NS)

    # Transactions

    def test_a_transaction_inside_another_joins_it(self, steps: Steps, other: Steps) -> None:
        store = steps.store
        with store.transaction():
            steps.enqueue(note("read"))
            assert store.in_transaction()
            assert texts(steps.rows()) == ["read"]
            assert other.rows() == []

        assert not store.in_transaction()
        assert texts(other.rows()) == ["read"]

    def test_a_transaction_that_raises_is_rolled_back_whole(self, steps: Steps, other: Steps) -> None:
        steps.enqueue(note("before"))
        before = steps.rows()

        with pytest.raises(ZeroDivisionError), steps.store.transaction() as session:
            steps.enqueue(note("read"))
            steps.tasks.pull_in(session, note("before").identity, NOW_NS - 1)
            steps.store.groups.set_active(session, b"g", NOW_NS)
            steps.node()
            raise ZeroDivisionError

        assert not steps.store.in_transaction()
        assert steps.rows() == other.rows() == before
        with other.store.reading() as session:
            assert other.store.groups.state(session, b"g") is None
            assert other.store.nodes.others(session, 0) == []

    @pytest.mark.parametrize("opens", ["transaction", "claiming"])
    def test_a_claim_and_a_transaction_commit_when_they_end(self, steps: Steps, other: Steps, opens: str) -> None:
        with getattr(steps.store, opens)() as session:
            steps.tasks.enqueue(session, note("read"), (), [])
            assert other.rows() == []

        assert texts(other.rows()) == ["read"]

    @pytest.mark.parametrize("opens", ["transaction", "claiming"])
    def test_calls_after_the_commit_are_made_after_it(self, steps: Steps, other: Steps, opens: str) -> None:
        seen: list[list[str]] = []

        with getattr(steps.store, opens)() as session:
            steps.tasks.enqueue(session, note("read"), (), [])
            assert session.after_commit(lambda: seen.append(texts(other.rows())))
            assert seen == []

        assert seen == [["read"]]

    def test_calls_after_the_commit_wait_for_the_outermost_transaction(self, steps: Steps) -> None:
        called: list[bool] = []
        with steps.store.transaction():
            with steps.store.transaction() as inner:
                inner.after_commit(lambda: called.append(steps.store.in_transaction()))
            assert called == []
        assert called == [False]

    def test_calls_after_the_commit_are_not_made_after_a_rollback(self, steps: Steps) -> None:
        called: list[str] = []

        with pytest.raises(ZeroDivisionError), steps.store.transaction() as session:
            session.after_commit(lambda: called.append("rolled back"))
            raise ZeroDivisionError
        with steps.store.transaction() as session:
            session.after_commit(lambda: called.append("committed"))

        assert called == ["committed"]

    def test_a_savepoint_takes_a_part_back(self, steps: Steps) -> None:
        with steps.store.transaction() as session:
            steps.tasks.enqueue(session, note("kept"), (), [])
            session.run("SAVEPOINT callboard_hook")
            steps.tasks.enqueue(session, note("taken back"), (), [])
            session.run("ROLLBACK TO callboard_hook")
            session.run("RELEASE callboard_hook")
            steps.tasks.enqueue(session, note("after it"), (), [])

        assert texts(steps.rows()) == ["kept", "after it"]

    def test_reading_sees_what_this_threads_transaction_wrote(self, steps: Steps) -> None:
        with steps.store.transaction():
            task_id = steps.enqueue(note("read")).task_id
            assert task_id is not None
            with steps.store.reading() as session:
                assert steps.tasks.by_id(session, task_id) is not None

    def test_a_thread_that_keeps_its_connection_uses_it(self, steps: Steps, other: Steps) -> None:
        with steps.store.thread():
            steps.enqueue(note("read"))
            assert not steps.store.in_transaction()
            with steps.store.thread():
                steps.enqueue(note("seen"))
        assert texts(other.rows()) == ["read", "seen"]

    def test_a_dropped_connection_is_replaced(self, steps: Steps) -> None:
        with steps.store.thread():
            steps.enqueue(note("read"))
            steps.store.drop_connection()
        steps.enqueue(note("seen"))
        steps.store.drop_connection()
        assert texts(steps.rows()) == ["read", "seen"]

    def test_a_closed_store_stays_usable(self, steps: Steps) -> None:
        steps.enqueue(note("read"))
        steps.store.close()
        assert texts(steps.rows()) == ["read"]

    def test_threads_have_transactions_of_their_own(self, steps: Steps) -> None:
        with steps.store.transaction():
            [inside] = at_once(steps.store.in_transaction)
            assert not inside

        at_once(*(partial(steps.enqueue, note(text)) for text in "abcdefgh"))
        assert sorted(texts(steps.rows())) == list("abcdefgh")

    # Errors

    def test_what_the_driver_raises_is_a_store_error(self, steps: Steps) -> None:
        for method in ("run", "rows"):
            with pytest.raises(StoreError), steps.store.transaction() as session:
                getattr(session, method)("SELECT nothing FROM nowhere")
        with pytest.raises(StoreError), steps.store.transaction() as session:
            session.run_many("INSERT INTO nowhere VALUES (1)", [()])
        assert not steps.store.in_transaction()

    def test_a_write_that_fails_leaves_nothing(self, steps: Steps) -> None:
        broken = note("broken")._replace(data=None)  # type: ignore[arg-type]

        for tasks in ([note("read"), broken], [broken, note("read")]):
            with pytest.raises(StoreError):
                steps.enqueue_many(tasks)
            with pytest.raises(StoreError), steps.store.transaction():
                for each in tasks:
                    steps.enqueue(each)

        assert steps.rows() == []
        assert steps.enqueue(note("read")).status == "inserted"

    def test_an_unknown_connection_of_the_host_is_refused(self, steps: Steps) -> None:
        with pytest.raises(ConfigurationError), steps.store.session_on(object()):
            pass

    def test_a_session_on_the_hosts_connection_is_part_of_its_transaction(
        self, steps: Steps, other: Steps
    ) -> None:
        with pytest.raises(ZeroDivisionError), steps.store.transaction() as host:
            with other.store.session_on(host.connection) as session:
                other.tasks.enqueue(session, note("rolled back"), (), [])
            raise ZeroDivisionError
        with steps.store.transaction() as host:
            with other.store.session_on(host.connection) as session:
                other.tasks.enqueue(session, note("read"), (), [])
            assert other.rows() == []

        assert texts(other.rows()) == ["read"]

    # What others wrote

    def test_the_data_version_changes_with_others_commits_only(self, steps: Steps, other: Steps) -> None:
        store, told = steps.store, threading.Event()
        with store.thread(), store.watching(told.set):
            self.wait_for_ears(store)
            before = store.data_version()
            steps.enqueue(note("mine"))
            steps.rows()
            other.rows()
            with pytest.raises(ZeroDivisionError), other.store.transaction():
                other.enqueue(note("rolled back"))
                raise ZeroDivisionError
            assert store.data_version() == before

            other.enqueue(note("theirs"))
            eventually(lambda: store.data_version() != before)
            after = store.data_version()
            assert store.data_version() == after
            if self.gives_hints:
                told.clear()
                other.enqueue(note("theirs, too"))
                assert told.wait(PATIENCE_S)

    def wait_for_ears(self, store: Store) -> None:
        """Wait until a store that is told of commits listens, which changes the version."""
        if self.gives_hints:
            before = store.data_version()
            eventually(lambda: store.data_version() != before)

    def test_the_data_version_changes_with_commits_of_this_stores_other_threads(self, steps: Steps) -> None:
        store = steps.store
        with store.thread(), store.watching(lambda: None):
            self.wait_for_ears(store)
            before = store.data_version()
            at_once(lambda: steps.enqueue(note("of another thread")))
            eventually(lambda: store.data_version() != before)

    def test_a_turn_is_taken_once_in_an_interval(self, steps: Steps, other: Steps) -> None:
        def turn(of: Steps, at_ns: int, name: str = "rounds") -> bool:
            taken: bool = of.do(of.store.take_turn, name, at_ns, MINUTE_NS)
            return taken

        assert turn(steps, NOW_NS)
        assert not turn(steps, NOW_NS)
        assert not turn(other, NOW_NS + MINUTE_NS - 1)
        assert turn(other, NOW_NS, "something else")
        assert turn(other, NOW_NS + MINUTE_NS)
        assert not turn(steps, NOW_NS + MINUTE_NS)
        assert turn(steps, NOW_NS), "the clock was set back: a turn in the future counts for nothing"

    def test_of_many_at_once_one_has_the_turn(self, steps: Steps, make_store: MakeStore) -> None:
        asked = [Steps(make_store()) for _ in range(4)]

        taken = at_once(*(partial(each.do, each.store.take_turn, "rounds", NOW_NS, MINUTE_NS) for each in asked))

        assert sorted(taken) == [False, False, False, True]

    # Listing

    def test_listings_page_by_id_and_meet_every_condition(self, steps: Steps) -> None:
        steps.enqueue(note("a", group_id=b"g"))
        steps.enqueue(note("b", kind=OTHER, group_id=b"g"))
        steps.enqueue(note("c", group_id=b"h"))
        steps.enqueue(note("d"))
        first, second, *_ = steps.rows()

        assert texts(steps.rows()) == ["a", "b", "c", "d"]
        assert texts(steps.rows(after_id=first.id, limit=2)) == ["b", "c"]
        assert texts(steps.rows(group_id=b"g")) == ["a", "b"]
        assert texts(steps.rows(group_id=b"g", kind=OTHER)) == ["b"]
        assert texts(steps.rows(state="running")) == []
        assert steps.store.count_tasks() == {(first.kind, "pending"): 3, (second.kind, "pending"): 1}

    def test_one_call_takes_ten_thousand_rows(self, steps: Steps) -> None:
        node_id = steps.node()
        answers = steps.enqueue_many([note(str(number), group_id=b"g") for number in range(MANY)])
        assert len({answer.task_id for answer in answers}) == MANY

        ids = [row.id for row in steps.due()]
        steps.do(steps.tasks.park, ids)
        assert steps.heads() == {}
        steps.do(steps.tasks.unpark, [b"g"])
        claimed = steps.claim(node_id)
        assert len(claimed) == len(steps.held(*claimed)) == MANY
        steps.do(steps.tasks.hand_back, ids)
        steps.do(steps.tasks.set_these_aside, ids, NOW_NS)
        assert steps.do(steps.tasks.take_up, [claimed[0].kind], range(MANY, 2 * MANY), NOW_NS, MANY) == MANY
        claimed = steps.claim(node_id)
        half = MANY // 2
        steps.settle(*((task, Finish()) for task in claimed[:half]))
        steps.settle(*((task, discarded(task)) for task in claimed[half:]))
        assert (len(steps.rows()), len(steps.dead())) == (0, MANY - half)
