"""`kp_liveness`, `kp_rotation`, `kp_deletion`: three singletons that keep the key package usable."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.plugins.mls.fake_backend import DAY_NS, GRACE_NS, ROTATION_NS, FakeBackend

from callboard import NEVER_NS, Engine, ServiceUnavailable
from callboard.testing import FakeClock
from callboard.wire import KpRotation
from callboard_mls import check_key_package, delete_superseded_key_packages, rotate_key_package
from callboard_mls.key_packages import CHECK_INTERVAL, EXPIRY_MARGIN

PLUGIN = "kp_liveness"
KINDS = {"kp_liveness", "kp_rotation", "kp_deletion"}
CHECK_NS = 6 * 3_600 * 10**9


@pytest.fixture
def engine(mls_engine: Callable[..., Engine]) -> Engine:
    """An engine whose singletons have run once, with all well."""
    engine = mls_engine(PLUGIN)
    engine.run_due()
    return engine


def deadlines(engine: Engine) -> dict[str, int]:
    """When each of the three runs next."""
    return {task.kind: task.next_attempt_at_ns for task in engine.tasks()}


def attempts(engine: Engine) -> dict[str, int]:
    return {task.kind: task.attempts for task in engine.tasks()}


def cancel(engine: Engine, kind: str) -> None:
    [task] = engine.tasks(kind=kind)
    assert engine.cancel(task.id)


# Singletons


def test_the_three_are_ensured_when_the_engine_starts(mls_engine: Callable[..., Engine]) -> None:
    with mls_engine(PLUGIN) as engine:
        assert engine.wait_idle(timeout=10)
        assert {task.kind for task in engine.tasks()} == KINDS


def test_a_second_start_leaves_their_deadlines(engine: Engine, mls_engine: Callable[..., Engine]) -> None:
    before = deadlines(engine)
    engine.stop()
    again = mls_engine(PLUGIN)
    again.run_due()
    assert deadlines(again) == before
    assert len(again.tasks()) == 3


def test_they_never_expire_and_never_exhaust(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    backend.failures["key_package_status"] = [RuntimeError("a bug")] * 40
    for _ in range(40):
        callboard_clock.advance(timedelta(days=1))
        engine.run_due()
    assert {task.expires_at_ns for task in engine.tasks()} == {NEVER_NS}
    assert {task.kind for task in engine.tasks()} == KINDS and engine.dead_tasks() == []


def test_reconcile_ensures_a_singleton_that_is_gone(engine: Engine) -> None:
    cancel(engine, "kp_rotation")
    with engine:
        engine.request_reconcile("interval")
        assert engine.wait_idle(timeout=10)
        assert deadlines(engine).keys() == KINDS


# Liveness


def test_a_usable_key_package_is_left_alone_and_asked_for_again(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    assert backend.rotations == 0
    assert deadlines(engine)["kp_liveness"] == callboard_clock.now_ns() + CHECK_NS
    assert timedelta(microseconds=CHECK_NS // 1_000) == CHECK_INTERVAL


def lost(backend: FakeBackend) -> None:
    backend.published = None


def invalid(backend: FakeBackend) -> None:
    backend.problem = "its private part is gone"


def expired(backend: FakeBackend) -> None:
    backend.published = backend.clock.now_ns()


def about_to_expire(backend: FakeBackend) -> None:
    backend.published = backend.clock.now_ns() + EXPIRY_MARGIN.days * DAY_NS + CHECK_NS


@pytest.mark.parametrize("befall", [lost, invalid, expired, about_to_expire])
def test_a_key_package_that_others_cannot_use_pulls_in_the_rotation(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock, befall: Callable[[FakeBackend], None]
) -> None:
    befall(backend)  # the network's copy; the local column still says that all is well for 30 days
    engine.run_due()
    assert backend.rotations == 0
    callboard_clock.advance(CHECK_INTERVAL)
    engine.run_due()
    assert backend.rotations == 1
    assert deadlines(engine) == {
        "kp_liveness": callboard_clock.now_ns() + CHECK_NS,
        "kp_rotation": callboard_clock.now_ns() + ROTATION_NS,
        "kp_deletion": callboard_clock.now_ns() + GRACE_NS,
    }


def test_a_key_package_that_ends_after_the_margin_is_not_about_to_expire(
    engine: Engine, backend: FakeBackend
) -> None:
    backend.published = backend.clock.now_ns() + EXPIRY_MARGIN.days * DAY_NS + 1
    assert check_key_package(engine, backend)
    backend.published -= 1
    assert not check_key_package(engine, backend)


def test_liveness_makes_a_rotation_that_is_gone_again(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    cancel(engine, "kp_rotation")
    lost(backend)
    callboard_clock.advance(CHECK_INTERVAL)
    engine.run_due()
    assert backend.rotations == 1


def test_liveness_that_finds_the_rotation_running_has_it_look_again(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    def lost_and_noticed() -> None:
        lost(backend)
        assert not check_key_package(engine, backend)

    backend.next_rotation = callboard_clock.now_ns()
    backend.meanwhile["rotate_key_package"] = lost_and_noticed
    engine.pull_in(KpRotation(), not_later_than_ns=callboard_clock.now_ns())
    engine.run_due()
    assert backend.rotations == 2


def test_a_network_that_is_away_says_nothing_about_the_key_package(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    backend.failures["key_package_status"] = [ServiceUnavailable("offline")]
    callboard_clock.advance(CHECK_INTERVAL)
    engine.run_due()
    assert backend.rotations == 0
    assert attempts(engine)["kp_liveness"] == 0
    assert deadlines(engine)["kp_liveness"] == callboard_clock.now_ns() + 2 * 10**9


# Rotation


def test_rotation_not_due_reschedules_to_the_live_deadline(engine: Engine, backend: FakeBackend) -> None:
    assert backend.rotations == 0
    assert deadlines(engine)["kp_rotation"] == backend.next_rotation


def test_rotation_rotates_when_due_and_reschedules_to_the_next(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    callboard_clock.advance(timedelta(days=30))
    engine.run_due()
    assert backend.rotations == 1
    assert deadlines(engine)["kp_rotation"] == callboard_clock.now_ns() + ROTATION_NS


def test_rotation_publishes_the_first_key_package(mls_engine: Callable[..., Engine], backend: FakeBackend) -> None:
    backend.published, backend.next_rotation = None, 0
    mls_engine(PLUGIN).run_due()
    assert backend.rotations == 1


def test_rotation_that_comes_early_without_need_rotates_nothing(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    engine.pull_in(KpRotation(), not_later_than_ns=callboard_clock.now_ns())
    engine.run_due()
    assert backend.rotations == 0
    assert deadlines(engine)["kp_rotation"] == backend.next_rotation


def test_rotation_backs_off_while_the_network_is_away(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    backend.failures["rotate_key_package"] = [ServiceUnavailable("offline")]
    callboard_clock.advance(timedelta(days=30))
    engine.run_due()
    assert backend.rotations == 0
    assert attempts(engine)["kp_rotation"] == 0
    callboard_clock.advance(timedelta(seconds=2))
    engine.run_due()
    assert backend.rotations == 1


def test_rotation_does_not_spin_when_the_backends_clock_is_behind(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    backend.meanwhile["rotate_key_package"] = lambda: setattr(backend, "next_rotation", 1)
    callboard_clock.advance(timedelta(days=30))
    engine.run_due()
    assert backend.rotations == 1
    assert deadlines(engine)["kp_rotation"] == callboard_clock.now_ns() + 60 * 10**9


# Deletion


def test_the_deletions_deadline_is_pulled_in_after_a_rotation(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    callboard_clock.advance(timedelta(days=30) - timedelta(hours=1))
    engine.run_due()  # nothing is superseded: the deletion's next look is six hours away
    callboard_clock.advance(timedelta(hours=1))
    engine.run_due()
    assert backend.rotations == 1
    assert deadlines(engine)["kp_deletion"] == callboard_clock.now_ns() + GRACE_NS


def test_superseded_private_material_is_deleted_after_the_grace_period(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    callboard_clock.advance(timedelta(days=30))
    engine.run_due()
    callboard_clock.advance(timedelta(days=1) - timedelta(microseconds=1))
    engine.run_due()
    assert len(backend.superseded) == 1
    callboard_clock.advance(timedelta(microseconds=1))
    engine.run_due()
    assert backend.superseded == []
    assert deadlines(engine)["kp_deletion"] == callboard_clock.now_ns() + CHECK_NS


def test_a_crash_between_rotating_and_pulling_in_the_deletion_heals(
    engine: Engine, backend: FakeBackend, callboard_clock: FakeClock
) -> None:
    def crash() -> None:
        raise RuntimeError("gone")

    callboard_clock.advance(timedelta(days=30))
    backend.meanwhile["rotate_key_package"] = crash
    engine.run_due()
    callboard_clock.advance(timedelta(seconds=2))
    engine.run_due()
    assert backend.rotations == 1
    assert deadlines(engine)["kp_deletion"] == backend.superseded[0]


def test_deletion_retries_what_failed(engine: Engine, backend: FakeBackend, callboard_clock: FakeClock) -> None:
    backend.failures["delete_superseded_key_packages"] = [OSError("the disk is full")]
    callboard_clock.advance(CHECK_INTERVAL)
    engine.run_due()
    assert attempts(engine)["kp_deletion"] == 1
    assert deadlines(engine)["kp_deletion"] == callboard_clock.now_ns() + 2 * 10**9


# A host without a backend, and inline


def test_without_a_backend_the_tasks_are_left_to_other_nodes(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(PLUGIN)
    engine.run_due()
    assert attempts(engine) == dict.fromkeys(KINDS, 0)
    assert engine.health().missing_services == {kind: ["Backend"] for kind in KINDS}


def test_the_work_can_be_called_inline(engine: Engine, backend: FakeBackend, callboard_clock: FakeClock) -> None:
    assert check_key_package(engine, backend)
    lost(backend)
    assert not check_key_package(engine, backend)
    assert rotate_key_package(engine, backend) == callboard_clock.now_ns() + ROTATION_NS
    assert check_key_package(engine, backend)
    assert delete_superseded_key_packages(backend) == callboard_clock.now_ns() + GRACE_NS
    engine.run_due()
    assert backend.rotations == 1  # the task that was pulled in found it done
