"""`add_missing_installations`: which groups get a task, and what becomes of it."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.plugins.mls.fake_backend import FakeBackend

from callboard import (
    DeadReason,
    Engine,
    InstallationAdded,
    ServiceUnavailable,
    StoreError,
    Task,
)
from callboard.testing import FakeClock
from callboard.wire import AddMissingInstallations
from callboard_mls import (
    DirectoryBehindError,
    EpochRejectedError,
    add_missing_installations,
    schedule_missing_installations,
)

KIND = "add_missing_installations"
GROUP = b"group"


@pytest.fixture
def engine(mls_engine: Callable[..., Engine]) -> Engine:
    """An engine that has reconciled, so what a test sees later is its own doing."""
    engine = mls_engine(KIND)
    engine.run_due()
    return engine


def tasks(engine: Engine) -> list[Task]:
    return engine.tasks(kind=KIND)


def settle(engine: Engine, backend: FakeBackend, *group_ids: bytes) -> None:
    """Create groups of `ann` and `bob`, and let the tasks of their creation end."""
    for group_id in group_ids:
        backend.found(group_id, "bob")
        engine.group(group_id).created("ann", members=["bob"])
    engine.run_due()
    assert tasks(engine) == []


# When the task is ensured


def test_the_task_is_ensured_in_the_transaction_that_creates_a_group(engine: Engine) -> None:
    with pytest.raises(LookupError), engine.transaction() as tx:
        tx.group(b"undone").created("ann")
        raise LookupError("the host changed its mind")
    engine.group(GROUP).created("ann")
    assert [task.group_id for task in tasks(engine)] == [GROUP]


def test_a_crash_between_creating_and_adding_heals(engine: Engine, backend: FakeBackend) -> None:
    backend.found(GROUP, "bob")
    backend.directory["bob"].add(b"bob-2")
    engine.group(GROUP).created("ann", members=["bob"])  # and the host is gone before it added bob-2
    engine.run_due()
    assert backend.commits == ["+bob-2"]


def test_other_group_events_ensure_nothing(engine: Engine, backend: FakeBackend) -> None:
    settle(engine, backend, GROUP)
    engine.group(GROUP).membership_changed(added=["cid"], promoted=["ann"])
    engine.group(GROUP).leave_requested("bob", b"m1")
    engine.group(GROUP).consent("allowed")
    assert tasks(engine) == []


def test_a_new_installation_gets_a_task_for_each_group_of_its_inbox(engine: Engine, backend: FakeBackend) -> None:
    settle(engine, backend, b"1", b"2")
    engine.group(b"without bob").created("ann")
    engine.run_due()
    engine.publish(InstallationAdded("bob", b"bob-2"))
    assert [task.group_id for task in tasks(engine)] == [b"1", b"2"]


def test_a_new_installation_of_ones_own_inbox_gets_its_tasks_too(engine: Engine, backend: FakeBackend) -> None:
    settle(engine, backend, GROUP)
    assert schedule_missing_installations(engine, "ann") == 1


def test_a_group_is_eligible_if_it_was_active_within_90_days(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    settle(engine, backend, b"busy", b"quiet")
    callboard_clock.advance(timedelta(days=90, microseconds=1))
    engine.group(b"busy").active(callboard_clock.now_ns() - 90 * 86_400 * 10**9)
    assert schedule_missing_installations(engine, "bob") == 1
    assert [task.group_id for task in tasks(engine)] == [b"busy"]


@pytest.mark.parametrize(("consent", "scheduled"), [("allowed", 1), ("unknown", 1), ("denied", 0)])
def test_a_group_is_eligible_if_consent_is_allowed_or_unknown(
    engine: Engine, backend: FakeBackend, consent: str, scheduled: int
) -> None:
    settle(engine, backend, GROUP)
    engine.group(GROUP).consent(consent)  # type: ignore[arg-type]
    assert schedule_missing_installations(engine, "bob") == scheduled


def test_tasks_are_deduplicated_and_only_new_ones_counted(engine: Engine, backend: FakeBackend) -> None:
    settle(engine, backend, b"1", b"2")
    assert engine.enqueue(AddMissingInstallations(group_id=b"1")).task_id is not None
    assert schedule_missing_installations(engine, "bob") == 1
    assert schedule_missing_installations(engine, "bob") == 0
    assert [task.group_id for task in tasks(engine)] == [b"1", b"2"]


def test_the_tasks_of_a_new_installation_are_one_transaction(engine: Engine, backend: FakeBackend) -> None:
    settle(engine, backend, b"1", b"2", b"3")
    with engine.transaction() as tx:
        tx.connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON callboard_task WHEN NEW.group_id = CAST('2' AS BLOB)"
            " BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
    with pytest.raises(StoreError):
        schedule_missing_installations(engine, "bob")
    assert tasks(engine) == []


def test_a_started_engine_adds_what_was_announced(engine: Engine, backend: FakeBackend) -> None:
    with engine:
        backend.found(GROUP, "bob")
        engine.group(GROUP).created("ann", members=["bob"])
        assert engine.wait_idle(timeout=10)
        backend.directory["bob"].add(b"bob-2")
        engine.publish(InstallationAdded("bob", b"bob-2"))
        assert engine.wait_idle(timeout=10)
    assert backend.commits == ["+bob-2"]


def test_other_events_ensure_nothing(engine: Engine, backend: FakeBackend) -> None:
    settle(engine, backend, GROUP)
    engine.publish("bob has a new haircut")
    assert tasks(engine) == []


def test_reconcile_makes_up_for_a_lost_announcement(
    make_engine: Callable[..., Engine], mls_engine: Callable[..., Engine], backend: FakeBackend
) -> None:
    without = make_engine()
    backend.found(GROUP, "bob")
    backend.found(b"denied", "bob")
    without.group(GROUP).created("ann", members=["bob"])
    without.group(b"denied").created("ann", members=["bob"], consent="denied")
    backend.directory["bob"].add(b"bob-2")
    mls_engine(KIND).run_due()
    assert backend.commits == ["+bob-2"]
    assert backend.groups[b"denied"]["bob"] == {b"bob-1"}


# What becomes of it


def test_the_members_missing_installations_are_committed_and_nobody_elses(
    engine: Engine, backend: FakeBackend
) -> None:
    settle(engine, backend, GROUP)
    backend.directory |= {"bob": {b"bob-1", b"bob-2", b"bob-3"}, "stranger": {b"stranger-1"}}
    engine.enqueue(AddMissingInstallations(group_id=GROUP))
    engine.run_due()
    assert backend.groups[GROUP] == {"ann": {b"ann-1"}, "bob": {b"bob-1", b"bob-2", b"bob-3"}}
    assert tasks(engine) == []


def test_a_directory_that_has_not_caught_up_is_retryable(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    settle(engine, backend, GROUP)
    backend.directory["bob"].add(b"bob-2")
    backend.behind = True
    engine.enqueue(AddMissingInstallations(group_id=GROUP))
    engine.run_due()
    assert backend.commits == ["+bob-2"]
    assert [task.attempts for task in tasks(engine)] == [1]

    backend.directory["bob"].add(b"bob-3")
    backend.behind = False
    callboard_clock.advance(timedelta(seconds=2))
    engine.run_due()
    assert backend.commits == ["+bob-2", "+bob-3"]
    assert tasks(engine) == []


def test_a_missing_group_finishes_its_task(engine: Engine) -> None:
    engine.enqueue(AddMissingInstallations(group_id=b"nowhere"))
    engine.run_due()
    assert tasks(engine) == []
    assert engine.dead_tasks() == []


def test_a_malformed_group_id_dead_letters_its_task(engine: Engine) -> None:
    engine.enqueue(AddMissingInstallations(group_id=b"malformed"))
    engine.run_due()
    [dead] = engine.dead_tasks()
    assert (dead.reason, dead.last_error) == (
        DeadReason.DISCARDED,
        "malformed group id: it has the wrong length",
    )


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (EpochRejectedError("another won"), 1),
        (RuntimeError("a bug"), 1),
        (ServiceUnavailable("offline"), 0),
    ],
)
def test_anything_else_retries_and_an_outage_counts_no_attempt(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock, error: Exception, attempts: int
) -> None:
    settle(engine, backend, GROUP)
    backend.directory["bob"].add(b"bob-2")
    backend.failures[KIND] = [error]
    engine.enqueue(AddMissingInstallations(group_id=GROUP))
    engine.run_due()
    assert [task.attempts for task in tasks(engine)] == [attempts]

    callboard_clock.advance(timedelta(seconds=2))
    engine.run_due()
    assert backend.commits == ["+bob-2"]
    assert tasks(engine) == []


def test_without_a_backend_the_task_is_left_to_other_nodes(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(KIND)
    engine.group(GROUP).created("ann")
    engine.run_due()
    assert [task.attempts for task in tasks(engine)] == [0]
    assert engine.health().missing_services == {KIND: ["Backend"]}


# Inline


def test_the_work_can_be_called_inline(backend: FakeBackend) -> None:
    backend.found(GROUP, "bob")
    backend.directory["bob"].add(b"bob-2")
    assert add_missing_installations(backend, GROUP) == {b"bob-2"}
    assert add_missing_installations(backend, GROUP) == frozenset()


def test_inline_the_host_learns_what_was_added_before_the_directory_gave_out(backend: FakeBackend) -> None:
    backend.found(GROUP, "bob")
    backend.directory["bob"].add(b"bob-2")
    backend.behind = True
    with pytest.raises(DirectoryBehindError) as caught:
        add_missing_installations(backend, GROUP)
    assert caught.value.added == {b"bob-2"}
