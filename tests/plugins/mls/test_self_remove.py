"""`process_pending_self_remove`: when it is ensured, whom it removes, and what it cleans up."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.plugins.mls.fake_backend import FakeBackend

from callboard import DeadReason, Engine, EnqueueStatus, ServiceUnavailable, Task
from callboard.testing import FakeClock
from callboard.wire import ProcessPendingSelfRemove
from callboard_mls import (
    DirectoryBehindError,
    EpochRejectedError,
    GroupNotFoundError,
    MalformedGroupIdError,
    process_pending_self_removals,
)

KIND = "process_pending_self_remove"
GROUP = b"group"
TASK = ProcessPendingSelfRemove(group_id=GROUP)


@pytest.fixture
def engine(mls_engine: Callable[..., Engine], backend: FakeBackend) -> Engine:
    """An engine of a super-admin, `ann`, whose group also has `bob` and `cid` in it."""
    engine = mls_engine(KIND)
    engine.run_due()  # the first reconcile is over, so what a test sees later is its own doing
    backend.found(GROUP, "bob", "cid")
    engine.group(GROUP).created("ann", members=["bob", "cid"], super_admins=["ann"])
    return engine


def tasks(engine: Engine) -> list[Task]:
    return engine.tasks(kind=KIND)


def pending(engine: Engine) -> set[str]:
    state = engine.group(GROUP).state()
    assert state is not None
    return {request.inbox_id for request in state.pending_removes}


def is_marked(engine: Engine) -> bool:
    state = engine.group(GROUP).state()
    assert state is not None
    return state.has_pending_leave_request


# When the task is ensured


@pytest.mark.parametrize("inbox_id", ["bob", "ann"])
def test_a_leave_request_ensures_the_task_for_ones_own_too(engine: Engine, inbox_id: str) -> None:
    engine.group(GROUP).leave_requested(inbox_id, b"m1")
    assert [task.group_id for task in tasks(engine)] == [GROUP]


def test_a_leave_request_and_its_task_are_one_transaction(engine: Engine) -> None:
    with pytest.raises(LookupError), engine.transaction() as tx:
        tx.group(GROUP).leave_requested("bob", b"m1")
        raise LookupError("the host changed its mind")
    assert tasks(engine) == []
    assert pending(engine) == set()


def test_a_redelivered_leave_request_changes_nothing(engine: Engine) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    before = tasks(engine)
    engine.group(GROUP).leave_requested("bob", b"m1")
    assert tasks(engine) == before


def test_a_second_members_request_merges_into_the_waiting_task(engine: Engine) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.group(GROUP).leave_requested("cid", b"m2")
    assert [task.requests for task in tasks(engine)] == [2]


def test_promotion_marks_the_group_and_ensures_the_task_if_somebody_else_is_pending(
    engine: Engine, backend: FakeBackend
) -> None:
    engine.group(GROUP).membership_changed(demoted=["ann"])
    backend.admins = {"cid"}
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.run_due()
    assert tasks(engine) == [] and not is_marked(engine)

    engine.group(GROUP).membership_changed(promoted=["ann"])
    backend.admins = {"ann", "cid"}
    assert len(tasks(engine)) == 1 and is_marked(engine)
    engine.run_due()
    assert backend.commits == ["-bob"]


def test_demotion_clears_the_mark(engine: Engine) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    assert is_marked(engine)
    engine.group(GROUP).membership_changed(demoted=["ann"])
    assert not is_marked(engine)


def test_promotion_of_one_who_is_leaving_ensures_the_task_for_the_others(engine: Engine) -> None:
    engine.group(GROUP).membership_changed(demoted=["ann"])
    engine.group(GROUP).leave_requested("ann", b"m1")
    engine.group(GROUP).leave_requested("bob", b"m2")
    for task in tasks(engine):
        engine.cancel(task.id)
    engine.group(GROUP).membership_changed(promoted=["ann"])
    assert len(tasks(engine)) == 1


def test_promotion_ensures_nothing_without_somebody_elses_request(engine: Engine) -> None:
    engine.group(GROUP).membership_changed(demoted=["ann"])
    engine.group(GROUP).leave_requested("ann", b"m1")
    engine.run_due()
    engine.group(GROUP).membership_changed(promoted=["ann"])
    assert tasks(engine) == []


def test_promotion_of_somebody_else_ensures_nothing(engine: Engine, backend: FakeBackend) -> None:
    engine.group(GROUP).membership_changed(demoted=["ann"])
    backend.admins = set()
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.run_due()
    engine.group(GROUP).membership_changed(promoted=["cid"])
    assert tasks(engine) == []


def test_other_group_events_ensure_nothing(engine: Engine) -> None:
    engine.group(GROUP).membership_changed(added=["dan"], removed=["cid"])
    engine.group(GROUP).consent("allowed")
    assert tasks(engine) == []


# Removing


def test_the_pending_members_still_in_the_group_are_removed(engine: Engine, backend: FakeBackend) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.group(GROUP).leave_requested("gone", b"m2")
    assert is_marked(engine)
    engine.run_due()
    assert backend.commits == ["-bob"]
    assert backend.groups[GROUP].keys() == {"ann", "cid"}


def test_an_eviction_is_reported_to_the_engine_and_ends_the_task(engine: Engine) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.run_due()
    state = engine.group(GROUP).state()
    assert state is not None
    assert state.members == {"ann", "cid"}
    assert state.pending_removes == () and not state.has_pending_leave_request
    assert tasks(engine) == []
    assert engine.dead_tasks() == []


def test_a_started_engine_evicts_after_the_commit_of_the_request(engine: Engine, backend: FakeBackend) -> None:
    with engine:
        engine.group(GROUP).leave_requested("bob", b"m1")
        assert engine.wait_idle(timeout=10)
    assert backend.commits == ["-bob"]


def test_removing_is_for_super_admins(engine: Engine, backend: FakeBackend) -> None:
    backend.admins = {"cid"}
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.run_due()
    assert backend.commits == []
    assert pending(engine) == {"bob"}
    assert tasks(engine) == []


def test_removing_leaves_out_ones_own_pending_request(engine: Engine, backend: FakeBackend) -> None:
    engine.group(GROUP).leave_requested("ann", b"m1")
    engine.group(GROUP).leave_requested("bob", b"m2")
    engine.run_due()
    assert backend.commits == ["-bob"]
    assert pending(engine) == {"ann"}


def test_ones_own_request_alone_removes_nobody(engine: Engine, backend: FakeBackend) -> None:
    engine.group(GROUP).leave_requested("ann", b"m1")
    engine.run_due()
    assert backend.commits == []
    assert pending(engine) == {"ann"}
    assert tasks(engine) == []
    assert engine.dead_tasks() == []


def test_nobody_who_is_gone_already_is_removed(engine: Engine, backend: FakeBackend) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    del backend.groups[GROUP]["bob"]
    engine.run_due()
    assert backend.calls == [("members", GROUP)]


# Cleaning up


def test_cleaning_up_is_for_everybody(engine: Engine, backend: FakeBackend) -> None:
    backend.admins = {"cid"}
    engine.group(GROUP).leave_requested("bob", b"m1")
    del backend.groups[GROUP]["bob"]
    engine.run_due()
    state = engine.group(GROUP).state()
    assert state is not None
    assert backend.commits == []
    assert state.pending_removes == () and not state.has_pending_leave_request
    assert state.members == {"ann", "cid"}


def test_a_request_that_arrives_meanwhile_is_not_wiped(engine: Engine, backend: FakeBackend) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    marks: list[bool] = []

    def cid_asks_too() -> None:
        engine.group(GROUP).leave_requested("cid", b"m2")
        backend.meanwhile["members"] = lambda: marks.append(is_marked(engine))

    backend.meanwhile["remove_members"] = cid_asks_too
    engine.run_due()
    assert marks == [True]  # after the first clean-up, before the second eviction
    assert backend.commits == ["-bob", "-cid"]
    assert pending(engine) == set() and not is_marked(engine)


def test_a_member_who_is_added_again_and_asks_again_meanwhile_is_not_forgotten(
    engine: Engine, backend: FakeBackend
) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    rows: list[set[str]] = []

    def bob_comes_back() -> None:
        backend.groups[GROUP]["bob"] = {b"bob-1"}
        engine.group(GROUP).membership_changed(removed=["bob"])
        engine.group(GROUP).membership_changed(added=["bob"])
        engine.group(GROUP).leave_requested("bob", b"m2")
        backend.meanwhile["members"] = lambda: rows.append(pending(engine))

    backend.meanwhile["remove_members"] = bob_comes_back
    engine.run_due()
    assert rows == [{"bob"}]
    assert backend.commits == ["-bob", "-bob"]


def test_a_mark_that_no_request_asks_for_is_cleared(engine: Engine) -> None:
    with engine.transaction() as tx:
        tx.connection.execute("UPDATE callboard_group SET has_pending_leave_request = 1")
    engine.enqueue(TASK)
    engine.run_due()
    assert not is_marked(engine)


def test_a_run_that_was_cancelled_cleans_up_nothing(engine: Engine, backend: FakeBackend) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    [task] = tasks(engine)
    backend.meanwhile["remove_members"] = lambda: engine.cancel(task.id)
    engine.run_due()
    assert pending(engine) == {"bob"}
    assert [dead.reason for dead in engine.dead_tasks()] == [DeadReason.CANCELLED]


def test_a_group_that_the_engine_does_not_know_gets_no_rows(engine: Engine, backend: FakeBackend) -> None:
    backend.found(b"other")
    engine.enqueue(ProcessPendingSelfRemove(group_id=b"other"))
    engine.run_due()
    assert engine.group(b"other").state() is None
    assert tasks(engine) == []
    assert engine.dead_tasks() == []


# Reconciling


def test_reconcile_backfills_groups_with_pending_requests(
    make_engine: Callable[..., Engine], mls_engine: Callable[..., Engine], backend: FakeBackend
) -> None:
    without = make_engine()
    without.group(GROUP).created("ann", members=["bob"], super_admins=["ann"])
    without.group(GROUP).leave_requested("bob", b"m1")
    without.group(b"unasked").created("ann", members=["bob"])
    backend.found(GROUP, "bob")
    backend.found(b"unasked", "bob")

    engine = mls_engine(KIND)
    engine.run_due()
    assert backend.commits == ["-bob"]
    assert {group_id for _, group_id in backend.calls} == {GROUP}


def test_reconcile_backfills_groups_that_are_marked(
    make_engine: Callable[..., Engine], mls_engine: Callable[..., Engine], backend: FakeBackend
) -> None:
    backend.found(GROUP)
    without = make_engine()
    without.group(GROUP).created("ann")
    with without.transaction() as tx:
        tx.connection.execute("UPDATE callboard_group SET has_pending_leave_request = 1")

    engine = mls_engine(KIND)
    engine.run_due()
    assert not is_marked(engine)


# Failing


def test_a_missing_group_finishes_its_task_and_keeps_the_requests(engine: Engine, backend: FakeBackend) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    del backend.groups[GROUP]
    engine.run_due()
    assert tasks(engine) == []
    assert engine.dead_tasks() == []
    assert pending(engine) == {"bob"}


def test_a_malformed_group_id_dead_letters_its_task(engine: Engine) -> None:
    engine.enqueue(ProcessPendingSelfRemove(group_id=b"malformed"))
    engine.run_due()
    [dead] = engine.dead_tasks()
    assert dead.reason == DeadReason.DISCARDED
    assert dead.last_error == "malformed group id: it has the wrong length"


@pytest.mark.parametrize("method", ["members", "super_admins", "remove_members"])
@pytest.mark.parametrize(
    "error", [EpochRejectedError("another won"), DirectoryBehindError("not yet"), RuntimeError("a bug")]
)
def test_anything_else_retries(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock, method: str, error: Exception
) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    backend.failures[method] = [error]
    engine.run_due()
    assert [task.attempts for task in tasks(engine)] == [1]
    assert pending(engine) == {"bob"}

    callboard_clock.advance(timedelta(seconds=2))
    engine.run_due()
    assert backend.commits == ["-bob"]
    assert tasks(engine) == []


def test_a_network_that_is_away_counts_no_attempt(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    backend.failures["members"] = [ServiceUnavailable("offline")] * 50
    for _ in range(50):
        engine.run_due()
        callboard_clock.advance(timedelta(minutes=1))
    assert [task.attempts for task in tasks(engine)] == [0]
    engine.run_due()
    assert backend.commits == ["-bob"]


def test_a_crash_between_publishing_and_cleaning_up_removes_nobody_twice(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    def crash() -> None:
        raise RuntimeError("gone")

    engine.group(GROUP).leave_requested("bob", b"m1")
    backend.meanwhile["remove_members"] = crash
    engine.run_due()
    assert pending(engine) == {"bob"}

    callboard_clock.advance(timedelta(seconds=2))
    engine.run_due()
    assert backend.commits == ["-bob"]
    assert pending(engine) == set()


def test_without_a_backend_the_task_is_left_to_other_nodes(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(KIND)
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.run_due()
    assert [task.attempts for task in tasks(engine)] == [0]
    assert engine.health().missing_services == {KIND: ["Backend"]}


# Inline


def test_the_work_can_be_called_inline_and_leaves_the_task_nothing_to_do(
    engine: Engine, backend: FakeBackend
) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    assert process_pending_self_removals(engine, backend, GROUP) == {"bob"}
    assert pending(engine) == set()
    assert process_pending_self_removals(engine, backend, GROUP) == frozenset()
    engine.run_due()
    assert backend.commits == ["-bob"]


@pytest.mark.parametrize(
    ("group_id", "error"), [(b"nowhere", GroupNotFoundError), (b"malformed", MalformedGroupIdError)]
)
def test_inline_the_host_gets_the_backends_errors(
    engine: Engine, backend: FakeBackend, group_id: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        process_pending_self_removals(engine, backend, group_id)


def test_a_new_request_after_an_exhausted_task_is_a_new_task(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    engine.group(GROUP).leave_requested("bob", b"m1")
    backend.failures["members"] = [EpochRejectedError("another won")] * 20
    for _ in range(20):
        engine.run_due()
        callboard_clock.advance(timedelta(minutes=1))
    assert [dead.reason for dead in engine.dead_tasks()] == [DeadReason.EXHAUSTED]
    assert engine.enqueue(TASK).status == EnqueueStatus.INSERTED
