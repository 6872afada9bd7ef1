"""What a handler gets, and what of its work is committed when."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import (
    RECEIPT,
    WAIT_S,
    Blocking,
    MakeEngine,
    Plugin,
    Scripted,
    receipt,
    receipts,
    thread,
    threads,
)
from tests.engine.rows import sql

from callboard import (
    CompletionError,
    DeadReason,
    Defer,
    Discard,
    Done,
    Engine,
    EnqueueStatus,
    FinishedTask,
    GroupState,
    RescheduleAt,
    ServiceMissingError,
    StaleRunError,
    TaskContext,
    TaskState,
    UnknownKindError,
)
from callboard.testing import FakeClock

HOUR = timedelta(hours=1)
GROUP = b"group"


def run(make_engine: MakeEngine, handler: Any, group: bytes = b"", **options: Any) -> Engine:
    """Run one task through `handler`, and return the engine; `ThreadReceipt`s are there to be enqueued."""
    engine = make_engine(Plugin(receipts(handler), threads(Scripted(Defer(HOUR)))), **options)
    engine.enqueue(receipt("hello", group), origin="the test")
    engine.run_due()
    return engine


# What it tells


def test_the_context_tells_of_the_task_the_engine_and_the_clock(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    seen: list[Any] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        seen.extend([message, ctx.task, ctx.engine, ctx.clock.now_ns(), ctx.cancelled])

    engine = run(make_engine, handler, GROUP)

    message, task, seen_engine, now_ns, cancelled = seen
    assert message == receipt("hello", GROUP)
    assert (task.kind, task.group_id, task.attempts, task.origin) == (RECEIPT, GROUP, 0, "the test")
    assert (task.state, task.token) == (TaskState.RUNNING, 1)
    assert seen_engine is engine
    assert now_ns == callboard_clock.now_ns()
    assert cancelled is False


def test_the_group_is_what_the_rows_say_at_each_look(make_engine: MakeEngine) -> None:
    seen: list[GroupState | None] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        seen.append(ctx.group)
        ctx.engine.group(GROUP).created("alice", super_admins=["alice"])
        seen.append(ctx.group)
        seen.append(ctx.group)
        ctx.engine.group(GROUP).leave_requested("bob", b"message")
        seen.append(ctx.group)

    engine = run(make_engine, handler, GROUP)

    assert seen[0] is None
    assert seen[1] == seen[2]
    assert seen[1] is not None and not seen[1].has_pending_leave_request
    assert seen[3] == engine.group(GROUP).state()
    assert seen[3] is not None and [one.inbox_id for one in seen[3].pending_removes] == ["bob"]


def test_the_group_is_fresh_in_the_actors_next_task_too(make_engine: MakeEngine) -> None:
    seen: list[str | None] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        seen.append(ctx.group and ctx.group.consent)

    with make_engine(Plugin(receipts(handler))) as engine:
        for consent in ("allowed", "denied", "allowed"):
            engine.group(GROUP).consent(consent)
            engine.enqueue(receipt("hello", GROUP))
            assert engine.wait_idle(WAIT_S)

    assert seen == ["allowed", "denied", "allowed"]


def test_a_task_without_a_group_has_none(make_engine: MakeEngine) -> None:
    seen: list[GroupState | None] = []
    run(make_engine, lambda message, ctx: seen.append(ctx.group))

    assert seen == [None]


class Mailer:
    """A service of the host."""


def test_services_are_got_by_their_type(make_engine: MakeEngine) -> None:
    mailer = Mailer()
    seen: list[Mailer] = []
    run(make_engine, lambda message, ctx: seen.append(ctx.service(Mailer)), services={Mailer: mailer})

    assert seen == [mailer]


def test_a_service_that_the_host_did_not_give_is_named(make_engine: MakeEngine) -> None:
    raised: list[ServiceMissingError] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        with pytest.raises(ServiceMissingError, match=r"services=\{Mailer") as error:
            ctx.service(Mailer)
        raised.append(error.value)

    run(make_engine, handler)

    assert len(raised) == 1


# ctx.enqueue


@pytest.mark.parametrize("outcome", [None, Done(), RescheduleAt(HOUR), Defer(HOUR), Discard("no use")])
def test_what_is_buffered_is_committed_with_the_outcome(outcome: Any, make_engine: MakeEngine) -> None:
    during: list[int] = []

    def handler(message: Any, ctx: TaskContext) -> Any:
        ctx.enqueue(thread("child"), not_before=HOUR, key="key", group_id=GROUP, origin="the handler")
        during.append(len(ctx.engine.tasks()))
        return outcome

    engine = run(make_engine, handler)

    assert during == [1]
    child = next(task for task in engine.tasks() if task.kind != RECEIPT)
    assert (child.group_id, child.origin) == (GROUP, "the handler")
    assert child.next_attempt_at_ns == child.created_at_ns + 3_600 * 10**9


@pytest.mark.parametrize("ending", [ValueError("no"), SystemExit(), "nonsense"], ids=repr)
def test_what_a_failed_attempt_buffered_is_dropped(ending: Any, make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> Any:
        ctx.enqueue(thread("child"))
        if isinstance(ending, BaseException):
            raise ending
        return ending

    engine = run(make_engine, handler)

    assert [(task.kind, task.attempts) for task in engine.tasks()] == [(RECEIPT, 1)]


def test_a_buffered_task_runs_after_the_one_that_buffered_it(make_engine: MakeEngine) -> None:
    followed = Blocking()

    def handler(message: Any, ctx: TaskContext) -> None:
        ctx.enqueue(thread("child", GROUP))
        ctx.enqueue(thread("child", GROUP))

    engine = make_engine(Plugin(receipts(handler), threads(followed)))
    engine.start()
    engine.enqueue(receipt("hello", GROUP))

    followed.wait_begun("child")
    followed.let_go()
    assert engine.wait_idle(WAIT_S)
    assert engine.health().counters["done"] == len(followed.begun) + 1


def test_a_message_of_no_registered_kind_is_refused_where_it_is_buffered(make_engine: MakeEngine) -> None:
    refused: list[bool] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        with pytest.raises(UnknownKindError):
            ctx.enqueue(thread("child"))
        refused.append(True)
        ctx.enqueue(thread("child"), allow_unknown=True)

    engine = make_engine(Plugin(receipts(handler)))
    engine.enqueue(receipt("hello"))
    engine.run_due()

    assert refused == [True]
    assert [task.state for task in engine.tasks()] == [TaskState.DEFERRED]


# ctx.complete


def table(engine: Engine) -> None:
    with engine.transaction() as tx:
        tx.connection.execute("CREATE TABLE effect (text TEXT)")


def effects(engine: Engine) -> list[str]:
    with engine.transaction() as tx:
        return [text for (text,) in tx.connection.execute("SELECT text FROM effect ORDER BY text")]


def completing(make_engine: MakeEngine, handler: Any, **options: Any) -> Engine:
    """Run one task through `handler` in a database with a table `effect`."""
    engine = make_engine(Plugin(receipts(handler, **options), threads(Scripted(Defer(HOUR)))))
    table(engine)
    engine.enqueue(receipt("hello"))
    engine.run_due()
    return engine


def write(tx: Any, text: str) -> None:
    tx.connection.execute("INSERT INTO effect VALUES (?)", (text,))


@pytest.mark.parametrize(
    ("outcome", "live", "dead"),
    [
        (None, [], []),
        (Done(), [], []),
        (RescheduleAt(HOUR), [RECEIPT], []),
        (Defer(HOUR), [RECEIPT], []),
        (Discard("no use"), [], [DeadReason.DISCARDED]),
    ],
)
def test_complete_commits_effects_buffer_and_outcome_at_once(
    outcome: Any, live: list[str], dead: list[str], make_engine: MakeEngine
) -> None:
    after: list[Any] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        ctx.enqueue(thread("buffered"))
        with ctx.complete(outcome) as tx:
            write(tx, "effect")
            assert tx.enqueue(thread("inside")).status == EnqueueStatus.INSERTED
        after.append(len(effects(ctx.engine)))

    engine = completing(make_engine, handler)

    assert after == [1]
    assert effects(engine) == ["effect"]
    assert sorted(task.kind for task in engine.tasks()) == sorted([*live, *["acme.receipts.ReceiptThread"] * 2])
    assert [task.reason for task in engine.dead_tasks()] == dead


def test_what_the_handler_returns_after_complete_counts_no_more(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> Any:
        with ctx.complete(Done()):
            pass
        return RescheduleAt(HOUR)

    assert completing(make_engine, handler).tasks() == []


def test_plugins_are_told_of_the_outcome_that_was_completed(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> Any:
        with ctx.complete(Discard("unwanted")):
            pass
        raise ValueError("too late")

    told: list[FinishedTask] = []
    plugin = Plugin(receipts(handler), tasks_finished=lambda finished: told.extend(finished))
    with make_engine(plugin) as engine:
        engine.enqueue(receipt("hello"))
        assert engine.wait_idle(WAIT_S)
        assert engine.health().counters["failed"] == 0

    assert [(ended.outcome, ended.dead_reason) for ended in told] == [(Discard("unwanted"), DeadReason.DISCARDED)]


def test_what_the_handler_raises_after_complete_counts_no_more(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            write(tx, "effect")
        raise ValueError("too late")

    engine = completing(make_engine, handler)

    assert (engine.tasks(), engine.dead_tasks()) == ([], [])
    assert effects(engine) == ["effect"]


def test_nothing_is_committed_when_the_body_raises(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        ctx.enqueue(thread("buffered"))
        with ctx.complete() as tx:
            write(tx, "effect")
            tx.enqueue(thread("inside"))
            raise ValueError("on second thoughts")

    engine = completing(make_engine, handler)

    assert effects(engine) == []
    assert [(task.kind, task.attempts) for task in engine.tasks()] == [(RECEIPT, 1)]


def test_a_handler_may_complete_after_a_body_that_raised(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with pytest.raises(ValueError), ctx.complete() as tx:
            write(tx, "first")
            raise ValueError
        with ctx.complete() as tx:
            write(tx, "second")

    engine = completing(make_engine, handler)

    assert effects(engine) == ["second"]
    assert engine.tasks() == []


def test_effects_are_committed_exactly_once_however_often_the_handler_fails(
    make_engine: MakeEngine, callboard_clock: FakeClock
) -> None:
    failures = iter([ValueError("before"), None, None])

    def handler(message: Any, ctx: TaskContext) -> None:
        error = next(failures)
        if error:
            raise error
        with ctx.complete() as tx:
            write(tx, "effect")
        raise ValueError("after")

    engine = completing(make_engine, handler)
    for _ in range(3):
        callboard_clock.advance(HOUR)
        engine.run_due()

    assert effects(engine) == ["effect"]


@pytest.mark.parametrize("misuse", ["complete", "enqueue"])
def test_nothing_can_be_done_with_a_run_that_is_complete(misuse: str, make_engine: MakeEngine) -> None:
    raised: list[str] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            write(tx, "effect")
        with pytest.raises(CompletionError) as error:
            if misuse == "enqueue":
                ctx.enqueue(thread("child"))
            else:
                with ctx.complete() as tx:
                    write(tx, "twice")
        raised.append(str(error.value))

    engine = completing(make_engine, handler)

    assert len(raised) == 1 and "last act" in raised[0]
    assert effects(engine) == ["effect"]
    assert engine.tasks() == []


def test_complete_inside_a_transaction_is_refused(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.engine.transaction() as tx:
            write(tx, "outside")
            with pytest.raises(CompletionError, match="own transaction"), ctx.complete():
                pass

    engine = completing(make_engine, handler)

    assert effects(engine) == ["outside"]


def test_complete_inside_complete_is_refused(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            write(tx, "effect")
            with pytest.raises(CompletionError), ctx.complete():
                pass

    assert effects(completing(make_engine, handler)) == ["effect"]


@pytest.mark.parametrize("outcome", ["done", True, Done, ValueError("no")])
def test_complete_takes_outcomes_only(outcome: Any, make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete(outcome) as tx:
            write(tx, "effect")

    engine = completing(make_engine, handler)

    assert effects(engine) == []
    [task] = engine.tasks()
    assert task.attempts == 1
    assert "outcome" in str(task.last_error)


def test_done_in_the_complete_of_a_recurring_task_is_a_failed_attempt(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete(Done()):
            pass

    engine = completing(make_engine, handler, recurring=True)

    assert [task.attempts for task in engine.tasks()] == [1]


def test_a_request_that_came_during_the_run_is_not_swallowed_by_complete(make_engine: MakeEngine) -> None:
    played: list[str] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        played.append(message.text)
        if len(played) == 1:
            assert ctx.engine.enqueue(message).status == EnqueueStatus.RERUN
        with ctx.complete() as tx:
            write(tx, f"run {len(played)}")

    engine = completing(make_engine, handler)

    assert effects(engine) == ["run 1", "run 2"]
    assert engine.tasks() == []


def test_a_run_that_was_cancelled_commits_nothing(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: TaskContext) -> None:
        ctx.engine.cancel(ctx.task.id)
        assert ctx.cancelled or ctx.engine.health().state == "unstarted"
        with ctx.complete() as tx:
            write(tx, "effect")

    engine = completing(make_engine, handler)

    assert effects(engine) == []
    assert engine.tasks() == []
    assert [dead.reason for dead in engine.dead_tasks()] == [DeadReason.CANCELLED]


def test_a_run_whose_token_is_stale_commits_nothing_and_is_told(
    make_engine: MakeEngine, callboard_database: str
) -> None:
    raised: list[bool] = []

    def handler(message: Any, ctx: TaskContext) -> None:
        sql(callboard_database, "UPDATE callboard_task SET token = token + 1")
        with pytest.raises(StaleRunError), ctx.complete() as tx:
            write(tx, "effect")
        raised.append(ctx.cancelled)

    engine = completing(make_engine, handler)

    assert raised == [True]
    assert effects(engine) == []


@pytest.mark.parametrize("outcome", [Done(), RescheduleAt(HOUR)])
def test_a_context_is_of_no_use_after_its_run(outcome: Any, make_engine: MakeEngine) -> None:
    kept: list[TaskContext] = []

    def handler(message: Any, ctx: TaskContext) -> Any:
        kept.append(ctx)
        return outcome

    engine = completing(make_engine, handler)

    with pytest.raises(StaleRunError), kept[0].complete() as tx:
        write(tx, "effect")
    assert effects(engine) == []


# ctx.complete and asyncio


def test_a_coroutine_completes_like_any_other_handler(make_engine: MakeEngine) -> None:
    async def handler(message: Any, ctx: TaskContext) -> None:
        await asyncio.sleep(0)
        with ctx.complete() as tx:
            write(tx, "effect")
        await asyncio.sleep(0)

    engine = completing(make_engine, handler)

    assert effects(engine) == ["effect"]
    assert engine.tasks() == []


def test_an_await_inside_complete_is_refused(make_engine: MakeEngine) -> None:
    async def handler(message: Any, ctx: TaskContext) -> None:
        with ctx.complete() as tx:
            write(tx, "effect")
            await asyncio.sleep(0)

    engine = completing(make_engine, handler)

    assert effects(engine) == []
    [task] = engine.tasks()
    assert task.attempts == 1
    assert "awaited inside" in str(task.last_error)


@pytest.mark.parametrize("intruder", ["complete", "enqueue", "transaction", "read"])
def test_no_other_handler_gets_into_a_completion_that_awaits(intruder: str, make_engine: MakeEngine) -> None:
    """Both run on one loop, so on one thread, and would share its connection."""
    refused: list[str] = []
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def awaits_inside(message: Any, ctx: TaskContext) -> None:
        if ctx.task.attempts:
            return
        with ctx.complete() as tx:
            write(tx, "intruded")
            inside.set()
            await go_on.wait()

    async def intrudes(message: Any, ctx: TaskContext) -> None:
        await inside.wait()
        try:
            if intruder == "complete":
                with ctx.complete() as tx:
                    write(tx, "intruder")
            elif intruder == "enqueue":
                ctx.engine.enqueue(receipt("another"))
            elif intruder == "transaction":
                with ctx.engine.transaction() as tx:
                    write(tx, "intruder")
            else:
                assert len(ctx.engine.tasks()) == 2  # reading disturbs nobody
        except CompletionError as error:
            refused.append(str(error))
        go_on.set()

    with make_engine(Plugin(receipts(awaits_inside), threads(intrudes))) as engine:
        table(engine)
        engine.enqueue_many([receipt("hello"), thread("intruder")])
        assert engine.wait_idle(WAIT_S)

        assert effects(engine) == []
        assert [task.attempts for task in engine.tasks(kind=RECEIPT)] == [1]
        assert len(refused) == (0 if intruder == "read" else 1)
        assert engine.tasks(kind="acme.receipts.ReceiptThread") == []


def test_two_coroutines_that_do_not_await_inside_complete_side_by_side(make_engine: MakeEngine) -> None:
    together = threading.Barrier(2)

    async def handler(message: Any, ctx: TaskContext) -> None:
        await asyncio.to_thread(together.wait, WAIT_S)
        with ctx.complete() as tx:
            write(tx, message.text)

    with make_engine(Plugin(receipts(handler))) as engine:
        table(engine)
        engine.enqueue_many([receipt("one"), receipt("two")])
        assert engine.wait_idle(WAIT_S)

        assert effects(engine) == ["one", "two"]
        assert engine.tasks() == []
