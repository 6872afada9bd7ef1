"""`pull_in_deadline`: a one-shot that lowers another task's deadline."""

import hashlib
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.plugins.mls.fake_backend import FakeBackend

from callboard import Engine
from callboard.testing import FakeClock
from callboard.wire import AddMissingInstallations, PullInDeadline, Task
from callboard_mls import pull_in_deadline

GROUP = b"group"
TARGET = AddMissingInstallations(group_id=GROUP)
TARGET_HASH = hashlib.sha256(Task(add_missing_installations=TARGET).SerializeToString(deterministic=True)).digest()
HOUR = timedelta(hours=1)


@pytest.fixture
def engine(mls_engine: Callable[..., Engine], backend: FakeBackend) -> Engine:
    """An engine with a target that is due in an hour."""
    engine = mls_engine("pull_in_deadline", "add_missing_installations")
    engine.run_due()
    backend.found(GROUP)
    engine.enqueue(TARGET, not_before=HOUR)
    return engine


def deadline(engine: Engine) -> int:
    [task] = engine.tasks(kind="add_missing_installations")
    return task.next_attempt_at_ns


def pull_in(engine: Engine, not_later_than_ns: int, target: bytes = TARGET_HASH) -> None:
    engine.enqueue(PullInDeadline(target_data_hash=target, not_later_than_ns=not_later_than_ns))
    engine.run_due()
    assert engine.tasks(kind="pull_in_deadline") == []
    assert engine.dead_tasks() == []


def test_it_lowers_the_targets_deadline_and_is_done(engine: Engine, callboard_clock: FakeClock) -> None:
    pull_in(engine, callboard_clock.now_ns() + 5)
    assert deadline(engine) == callboard_clock.now_ns() + 5


def test_it_never_raises_the_targets_deadline(engine: Engine, callboard_clock: FakeClock) -> None:
    before = deadline(engine)
    pull_in(engine, before + 1)
    assert deadline(engine) == before


def test_a_target_that_is_pulled_in_to_the_past_runs_at_once(engine: Engine) -> None:
    pull_in(engine, 0)
    assert engine.tasks() == []


@pytest.mark.parametrize("target", [b"\x11" * 32, b"too short", b""])
def test_a_missing_target_is_reported_and_no_error(
    engine: Engine, callboard_clock: FakeClock, target: bytes, log: list[str]
) -> None:
    before = deadline(engine)
    pull_in(engine, callboard_clock.now_ns(), target)
    assert log == ["INFO there is no live task to pull in; it has ended or was never enqueued"]
    assert deadline(engine) == before


def test_it_needs_no_backend(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine("pull_in_deadline")
    pull_in(engine, 0)
    assert engine.health().missing_services == {}


def test_the_work_can_be_called_inline(engine: Engine, callboard_clock: FakeClock) -> None:
    assert pull_in_deadline(engine, TARGET_HASH, callboard_clock.now_ns() + 5)
    assert deadline(engine) == callboard_clock.now_ns() + 5
    assert not pull_in_deadline(engine, b"\x11" * 32, 0)
