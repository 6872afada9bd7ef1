"""What one node may claim of a kind: the limit holds whatever happens, and pauses begin and end as promised."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.engine.messages import ReceiptThread, SendReceipt

from callboard import Defer, Discard, Done, RescheduleAt, Task, TaskKind
from callboard._actors.throttle import FIRST_PAUSE_NS, LONGEST_PAUSE_NS, Throttle
from callboard._clock import NEVER_NS
from callboard._outcome import Failure
from callboard._run import Run

LIMIT, PAUSE_AFTER = 2, 3


def nothing(message: Any, ctx: Any) -> None:
    """Handle a message of any type."""


LIMITED = TaskKind(SendReceipt, nothing, concurrency=LIMIT, pause_after=PAUSE_AFTER)
FREE = TaskKind(ReceiptThread, nothing)
KINDS = {kind.name: kind for kind in (LIMITED, FREE)}
FAILED = Failure("ZeroDivisionError: oops")
OUTAGE = Failure("ServiceUnavailable", counted=False)
SUCCESSES = (Done(), RescheduleAt(timedelta(1)), Defer(timedelta(1)), Discard("no use"))


def task(task_id: int, kind: str, group_id: bytes | None, identity: bytes) -> Task:
    values: dict[str, Any] = dict.fromkeys(Task._fields, 0)
    return Task(**values | {"id": task_id, "kind": kind, "group_id": group_id, "identity": identity})


class Bench:
    """A throttle on which tests claim and end runs."""

    def __init__(self, *kinds: TaskKind[Any]) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.throttle = Throttle(self.kinds)
        self.now_ns = 0
        self._ids = 0

    def claim(
        self, group: bytes | None = None, kind: TaskKind[Any] = LIMITED, identity: bytes = b""
    ) -> Run | None:
        """Claim a task if the throttle admits it."""
        self._ids += 1
        line = self._ids if group is None else group
        if not self.throttle.admits(kind.name, line, self.now_ns):
            return None
        run = Run(task(self._ids, kind.name, group, identity or b"%d" % self._ids), kind, SendReceipt())
        self.throttle.add(run)
        self.throttle.begin(run, self.now_ns)
        return run

    def end(self, run: Run, result: Any) -> str | None:
        """End a run as the scheduler does."""
        run.result = result
        change = self.throttle.ended(run, self.now_ns)
        self.throttle.remove(run)
        return change

    def fail(self, *groups: bytes, kind: TaskKind[Any] = LIMITED) -> list[str | None]:
        """Fail one task of each of these groups, one after the other."""
        changes = []
        for group in groups:
            run = self.claim(group, kind)
            assert run is not None
            changes.append(self.end(run, FAILED))
        return changes


# Limits


def test_no_more_groups_or_tasks_than_the_limit_are_claimed_at_once() -> None:
    bench = Bench(LIMITED)
    first, loose = bench.claim(b"a"), bench.claim()

    assert first is not None
    assert loose is not None
    assert bench.throttle.room(LIMITED.name, 0) == 0
    assert bench.claim(b"b") is None
    assert bench.claim() is None
    assert bench.claim(b"a") is not None, "tasks of one group never overlap"

    bench.end(loose, Done())
    assert bench.claim(b"b") is not None
    bench.end(first, Done())
    assert bench.claim(b"c") is None, "the group's other task is still claimed"


def test_a_kind_without_a_limit_has_room_for_any_number() -> None:
    bench = Bench(FREE)
    for _ in range(1_000):
        assert bench.claim(kind=FREE) is not None
    assert bench.throttle.room(FREE.name, 0) is None
    assert not bench.throttle.is_narrow(FREE.name)


# The circuit breaker


def test_a_kind_is_paused_once_so_many_different_groups_have_failed_in_a_row() -> None:
    bench = Bench(LIMITED)

    assert bench.fail(b"a", b"b", b"c") == [None, None, "paused"]

    [paused] = bench.throttle.paused(bench.now_ns)
    assert paused == (LIMITED.name, PAUSE_AFTER, FIRST_PAUSE_NS, None, FAILED.error)
    assert bench.claim(b"d") is None
    assert bench.throttle.resumes_ns(bench.now_ns) == FIRST_PAUSE_NS


def test_20_different_groups_pause_a_kind_by_default() -> None:
    bench = Bench(FREE)

    changes = bench.fail(*(b"%d" % number for number in range(20)), kind=FREE)

    assert changes == [None] * 19 + ["paused"]


@pytest.mark.parametrize("group", [b"poison", None], ids=["group", "task"])
def test_one_poison_task_pauses_nothing_however_often_it_fails(group: bytes | None) -> None:
    bench = Bench(LIMITED)
    for _ in range(1_000):
        run = bench.claim(group, identity=b"poison")
        assert run is not None
        assert bench.end(run, FAILED) is None
    assert not bench.throttle.paused_kinds()


@pytest.mark.parametrize("success", SUCCESSES, ids=lambda success: type(success).__name__)
def test_a_success_starts_the_count_anew(success: Any) -> None:
    bench = Bench(LIMITED)
    for _ in range(3):
        bench.fail(b"a", b"b")
        run = bench.claim(b"c")
        assert run is not None
        bench.end(run, success)
    assert not bench.throttle.paused_kinds()


@pytest.mark.parametrize("result", [OUTAGE, "handed back", "dropped", None])
def test_what_counts_no_attempt_tells_nothing_of_the_kind(result: Any) -> None:
    bench = Bench(LIMITED)
    bench.fail(b"a", b"b")
    for number in range(10):
        run = bench.claim(b"%d" % number)
        assert run is not None
        assert bench.end(run, result) is None
    assert bench.fail(b"c") == ["paused"]


def test_a_run_that_was_cancelled_tells_nothing_but_one_that_timed_out_has_failed() -> None:
    bench = Bench(LIMITED)
    bench.fail(b"a", b"b")
    run = bench.claim(b"c")
    assert run is not None
    run.cancelled = True
    assert bench.end(run, FAILED) is None

    run = bench.claim(b"c")
    assert run is not None
    run.cancelled = run.timed_out = True
    assert bench.end(run, FAILED) == "paused"


def test_what_ctx_complete_has_committed_is_a_success_whatever_the_handler_raised_then() -> None:
    bench = Bench(LIMITED)
    bench.fail(b"a", b"b")
    run = bench.claim(b"c")
    assert run is not None
    run.completed = Done()
    assert bench.end(run, FAILED) is None
    assert bench.fail(b"d", b"e") == [None, None]


def test_a_recurring_kind_that_returns_done_has_failed() -> None:
    kind = TaskKind(SendReceipt, nothing, recurring=True, pause_after=1)
    bench = Bench(kind)
    run = bench.claim(kind=kind)
    assert run is not None
    assert bench.end(run, Done()) == "paused"


def test_one_task_is_tried_after_the_pause_and_its_success_resumes_the_kind() -> None:
    bench = Bench(LIMITED)
    bench.fail(b"a", b"b", b"c")
    bench.now_ns = FIRST_PAUSE_NS - 1
    assert bench.claim(b"a") is None

    bench.now_ns += 1
    trial = bench.claim(b"a")
    assert trial is not None
    assert bench.claim(b"a") is None, "not even of the same group"
    assert bench.claim(b"b") is None
    assert not bench.throttle.refuses(trial)
    assert bench.throttle.paused(bench.now_ns)[0].trial == trial.task.id
    assert bench.end(trial, Done()) == "resumed"
    assert not bench.throttle.paused_kinds()
    assert bench.fail(b"a", b"b") == [None, None]


def test_each_trial_that_fails_doubles_the_pause_up_to_a_minute() -> None:
    bench = Bench(LIMITED)
    bench.fail(b"a", b"b", b"c")
    pauses = []
    for _ in range(8):
        until_ns = bench.throttle.resumes_ns(bench.now_ns)
        pauses.append((until_ns - bench.now_ns) // 10**9)
        bench.now_ns = until_ns
        assert bench.fail(b"a") == [None]
    assert pauses == [5, 10, 20, 40, 60, 60, 60, 60]


@pytest.mark.parametrize("result", [OUTAGE, "handed back", None])
def test_a_trial_that_tells_nothing_lets_another_one_be_tried_at_once(result: Any) -> None:
    bench = Bench(LIMITED)
    bench.fail(b"a", b"b", b"c")
    bench.now_ns = FIRST_PAUSE_NS
    trial = bench.claim(b"a")
    assert trial is not None
    bench.end(trial, result)

    assert bench.claim(b"b") is not None


def test_a_trial_whose_claim_did_not_commit_was_none() -> None:
    bench = Bench(LIMITED)
    bench.fail(b"a", b"b", b"c")
    bench.now_ns = FIRST_PAUSE_NS
    trial = bench.claim(b"a")
    assert trial is not None
    bench.throttle.remove(trial)

    assert bench.claim(b"a") is not None


def test_runs_from_before_the_pause_do_not_begin_but_the_success_of_one_that_did_ends_it() -> None:
    bench = Bench(FREE)
    begun, waiting = bench.claim(b"begun", FREE), bench.claim(b"waiting", FREE)
    assert begun is not None
    assert waiting is not None
    bench.fail(*(b"%d" % number for number in range(20)), kind=FREE)

    assert bench.throttle.refuses(waiting)
    assert bench.end(waiting, "handed back") is None
    assert bench.end(begun, Done()) == "resumed"


def test_a_run_that_was_being_claimed_when_its_kind_was_paused_is_no_trial() -> None:
    bench = Bench(FREE)
    bench.fail(*(b"%d" % number for number in range(20)), kind=FREE)
    run = Run(task(99, FREE.name, b"late", b"late"), FREE, SendReceipt())
    bench.throttle.add(run)
    bench.throttle.begin(run, bench.now_ns)

    assert bench.throttle.refuses(run)
    assert bench.throttle.paused(bench.now_ns)[0].trial is None


def test_a_kind_that_is_never_to_be_paused_is_not() -> None:
    kind = TaskKind(SendReceipt, nothing, pause_after=None)
    bench = Bench(kind)
    assert set(bench.fail(*(b"%d" % number for number in range(100)), kind=kind)) == {None}


# Whatever happens


class Anything(RuleBasedStateMachine):
    """Claims, ends and time in any order, beside a model that keeps nothing but what the promises name."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(LIMITED, FREE)
        self.runs: list[Run] = []
        self.failed: dict[str, set[bytes]] = {name: set() for name in KINDS}
        self.began_ns: dict[str, int] = {}

    @rule(kind=st.sampled_from([LIMITED, FREE]), group=st.sampled_from([None, b"a", b"b", b"c", b"d"]))
    def claim(self, kind: TaskKind[Any], group: bytes | None) -> None:
        paused = kind.name in self.bench.throttle.paused_kinds()
        run = self.bench.claim(group, kind)
        if run is None:
            lines = {each.task.group_id or each.task.id for each in self.runs if each.kind is kind}
            assert paused or len(lines) == LIMIT, "only a pause and a limit hold a kind back"
            return
        self.runs.append(run)
        if paused:
            assert self.bench.now_ns >= self.began_ns[kind.name] + FIRST_PAUSE_NS
            assert not self.bench.throttle.refuses(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), result=st.sampled_from([FAILED, FAILED, FAILED, OUTAGE, "handed back", *SUCCESSES]))
    def end(self, data: st.DataObject, result: Any) -> None:
        run = self.runs.pop(data.draw(st.integers(0, len(self.runs) - 1)))
        name = run.task.kind
        was_paused = name in self.bench.throttle.paused_kinds()
        change = self.bench.end(run, result)
        if result in SUCCESSES:
            self.failed[name].clear()
            assert change == ("resumed" if was_paused else None)
            assert name not in self.bench.throttle.paused_kinds()
        elif result == FAILED and not was_paused:
            self.failed[name].add(run.task.group_id or run.task.identity)
            enough = len(self.failed[name]) >= (KINDS[name].pause_after or 0)
            assert change == ("paused" if enough else None)
            if enough:
                self.failed[name].clear()
                self.began_ns[name] = self.bench.now_ns
        else:
            assert change is None

    @rule(seconds=st.integers(0, 70))
    def wait(self, seconds: int) -> None:
        self.bench.now_ns += seconds * 10**9

    @invariant()
    def the_limit_holds(self) -> None:
        limited = [run for run in self.runs if run.kind is LIMITED]
        assert len({run.task.group_id or run.task.id for run in limited}) <= LIMIT

    @invariant()
    def a_pause_has_one_trial_or_an_end_within_a_minute(self) -> None:
        for paused in self.bench.throttle.paused(self.bench.now_ns):
            begun = [run for run in self.runs if run.kind.name == paused.kind]
            trials = [run.task.id for run in begun if not self.bench.throttle.refuses(run)]
            assert trials == ([] if paused.trial is None else [paused.trial])
            assert 0 <= paused.resumes_in_ns <= LONGEST_PAUSE_NS
            later = max(self.bench.throttle.resumes_ns(self.bench.now_ns) - self.bench.now_ns, 0)
            assert paused.resumes_in_ns in (0, later) or later < paused.resumes_in_ns

    @invariant()
    def nothing_is_kept_of_what_has_ended(self) -> None:
        if not self.runs:
            assert self.bench.throttle.busy_groups(LIMITED.name) == []
        if not self.bench.throttle.paused_kinds():
            assert self.bench.throttle.resumes_ns(self.bench.now_ns) == NEVER_NS


TestAnything: Callable[..., Any] = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=40)  # type: ignore[attr-defined]
