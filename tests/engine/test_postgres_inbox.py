"""What hosts' transactions enqueue on PostgreSQL is merged after their commit, and nobody waits for anybody.

At every isolation level of the host's: no request is lost, no finish is held up, no host is aborted.
"""

from collections.abc import Iterator

import pytest
from tests.engine.acting import WAIT_S, Blocking, Plugin, eventually, logged, receipt, receipts
from tests.engine.postgres_hosts import EACH_LIBRARY, LEVELS, Host, PsycopgHost
from tests.postgres import postgres_url, psycopg, sql

from callboard import Engine, EngineStateError, EnqueueStatus
from callboard._actors import scheduler
from callboard._store.postgres_tasks import PostgresTasks

__all__ = ["postgres_url"]

INBOX = "SELECT id FROM callboard_inbox"
LOCK = "SELECT id FROM callboard_task WHERE id = %s FOR UPDATE"
HOUR_NS = 3600 * 10**9


@pytest.fixture
def url(postgres_url: str) -> str:
    """Return the URL of a database with our tables and one of the host's."""
    migrating = Engine(postgres_url, plugins=[])
    migrating.migrate()
    migrating.stop()
    sql(postgres_url, "CREATE TABLE note (text TEXT)")
    return postgres_url


@pytest.fixture
def handler() -> Blocking:
    """Return a handler whose runs the test lets go."""
    return Blocking()


@pytest.fixture
def engine(url: str, handler: Blocking) -> Iterator[Engine]:
    """Return an engine that takes receipts, not yet started."""
    engine = Engine(url, plugins=[Plugin(receipts(handler))], workers=300)
    yield engine
    handler.let_go()
    engine.stop(timeout=5)


@pytest.fixture(params=[(library, level) for library in EACH_LIBRARY for level in LEVELS], ids=" ".join)
def host(request: pytest.FixtureRequest, url: str) -> Iterator[Host]:
    """Return a host of each sort, with each isolation level."""
    library, level = request.param
    host = EACH_LIBRARY[library](url, level)
    yield host
    host.close()


@pytest.fixture(params=LEVELS)
def hosts(request: pytest.FixtureRequest, url: str) -> Iterator[tuple[Host, Host]]:
    """Return two hosts with each isolation level, that fail where they would have to wait."""
    hosts = PsycopgHost(url, request.param), PsycopgHost(url, request.param)
    for host in hosts:
        host.connection.execute("SET lock_timeout = '1s'")
        host.connection.commit()
    yield hosts
    for host in hosts:
        host.close()


def begin(*hosts: Host) -> None:
    """Have the hosts' transactions begin for good, and with them their snapshots, if they keep one."""
    for host in hosts:
        host.note("begun")


# What was measured with other designs


def test_rule_14_a_request_is_kept_whose_pending_row_is_finished_before_the_commit(
    engine: Engine, handler: Blocking, host: Host
) -> None:
    handler.let_go()
    engine.enqueue(receipt("read"))
    with host.transaction():
        begin(host)
        engine.enqueue(receipt("read"), connection=host.connection)
        assert engine.run_due() == 1
        assert engine.tasks() == []

    assert engine.run_due() == 1
    assert handler.begun == ["read", "read"]


def test_rule_02_a_transaction_that_enqueued_and_idles_holds_up_no_batch_of_finishes(
    engine: Engine, handler: Blocking, hosts: tuple[Host, Host], url: str
) -> None:
    handler.let_go()
    host, _ = hosts
    texts = [str(number) for number in range(100)]
    engine.enqueue_many(map(receipt, texts))
    with host.transaction():
        begin(host)
        engine.enqueue_many(map(receipt, texts), connection=host.connection)
        with engine:
            assert engine.wait_idle(20)
            assert engine.health().counters["done"] == 100
    assert len(sql(url, INBOX)) == 100


def test_rule_02_no_host_is_aborted_because_the_row_has_changed(
    engine: Engine, handler: Blocking, host: Host
) -> None:
    handler.let_go()
    later_ns = engine.clock.now_ns() + HOUR_NS
    engine.enqueue_many(map(receipt, ["finished", "changed"]))
    engine.enqueue(receipt("pulled in"), not_before=later_ns)
    with host.transaction():
        begin(host)
        engine.enqueue(receipt("changed"))
        engine.pull_in(receipt("pulled in"), not_later_than_ns=later_ns - 1)
        assert engine.run_due() == 2
        engine.enqueue_many(map(receipt, ["finished", "changed", "pulled in"]), connection=host.connection)
        with engine.transaction(connection=host.connection) as tx:
            assert tx.pull_in(receipt("pulled in"), not_later_than_ns=later_ns - 2)
        host.note("after")

    assert engine.run_due() == 2
    assert [task.next_attempt_at_ns for task in engine.tasks()] == [later_ns - 2]


def test_rule_02_two_transactions_that_enqueue_in_opposite_orders_do_not_wait_for_each_other(
    engine: Engine, handler: Blocking, hosts: tuple[Host, Host]
) -> None:
    handler.let_go()
    one, other = hosts
    with one.transaction(), other.transaction():
        begin(one, other)
        engine.enqueue(receipt("a"), connection=one.connection)
        engine.enqueue(receipt("b"), connection=other.connection)
        engine.enqueue(receipt("b"), connection=one.connection)
        engine.enqueue(receipt("a"), connection=other.connection)

    assert engine.run_due() == 2


def test_rule_02_two_transactions_that_pull_in_and_enqueue_abort_neither(
    engine: Engine, hosts: tuple[Host, Host]
) -> None:
    later_ns = engine.clock.now_ns() + HOUR_NS
    engine.enqueue_many(map(receipt, "ab"))
    with hosts[0].transaction(), hosts[1].transaction():
        begin(*hosts)
        for at_ns, host in enumerate(hosts, start=later_ns):
            with engine.transaction(connection=host.connection) as tx:
                tx.enqueue(receipt("c"), not_before=later_ns + HOUR_NS)
                assert tx.pull_in(receipt("c"), not_later_than_ns=at_ns)
                assert tx.pull_in(receipt("a"), not_later_than_ns=at_ns)


# What becomes of what was accepted


def test_rule_14_what_is_enqueued_during_the_run_makes_it_run_again(
    engine: Engine, handler: Blocking, hosts: tuple[Host, Host], url: str
) -> None:
    host, _ = hosts
    with engine:
        engine.enqueue(receipt("read"))
        handler.wait_begun("read")
        with host.transaction():
            engine.enqueue(receipt("read"), connection=host.connection)
        eventually(lambda: not sql(url, INBOX))
        assert handler.begun == ["read"]
        handler.let_go()
        handler.wait_count(2)


def test_rule_14_the_same_key_with_another_payload_changes_nothing_and_is_logged(
    engine: Engine, handler: Blocking, hosts: tuple[Host, Host], url: str
) -> None:
    host, _ = hosts
    later_ns = engine.clock.now_ns() + HOUR_NS
    engine.enqueue(receipt("live"), key="old", not_before=later_ns)
    before = engine.tasks()
    with host.transaction():
        engine.enqueue(receipt("another"), key="old", connection=host.connection)
        engine.enqueue(receipt("first"), key="new", not_before=later_ns, connection=host.connection)
        engine.enqueue(receipt("another"), key="new", connection=host.connection)
    with logged("WARNING") as messages:
        assert engine.run_due() == 0

    [live, new] = engine.tasks()
    assert [live] == before
    assert b"first" in new.data
    assert new.requests == 1
    assert [
        f"task {task.id} is live with another payload" in str(message)
        for task, message in zip((live, new), messages, strict=True)
    ] == [True, True]
    assert sql(url, INBOX) == []


def test_rule_15_a_task_is_pulled_in_by_the_transaction_that_enqueues_it_or_a_later_one(
    engine: Engine, hosts: tuple[Host, Host]
) -> None:
    later_ns = engine.clock.now_ns() + HOUR_NS
    for at_ns, host in [(later_ns - 1, hosts[0]), (later_ns - 2, hosts[1])]:
        with host.transaction():
            if host is hosts[0]:
                engine.enqueue(receipt("read"), key="k", not_before=later_ns, connection=host.connection)
            with engine.transaction(connection=host.connection) as tx:
                assert tx.pull_in("k", not_later_than_ns=at_ns)
                assert tx.pull_in("k", not_later_than_ns=at_ns + 10)
    engine.run_due()

    assert [task.next_attempt_at_ns for task in engine.tasks()] == [later_ns - 2]


@pytest.mark.parametrize("level", LEVELS)
def test_rule_15_a_missing_target_is_reported_where_that_can_be_told(engine: Engine, url: str, level: str) -> None:
    host = PsycopgHost(url, level)
    with host.transaction(), engine.transaction(connection=host.connection) as tx:
        assert tx.pull_in(receipt("nobody's"), not_later_than_ns=1) == (level == "SERIALIZABLE")
    host.close()

    assert engine.run_due() == 0
    assert sql(url, INBOX) == []


def test_a_request_is_kept_when_another_writes_a_row_of_its_identity_at_the_same_moment(
    engine: Engine, handler: Blocking, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler.let_go()
    engine.enqueue(receipt("read"))
    host = PsycopgHost(url)
    with host.transaction(), engine.transaction(connection=host.connection) as tx:
        assert tx.pull_in(receipt("read"), not_later_than_ns=1)
        tx.enqueue(receipt("read"))
        assert engine.run_due() == 1
    host.close()
    monkeypatch.setattr(PostgresTasks, "insert", lambda *_: None)  # which says that it is there

    assert engine.run_due() == 1


# A row that somebody has locked by hand


def test_a_locked_row_delays_only_what_is_enqueued_for_it(
    engine: Engine, handler: Blocking, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_MERGE_BATCH", 3)
    handler.let_go("other", "another")
    later_ns = engine.clock.now_ns() + HOUR_NS
    locked = engine.enqueue(receipt("locked"), not_before=later_ns).task_id
    host = PsycopgHost(url)
    with psycopg.connect(url) as rival, engine:
        rival.execute(LOCK, (locked,))
        with host.transaction():
            for _ in range(5):
                engine.enqueue(receipt("locked"), connection=host.connection)
            engine.enqueue_many(map(receipt, ["other", "another"]), connection=host.connection)
        eventually(lambda: engine.health().counters["done"] == 2)
        assert len(sql(url, INBOX)) == 5

        rival.rollback()  # of which nobody tells
        eventually(lambda: not sql(url, INBOX))
        assert [task.requests for task in engine.tasks()] == [6]
    host.close()


def test_a_locked_row_delays_only_its_own_outcome(engine: Engine, handler: Blocking, url: str) -> None:
    texts = [str(number) for number in range(256)]
    answers = engine.enqueue_many(map(receipt, texts))
    with psycopg.connect(url) as rival, engine:
        handler.wait_begun(*texts)
        rival.execute(LOCK, (answers[7].task_id,))
        handler.let_go()
        eventually(lambda: engine.health().counters["done"] == 255)
        assert [task.id for task in engine.tasks()] == [answers[7].task_id]

        rival.rollback()
        eventually(lambda: not engine.tasks())
        assert engine.wait_idle(WAIT_S)  # counted after the commit
        assert engine.health().counters["done"] == 256


def test_accepted_tasks_are_answered_as_such_in_every_open_transaction(engine: Engine) -> None:
    with engine.transaction() as tx:
        assert tx.enqueue(receipt("a")) == (None, EnqueueStatus.ACCEPTED)
        assert [answer.status for answer in tx.enqueue_many(map(receipt, "bc"))] == [EnqueueStatus.ACCEPTED] * 2


def test_rule_04_a_dead_task_is_not_retried_where_it_might_yet_be_dropped(engine: Engine) -> None:
    """It may meet a live one of its key with another payload, once the transaction has committed."""
    task_id = engine.enqueue(receipt("dead")).task_id
    assert task_id is not None
    engine.cancel(task_id)
    [dead] = engine.dead_tasks()

    with pytest.raises(EngineStateError, match="leave the one this thread is in first"), engine.transaction():
        engine.retry_dead(dead.id)

    assert (engine.dead_tasks(), engine.tasks()) == ([dead], [])
    assert engine.retry_dead(dead.id) is not None
    assert engine.dead_tasks() == []
