"""The engine as a host sees it: the place where everything is put together, and nothing is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import peewee
from google.protobuf.message import Message

from callboard import _process
from callboard._actors.node import HEARTBEATS
from callboard._actors.runtime import InlineRuntime, Runtime
from callboard._clock import Clock, SystemClock, nanoseconds
from callboard._compose import revived
from callboard._core import RUNNING, STOPPED, STOPPING, Core
from callboard._group_state import GroupState
from callboard._health import Health
from callboard._kinds import check_group_id
from callboard._log import logger
from callboard._store.host_connection import sqlalchemys_lender
from callboard._store.interface import AwaitedConnections, NodeRow, Store
from callboard._store.opening import open_store
from callboard._task import DeadTask, Enqueued, EnqueueStatus, Task
from callboard._transaction import GroupHandle, Transaction
from callboard.errors import ConfigurationError, EngineStateError

T = TypeVar("T")

DEFAULT_WORKERS = 32
"""The most handlers that may block at once."""

DEFAULT_DEAD_RETENTION = timedelta(days=30)
"""How long dead tasks are kept by default."""

DEFAULT_LEASE = timedelta(seconds=15)
"""After how long without a heartbeat a node's tasks are taken over by default."""

DEFAULT_MAX_CRASHES = 5
"""How often in a row a task may take its process down by default."""

MIN_LEASE, MAX_LEASE = timedelta(milliseconds=300), timedelta(hours=1)
"""Below, three heartbeats in a lease would keep the database busy; above, nobody would wait for it."""


class Engine:
    """A durable task engine on one database.

    Constructing it connects to nothing. `with engine:` starts and stops it; enqueues, listings and `run_due`
    work without a start.
    """

    def __init__(
        self,
        database: str | peewee.Database | Store,
        *,
        services: Mapping[type[Any], Any] | None = None,
        plugins: Sequence[Any] | None = None,
        block: Collection[str] = (),
        workers: int = DEFAULT_WORKERS,
        execute: bool = True,
        synchronous: str = "FULL",
        dead_retention: timedelta | None = DEFAULT_DEAD_RETENTION,
        lease: timedelta = DEFAULT_LEASE,
        heartbeat: timedelta | None = None,
        max_crashes: int = DEFAULT_MAX_CRASHES,
        clock: Clock | None = None,
    ) -> None:
        """Describe an engine.

        Args:
            database: `sqlite:///service.db` (four slashes for an absolute path), `postgresql://user@host/name`
                (with the extra `callboard[postgres]`), the host's own peewee database, or a store that somebody
                wrote (see `callboard.stores`).
            services: objects that handlers ask for by type.
            plugins: `None` for all installed, else entry-point names and plugin objects.
            block: names of plugins that are not even imported, whatever `plugins` says, besides those in the
                environment variable `CALLBOARD_BLOCK_PLUGINS`, separated by commas. Their tasks stay deferred. A
                name that no plugin has is warned of.
            workers: the most handlers that may block at once.
            execute: `False` to enqueue and list only.
            synchronous: SQLite's setting for a database given by URL: `FULL`, or `NORMAL`, which may lose the
                last commits when the power fails.
            dead_retention: how long dead tasks are kept; `None` for ever.
            lease: after how long without a sign of life other engines take this one's tasks over.
            heartbeat: how often it gives one while it runs tasks, at least twice in the lease; a third of the
                lease by default.
            max_crashes: how often in a row a task may take its process down before it is dead.
            clock: the source of time; tests give a `callboard.testing.FakeClock`.

        Raises:
            ConfigurationError: an argument cannot work.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigurationError(f"workers must be a whole number of at least 1, not {workers!r}")
        if dead_retention is not None and not (
            isinstance(dead_retention, timedelta) and dead_retention >= timedelta(0)
        ):
            raise ConfigurationError(f"dead_retention must be a timedelta of at least 0, not {dead_retention!r}")
        if isinstance(plugins, str):
            raise ConfigurationError(f"plugins takes a list, such as [{plugins!r}]")
        if isinstance(block, str) or not all(isinstance(name, str) for name in block):
            raise ConfigurationError(f"block takes a list of plugins' names, such as ['acme'], not {block!r}")
        if services is not None and not (
            isinstance(services, Mapping) and all(isinstance(each, type) for each in services)
        ):
            raise ConfigurationError(
                f"services maps types to objects, such as {{Mailer: mailer}}, not {services!r}"
            )
        if not isinstance(lease, timedelta) or not MIN_LEASE <= lease <= MAX_LEASE:
            raise ConfigurationError(
                f"lease must be a timedelta between {MIN_LEASE} and {MAX_LEASE}, not {lease!r}"
            )
        heartbeat = lease / HEARTBEATS if heartbeat is None else heartbeat
        if not isinstance(heartbeat, timedelta) or not timedelta(0) < heartbeat <= lease / 2:
            raise ConfigurationError(
                f"heartbeat must be a timedelta above 0 that goes at least twice into the lease of {lease}, not"
                f" {heartbeat!r}; lengthen the lease or shorten the heartbeat"
            )
        if isinstance(max_crashes, bool) or not isinstance(max_crashes, int) or max_crashes < 1:
            raise ConfigurationError(f"max_crashes must be a whole number of at least 1, not {max_crashes!r}")
        self._core = Core(
            self,
            open_store(database, synchronous),
            SystemClock() if clock is None else clock,
            plugins,
            tuple(block),
            services or {},
            dead_retention,
            nanoseconds(lease),
            nanoseconds(heartbeat),
            max_crashes,
        )
        self._workers = workers
        self._execute = execute
        self._greeted = False
        _process.watch(self)

    @property
    def clock(self) -> Clock:
        """The source of time; `engine.clock.now_ns()` is now."""
        return self._core.clock

    # Lifecycle

    def start(self) -> None:
        """Migrate, load plugins, take over what gone engines left, reconcile, and run tasks until `stop`.

        A second call does nothing.

        Raises:
            EngineStateError: the engine has been stopped, or this thread is in a transaction on its database.
            StoreError: the database cannot be used.
            PluginError: a plugin asked for by name is not installed.
        """
        self._start(None)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._core.lock:
            self._check_outside_transaction()
            self._core.ready()
            if self._core.state == RUNNING:
                return
            if self._core.state == STOPPING:
                raise EngineStateError("this engine is being stopped; make a new Engine")
            if self._execute:
                runtime = self._make_runtime(loop)
                runtime.join()  # first: where that cannot be written, plugins need not try
                try:
                    self._greet()
                    self._core.running = runtime
                    runtime.start()
                except BaseException:
                    self._core.running = None
                    runtime.abandon()
                    raise
            self._core.state = RUNNING

    def _make_runtime(self, loop: asyncio.AbstractEventLoop | None) -> Runtime:
        return Runtime(self._core, self._workers, loop)

    def stop(self, timeout: float | timedelta | None = 30.0) -> bool:
        """Stop claiming, wait for running tasks, hand back unstarted ones; the engine cannot start again.

        A task that is still running at the deadline keeps its row: it runs again when the next engine starts.

        Args:
            timeout: how long to wait for running tasks, in seconds or as a timedelta; `None` for ever.

        Returns:
            Whether every task had ended in time.

        Raises:
            EngineStateError: a handler or a hook of this engine calls, whose end it would wait for.
        """
        timeout_s = _seconds(timeout)
        self._check_outside_handlers("stop")
        with self._core.lock:
            state, runtime = self._core.state, self._core.running
            if state in (STOPPING, STOPPED):
                return True
            # Handlers that are still running may go on calling the engine until they have ended.
            self._core.state = STOPPING
        try:
            ended = runtime is None or runtime.stop(timeout_s)
        finally:
            self._core.state, self._core.running = STOPPED, None
        if not ended:
            logger.warning("stopped while tasks were still running; they run again once this node's lease is over")
        self._core.store.close()
        return ended

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    async def __aenter__(self) -> Self:
        """Start; coroutine handlers will run on this loop."""
        try:
            await _to_its_end(partial(self._start, asyncio.get_running_loop()))
        except asyncio.CancelledError:
            await _to_its_end(self.stop)  # nobody leaves a block that was not entered
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, while the loop goes on for the handlers that run on it."""
        await _to_its_end(self.stop)

    def migrate(self) -> list[str]:
        """Bring the tables up to date, the engine's and then each plugin's; return what was done.

        A plugin whose migration fails has none of it done, and is disabled in this engine; `health` says why.

        Raises:
            StoreError: the database cannot be used; it has not been changed.
            PluginError: a plugin asked for by name is not installed.
            EngineStateError: the engine has been stopped.
        """
        return self._core.migrate()

    def run_due(self) -> int:
        """Run what is due now, and what that makes due, on this thread; return how many handlers were called.

        Raises:
            EngineStateError: the engine is started or has been stopped, or does not execute; or this thread is in
                a transaction on its database.
            KeyboardInterrupt: the user interrupted a handler; its task is handed back un-attempted.
            StoreError: the database cannot be used.
        """
        with self._core.lock:
            self._check_outside_transaction()
            self._core.ready()
            if self._core.state in (RUNNING, STOPPING) or not self._execute:
                raise EngineStateError("run_due is for an engine that is not started and not execute=False")
            first = not self._greeted
            self._greet()
            return InlineRuntime(self._core).run(reconcile=first)

    def wake(self) -> None:
        """Have the table read now; needed only after a commit on a connection that has no commit hook."""
        self._core.wake()

    def wait_idle(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until nothing this node can run is due or running and all outcomes are committed.

        Tasks that are due later do not count.

        Args:
            timeout: in seconds or as a timedelta; `None` for ever.

        Returns:
            `False` when the time was up before.

        Raises:
            EngineStateError: the engine is not started, or does not execute; or it was stopped before it was idle;
                or a handler or a hook of this engine calls.
            NotADatabaseError: the file is damaged.
        """
        self._check_outside_handlers("wait_idle")
        runtime = self._core.running
        if runtime is None:
            raise EngineStateError("wait_idle is for a started engine that executes tasks")
        return runtime.wait_idle(_seconds(timeout))

    # Writing

    def enqueue(
        self,
        message: Message,
        *,
        not_before: timedelta | int | None = None,
        expires_after: timedelta | int | None = None,
        key: str | None = None,
        group_id: bytes | None = None,
        origin: str | None = None,
        allow_unknown: bool = False,
        connection: Any = None,
    ) -> Enqueued:
        """Write a task; when this returns it is committed, or part of the transaction that is open here.

        Args:
            message: the payload; its type says which kind of task it is.
            not_before: earliest start: a timedelta from now, or nanoseconds since the epoch.
            expires_after: when the task is dead if it has not succeeded; likewise. The kind's by default.
            key: the task's identity among those of its kind, in place of its payload.
            group_id: the group whose tasks never overlap, 1 to 255 bytes; the kind tells by default.
            origin: where the task came from, for whoever reads the table.
            allow_unknown: accept a kind that no plugin here registered.
            connection: the host's own connection, in whose transaction to write: `sqlite3` or psycopg's, a peewee
                database, SQLAlchemy's connection or session, or Django's connection.

        Returns:
            The row's id, and whether it is new or an earlier one with this identity. On PostgreSQL, inside a
            transaction, no id and `accepted`: only after the commit is it known what the task meets.

        Raises:
            UnknownKindError: no plugin here registered the message's kind.
            ConfigurationError: an argument cannot work, such as a group id that is empty or too long.
            CompletionError: another coroutine on this thread awaits inside a transaction.
            StoreError: the database refused; nothing was written.
            EngineStateError: the engine has been stopped.
        """
        return self._core.enqueue(
            message,
            connection,
            not_before=not_before,
            expires_after=expires_after,
            key=key,
            group_id=group_id,
            origin=origin,
            allow_unknown=allow_unknown,
        )

    def enqueue_many(
        self,
        messages: Iterable[Message],
        *,
        origin: str | None = None,
        allow_unknown: bool = False,
        connection: Any = None,
    ) -> list[Enqueued]:
        """Write many tasks in one transaction; the answers are in the order of the messages.

        Raises:
            UnknownKindError: no plugin here registered the kind of one of them; none is written.
            CompletionError: another coroutine on this thread awaits inside a transaction.
            StoreError: the database refused; none is written.
            EngineStateError: the engine has been stopped.
        """
        with self._core.transaction(connection, brief=True) as tx:
            return tx.enqueue_many(messages, origin=origin, allow_unknown=allow_unknown)

    async def aenqueue(self, message: Message, *, connection: Any = None, **options: Any) -> Enqueued:
        """Do what `enqueue` does, from asyncio, without blocking the loop.

        Besides the connections that `enqueue` takes, `connection` may be an `AsyncConnection` or `AsyncSession` of
        SQLAlchemy's, on PostgreSQL with psycopg, or a psycopg `AsyncConnection`.
        """
        store = self._core.store
        if isinstance(store, AwaitedConnections) and store.is_awaited(connection):
            new = await asyncio.to_thread(self._core.compose, [message], **options)
            [answer] = await store.accept_on(connection, new)
            return answer
        return await _on(connection, lambda lent: self.enqueue(message, connection=lent, **options))

    async def aenqueue_many(
        self,
        messages: Iterable[Message],
        *,
        origin: str | None = None,
        allow_unknown: bool = False,
        connection: Any = None,
    ) -> list[Enqueued]:
        """Do what `enqueue_many` does, from asyncio, on the connections that `aenqueue` takes."""
        options: dict[str, Any] = {"origin": origin, "allow_unknown": allow_unknown}
        store = self._core.store
        if isinstance(store, AwaitedConnections) and store.is_awaited(connection):
            new = await asyncio.to_thread(self._core.compose, messages, **options)
            return await store.accept_on(connection, new)
        return await _on(connection, lambda lent: self.enqueue_many(messages, connection=lent, **options))

    @contextmanager
    def transaction(self, *, connection: Any = None) -> Iterator[Transaction]:
        """Open a transaction on this thread, or a part of the one that is open; all of it commits, or nothing.

        Do not await inside: the loop's other coroutines share the thread, and could write nothing meanwhile.

        Args:
            connection: the host's own connection, as `enqueue` takes it. The host's transaction stays the host's
                to commit.

        Raises:
            CompletionError: another coroutine on this thread awaits inside a transaction.
            ConfigurationError: `connection` is nothing that the engine's database knows.
            StoreError: the database refused.
            EngineStateError: the engine has been stopped.
        """
        with self._core.transaction(connection) as tx:
            yield tx

    def group(self, group_id: bytes) -> GroupHandle:
        """Return a handle on one group's rows; each of its calls is a transaction, or joins the one open here.

        Raises:
            ConfigurationError: the id is empty or longer than 255 bytes.
        """
        return GroupHandle(check_group_id(group_id), self._core.store.groups, self.transaction, self._core.reading)

    def groups(
        self,
        *,
        pending: bool | None = None,
        member: str | None = None,
        consent: Sequence[str] | None = None,
        active_since_ns: int | None = None,
    ) -> Iterator[GroupState]:
        """Iterate over groups that meet every condition given, in the order of their ids.

        Args:
            pending: whether the group is marked, or somebody's leave request is pending.
            member: an inbox that must be a member.
            consent: one of these.
            active_since_ns: active at that time or later, nanoseconds since the epoch.
        """
        page = 500
        after = b""
        while True:
            with self._core.reading() as session:
                ids = self._core.store.groups.matching(
                    session,
                    pending=pending,
                    member=member,
                    consent=consent,
                    active_since_ns=active_since_ns,
                    after=after,
                    limit=page,
                )
                found = [self._core.store.groups.state(session, group_id) for group_id in ids]
            yield from (state for state in found if state is not None)
            if len(ids) < page:
                return
            after = ids[-1]

    def pull_in(self, msg_or_key: Message | str | bytes, *, not_later_than_ns: int) -> bool:
        """Lower a live task's next deadline; never raises it.

        Args:
            msg_or_key: the message of a task without a key, a key (of any kind), or an identity (32 bytes).
            not_later_than_ns: the deadline, nanoseconds since the epoch. During a run it is kept and merged
                when the run ends.

        Returns:
            Whether there was such a task.

        Raises:
            ConfigurationError: the deadline is no int.
        """
        with self._core.transaction(brief=True) as tx:
            return tx.pull_in(msg_or_key, not_later_than_ns=not_later_than_ns)

    def cancel(self, task_id: int) -> bool:
        """Move a live task to the dead-task table.

        A running one sees `ctx.cancelled`, on whatever node it runs, and its outcome is dropped; its group stays
        occupied, and its row live, until the handler returns. Its `owner` and `nodes` tell whose process that is.

        Returns:
            Whether there was such a task.
        """
        with self._core.transaction() as tx:
            self._core.store.tasks.hold(tx.session, [task_id], wait=True)
            task = self._core.store.tasks.by_id(tx.session, task_id)
            if task is None:
                return False
            died = self._core.store.tasks.cancel(tx.session, task, self._core.clock.now_ns())
            if died is not None:
                tx.died.append(died)
            tx.session.after_commit(lambda: self._core.cancel(task_id))
            return True

    def retry_dead(self, dead_id: int) -> Enqueued | None:
        """Give a dead task a new life, attempts and expiry afresh; it merges into a live one of its identity.

        Returns:
            As `enqueue` does; `conflict` leaves the dead task where it is. `None` when there is none.

        Raises:
            EngineStateError: on PostgreSQL, in a transaction that is open on this thread: what the task meets
                could not be told yet.
        """
        with self._core.transaction(brief=True) as tx:
            dead = self._core.store.tasks.dead_by_id(tx.session, dead_id)
            if dead is None:
                return None
            answer = tx.write(revived(dead, self._core.clock.now_ns()))
            if answer.status == EnqueueStatus.ACCEPTED:  # it may yet meet a task of its key with another payload
                raise EngineStateError(
                    "retry_dead opens its own transaction; leave the one this thread is in first"
                )
            if answer.status != EnqueueStatus.CONFLICT:
                self._core.store.tasks.forget_dead(tx.session, dead_id)
            return answer

    def publish(self, event: object) -> bool:
        """Tell plugins that something happened; they react on the engine's threads, or here if it has none.

        Returns:
            `False` when too many events wait: this one is dropped, and every plugin reconciles instead.
        """
        self._core.ready()
        runtime = self._core.running
        if runtime is None:
            for hook in self._core.plugins.hooks("callboard_event"):
                self._core.plugins.call(hook, engine=self, event=event)
            return True
        kept = runtime.hooks.publish(event)
        if not kept:
            self.request_reconcile("overflow")
        return kept

    def request_reconcile(self, reason: str) -> None:
        """Have every plugin reconcile soon; an engine that is not started does so when it starts."""
        self._core.want_reconcile(reason)

    # Reading

    def tasks(
        self,
        *,
        kind: str | None = None,
        group_id: bytes | None = None,
        state: str | None = None,
        limit: int = 1_000,
        after_id: int = 0,
    ) -> list[Task]:
        """Return live tasks in the order of their ids; page with `after_id`."""
        self._core.ready()
        return self._core.store.list_tasks(kind, group_id, state, limit, after_id)

    def task(self, task_id: int) -> Task | None:
        """Return one live task."""
        with self._core.reading() as session:
            return self._core.store.tasks.by_id(session, task_id)

    def dead_tasks(
        self, *, kind: str | None = None, group_id: bytes | None = None, limit: int = 1_000, after_id: int = 0
    ) -> list[DeadTask]:
        """Return dead tasks in the order of their ids; page with `after_id`."""
        self._core.ready()
        return self._core.store.list_dead(kind, group_id, limit, after_id)

    def nodes(self) -> list[NodeRow]:
        """Return the running engines on this database, this one included, in the order of their ids.

        A running task's `owner` is the id of the one that holds it, and with it its group.
        """
        with self._core.reading() as session:
            return self._core.store.nodes.others(session, 0)

    def service(self, service_type: type[T]) -> T:
        """Return the host's service of this type.

        Raises:
            ServiceMissingError: the host gave none.
        """
        return self._core.service(service_type)

    def health(self) -> Health:
        """Return what an operator asks first. It reads no database and needs no start."""
        runtime = self._core.running
        missing = {kind.name: self._core.registry.missing_services(kind) for kind, _ in self._core.registry}
        return Health(
            state=self._core.state,
            database=self._core.store.where,
            database_error=None if runtime is None else runtime.actor.store_error,
            stuck=runtime is not None and runtime.actor.stuck,
            plugins=list(self._core.plugins.health.values()),
            missing_services={kind: [each.__name__ for each in types] for kind, types in missing.items() if types},
            running=0 if runtime is None else len(runtime.workload.runs),
            paused=[] if runtime is None else runtime.workload.throttle.paused(self._core.clock.monotonic_ns()),
            overdue=[] if runtime is None else runtime.scheduler.watch.overdue(),
            overdue_hooks=[] if runtime is None else runtime.hooks.overdue(),
            counters={} if runtime is None else dict(runtime.scheduler.counters),
            untold=0 if runtime is None else runtime.hooks.untold,
            threads=0 if runtime is None else runtime.pool.size(),
            actors=0 if runtime is None else runtime.router.live(),
        )

    # Putting together

    def load_plugins(self) -> None:
        """Load the plugins, which other calls do on first use; touches no database.

        Raises:
            PluginError: a plugin asked for by name is not installed.
        """
        self._core.load_plugins()

    def _greet(self) -> None:
        """Say once which kinds have to wait, and call each plugin's start."""
        if self._greeted:
            return
        self._greeted = True
        waiting: dict[str, list[str]] = {}
        for kind, _ in self._core.registry:
            for missing in self._core.registry.missing_services(kind):
                waiting.setdefault(missing.__name__, []).append(kind.name)
        for name, kinds in waiting.items():
            logger.warning(
                "tasks of {} are left to other nodes: no {} here; give Engine(..., services={{{}: ...}})",
                ", ".join(sorted(kinds)),
                name,
                name,
            )
        for hook in self._core.plugins.hooks("callboard_startup"):
            self._core.plugins.call(hook, engine=self)

    def _check_outside_transaction(self) -> None:
        if self._core.store.in_transaction():
            raise EngineStateError("tasks run in transactions of their own; leave the one this thread is in first")

    def _check_outside_handlers(self, call: str) -> None:
        runtime = self._core.running
        if runtime is not None and runtime.is_waiting_for_caller():
            raise EngineStateError(
                f"{call} waits for handlers and hooks, so none can call it: it would wait for itself; have the"
                " thread that started the engine do it"
            )

    def _after_fork(self) -> None:
        """Be unstarted in a forked child, whatever the parent's engine is."""
        self._greeted = False
        self._core.forget()


def _seconds(timeout: float | timedelta | None) -> float | None:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise ConfigurationError(f"timeout must be at least 0 seconds, a timedelta or None, not {timeout!r}")
    return seconds


async def _on(connection: Any, call: Callable[[Any], T]) -> T:
    """Make a call with the host's connection without blocking the loop.

    An asynchronous one of SQLAlchemy's lends the connection inside it, whose driver is awaited.
    """
    lender = sqlalchemys_lender(connection)
    if lender is not None:
        result: T = await lender.run_sync(call)
        return result
    return await asyncio.to_thread(call, connection)


async def _to_its_end(call: Callable[[], object]) -> None:
    """Make a call on a thread, and let a cancellation out only once it has ended, since a thread cannot be."""
    calling = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        await asyncio.shield(calling)
    except asyncio.CancelledError:
        await asyncio.gather(calling, return_exceptions=True)
        raise
