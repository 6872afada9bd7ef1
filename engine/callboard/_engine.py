"""The engine as a host sees it: the place where everything is put together, and nothing is decided."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import peewee
from google.protobuf.message import Message
from loguru import logger

from callboard import _completion, _lifecycle
from callboard._actors.runtime import InlineRuntime, Runtime
from callboard._clock import Clock, SystemClock
from callboard._compose import Composer, revived
from callboard._group_state import GroupState
from callboard._health import Health
from callboard._kinds import KindRegistry, check_group_id
from callboard._plugins import PluginHost
from callboard._store.host_connection import session_on
from callboard._store.session import Session
from callboard._store.sqlite import SqliteStore, open_store
from callboard._task import DeadReason, DeadTask, Enqueued, EnqueueStatus, FinishedTask, Task
from callboard._transaction import GroupHandle, Transaction
from callboard.errors import ConfigurationError, EngineStateError, ServiceMissingError

T = TypeVar("T")

DEFAULT_WORKERS = 32
"""The most handlers that may block at once."""

DEFAULT_DEAD_RETENTION = timedelta(days=30)
"""How long dead tasks are kept by default."""

_UNSTARTED, _RUNNING, _STOPPING, _STOPPED = "unstarted", "running", "stopping", "stopped"


class Engine:
    """A durable task engine on one database.

    Constructing it connects to nothing. `with engine:` starts and stops it; enqueues, listings and `run_due`
    work without a start.
    """

    def __init__(
        self,
        database: str | peewee.Database,
        *,
        services: Mapping[type[Any], Any] | None = None,
        plugins: Sequence[Any] | None = None,
        workers: int = DEFAULT_WORKERS,
        execute: bool = True,
        synchronous: str = "FULL",
        dead_retention: timedelta | None = DEFAULT_DEAD_RETENTION,
        clock: Clock | None = None,
    ) -> None:
        """Describe an engine.

        Args:
            database: `sqlite:///service.db` (four slashes for an absolute path), or the host's own peewee
                database.
            services: objects that handlers ask for by type.
            plugins: `None` for all installed, else entry-point names and plugin objects.
            workers: the most handlers that may block at once.
            execute: `False` to enqueue and list only.
            synchronous: SQLite's setting for a database given by URL: `FULL`, or `NORMAL`, which may lose the
                last commits when the power fails.
            dead_retention: how long dead tasks are kept; `None` for ever.
            clock: the source of time; tests give a `callboard.testing.FakeClock`.

        Raises:
            ConfigurationError: an argument cannot work.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigurationError(f"workers must be a whole number of at least 1, not {workers!r}")
        if dead_retention is not None and dead_retention < timedelta(0):
            raise ConfigurationError(f"dead_retention must not be negative, not {dead_retention!r}")
        self.store: SqliteStore = open_store(database, synchronous)
        self.clock: Clock = SystemClock() if clock is None else clock
        self.dead_retention = dead_retention
        self._services = dict(services or {})
        self._workers = workers
        self._execute = execute
        self.registry = KindRegistry(self._services)
        self.plugins = PluginHost(plugins, self.registry)
        self.composer = Composer(self.registry, self.clock)
        self.recurring_kinds: frozenset[str] = frozenset()
        self._lock = threading.RLock()
        self._state = _UNSTARTED
        self._loaded = False
        self._prepared = False
        self._greeted = False
        self._runtime: Runtime | None = None
        self._node_id = 0
        _engines.add(self)

    # Lifecycle

    def start(self) -> None:
        """Migrate, load plugins, take over what gone engines left, reconcile, and run tasks until `stop`.

        A second call does nothing.

        Raises:
            EngineStateError: the engine has been stopped.
            StoreError: the database cannot be used, or another engine executes its tasks.
            PluginError: a plugin asked for by name is not installed.
        """
        self._start(None)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._lock:
            self._ready()
            if self._state == _RUNNING:
                return
            if self._state == _STOPPING:
                raise EngineStateError("this engine is being stopped; make a new Engine")
            if self._execute:
                self.store.acquire_execution()
                try:
                    self._enter()
                    self._runtime = Runtime(self, self._node_id, self._workers, loop)
                    self._runtime.start()
                except BaseException:
                    self._runtime = None
                    self.store.release_execution()
                    raise
            self._state = _RUNNING
            _started.add(self)

    def stop(self, timeout: float | timedelta | None = 30.0) -> bool:
        """Stop claiming, wait for running tasks, hand back unstarted ones; the engine cannot start again.

        A task that is still running at the deadline keeps its row: it runs again when the next engine starts.

        Args:
            timeout: how long to wait for running tasks, in seconds or as a timedelta; `None` for ever.

        Returns:
            Whether every task had ended in time.
        """
        timeout_s = _seconds(timeout)
        with self._lock:
            state, runtime = self._state, self._runtime
            if state in (_STOPPING, _STOPPED):
                return True
            # Handlers that are still running may go on calling the engine until they have ended.
            self._state = _STOPPING
            _started.discard(self)
        try:
            ended = runtime is None or runtime.stop(timeout_s)
            if runtime is not None and ended:
                with self.store.transaction() as session:
                    self.store.remove_node(session, self._node_id)
        finally:
            self._state, self._runtime = _STOPPED, None
        if ended:
            self.store.release_execution()
        else:
            logger.warning("stopped while tasks were still running; they run again when an engine next starts")
        self.store.close()
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
        await asyncio.to_thread(self._start, asyncio.get_running_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, while the loop goes on for the handlers that run on it."""
        await asyncio.to_thread(self.stop)

    def migrate(self) -> list[str]:
        """Bring the tables up to date; return what was done.

        Raises:
            StoreError: the database cannot be used; it has not been changed.
        """
        self._check_usable()
        done = self.store.prepare(self.clock.now_ns())
        self._prepared = True
        return done

    def run_due(self) -> int:
        """Run what is due now, and what that makes due, on this thread; return how many handlers were called.

        Raises:
            EngineStateError: the engine is started or has been stopped, or does not execute.
            KeyboardInterrupt: the user interrupted a handler; its task is handed back un-attempted.
            StoreError: the database cannot be used, or another engine executes its tasks.
        """
        with self._lock:
            self._ready()
            if self._state == _RUNNING or not self._execute:
                raise EngineStateError("run_due is for an engine that is not started and not execute=False")
            self.store.acquire_execution()
            try:
                first = not self._greeted
                self._enter()
                return InlineRuntime(self, self._node_id).run(reconcile=first)
            finally:
                self.store.release_execution()

    def wake(self) -> None:
        """Have the table read now; needed only after a commit on a connection that has no commit hook."""
        runtime = self._runtime
        if runtime is not None:
            runtime.wake()

    def wait_idle(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until nothing this node can run is due or running and all outcomes are committed.

        Tasks that are due later do not count.

        Args:
            timeout: in seconds or as a timedelta; `None` for ever.

        Returns:
            `False` when the time was up before.

        Raises:
            EngineStateError: the engine is not started, or does not execute.
        """
        runtime = self._runtime
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
            connection: the host's own connection, in whose transaction to write: `sqlite3`, peewee,
                SQLAlchemy or Django.

        Returns:
            The row's id, and whether it is new or an earlier one with this identity.

        Raises:
            UnknownKindError: no plugin here registered the message's kind.
            ConfigurationError: the group id is empty or too long.
            StoreError: the database refused; nothing was written.
            EngineStateError: the engine has been stopped.
        """
        with self._transaction(connection) as tx:
            return tx.enqueue(
                message,
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
            StoreError: the database refused; none is written.
            EngineStateError: the engine has been stopped.
        """
        with self._transaction(connection) as tx:
            return tx.enqueue_many(messages, origin=origin, allow_unknown=allow_unknown)

    async def aenqueue(self, message: Message, **options: Any) -> Enqueued:
        """Do what `enqueue` does, from asyncio, without blocking the loop."""
        return await asyncio.to_thread(self.enqueue, message, **options)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction on this thread, or a part of the one that is open; all of it commits, or nothing.

        Raises:
            StoreError: the database refused.
            EngineStateError: the engine has been stopped.
        """
        with self._transaction(None) as tx:
            yield tx

    @contextmanager
    def _transaction(self, connection: Any) -> Iterator[Transaction]:
        self._ready(connects=connection is None)
        _completion.check_thread()
        opened = self.store.transaction() if connection is None else session_on(connection)
        with opened as session:
            tx = Transaction(self, session)
            yield tx
            if tx.dirty:
                session.after_commit(self.wake)
            if tx.died:
                session.after_commit(partial(self._tell_died, tx.died))

    def group(self, group_id: bytes) -> GroupHandle:
        """Return a handle on one group's rows; each of its calls is a transaction, or joins the one open here.

        Raises:
            ConfigurationError: the id is empty or longer than 255 bytes.
        """
        return GroupHandle(check_group_id(group_id), self.store.groups, self.transaction, self._reading)

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
            with self._reading() as session:
                ids = self.store.groups.matching(
                    session,
                    pending=pending,
                    member=member,
                    consent=consent,
                    active_since_ns=active_since_ns,
                    after=after,
                    limit=page,
                )
                found = [self.store.groups.state(session, group_id) for group_id in ids]
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
        """
        with self._transaction(None) as tx:
            return tx.pull_in(msg_or_key, not_later_than_ns=not_later_than_ns)

    def cancel(self, task_id: int) -> bool:
        """Move a live task to the dead-task table; a running one sees `ctx.cancelled`, its outcome is dropped.

        Its group stays occupied until the handler returns.

        Returns:
            Whether there was such a task.
        """
        with self._transaction(None) as tx:
            task = self.store.tasks.by_id(tx.session, task_id)
            if task is None:
                return False
            burial = _lifecycle.Bury(DeadReason.CANCELLED, task.attempts, task.last_error)
            self.store.tasks.bury(tx.session, [(task_id, burial)], self.clock.now_ns())
            tx.died.append(FinishedTask(task, None, DeadReason.CANCELLED))
            runtime = self._runtime
            if runtime is not None:
                tx.session.after_commit(lambda: runtime.cancel(task_id))
            return True

    def retry_dead(self, dead_id: int) -> Enqueued | None:
        """Give a dead task a new life, attempts and expiry afresh; it merges into a live one of its identity.

        Returns:
            As `enqueue` does; `conflict` leaves the dead task where it is. `None` when there is none.
        """
        with self._transaction(None) as tx:
            dead = self.store.tasks.dead_by_id(tx.session, dead_id)
            if dead is None:
                return None
            answer = tx.write(revived(dead, self.clock.now_ns()))
            if answer.status != EnqueueStatus.CONFLICT:
                self.store.tasks.forget_dead(tx.session, dead_id)
            return answer

    def publish(self, event: object) -> bool:
        """Tell plugins that something happened; they react on the engine's threads, or here if it has none.

        Returns:
            `False` when too many events wait: this one is dropped, and every plugin reconciles instead.
        """
        self._ready()
        runtime = self._runtime
        if runtime is None:
            for hook in self.plugins.hooks("callboard_event"):
                self.plugins.call(hook, engine=self, event=event)
            return True
        kept = runtime.hooks.publish(event)
        if not kept:
            self.request_reconcile("overflow")
        return kept

    def request_reconcile(self, reason: str) -> None:
        """Have every plugin reconcile soon; an engine that is not started does so when it starts."""
        runtime = self._runtime
        if runtime is not None:
            runtime.hooks.want_reconcile(reason)

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
        self._ready()
        return self.store.list_tasks(kind, group_id, state, limit, after_id)

    def task(self, task_id: int) -> Task | None:
        """Return one live task."""
        with self._reading() as session:
            return self.store.tasks.by_id(session, task_id)

    def dead_tasks(
        self, *, kind: str | None = None, group_id: bytes | None = None, limit: int = 1_000, after_id: int = 0
    ) -> list[DeadTask]:
        """Return dead tasks in the order of their ids; page with `after_id`."""
        self._ready()
        return self.store.list_dead(kind, group_id, limit, after_id)

    def service(self, service_type: type[T]) -> T:
        """Return the host's service of this type.

        Raises:
            ServiceMissingError: the host gave none.
        """
        if service_type not in self._services:
            name = service_type.__name__
            raise ServiceMissingError(
                f"no service of type {name}: Engine(..., services={{{name}: ...}}) gives one"
            )
        return cast(T, self._services[service_type])

    def health(self) -> Health:
        """Return what an operator asks first. It reads no database and needs no start."""
        runtime = self._runtime
        missing = {kind.name: self.registry.missing_services(kind) for kind, _ in self.registry}
        return Health(
            state=self._state,
            database=self.store.where,
            database_error=None if runtime is None else runtime.actor.store_error,
            plugins=list(self.plugins.health.values()),
            missing_services={kind: [each.__name__ for each in types] for kind, types in missing.items() if types},
            running=0 if runtime is None else len(runtime.workload.runs),
            overdue=[] if runtime is None else runtime.scheduler.watch.overdue(),
            counters={} if runtime is None else dict(runtime.scheduler.counters),
            threads=0 if runtime is None else runtime.pool.size(),
            actors=0 if runtime is None else runtime.router.live(),
        )

    # Putting together

    def load_plugins(self) -> None:
        """Load the plugins, which other calls do on first use; touches no database.

        Raises:
            PluginError: a plugin asked for by name is not installed.
        """
        with self._lock:
            if self._loaded:
                return
            self.plugins.load(self)
            self.recurring_kinds = frozenset(kind.name for kind, _ in self.registry if kind.recurring)
            self._loaded = True

    def _check_usable(self) -> None:
        if self._state == _STOPPED:
            raise EngineStateError("this engine has been stopped; make a new Engine")

    def _ready(self, *, connects: bool = True) -> None:
        self._check_usable()
        if not self._loaded:
            self.load_plugins()
        if connects and not self._prepared:
            with self._lock:
                self.store.prepare(self.clock.now_ns())
                self._prepared = not self.store.in_transaction()

    def _tell_died(self, died: list[FinishedTask]) -> None:
        runtime = self._runtime
        if runtime is not None:
            runtime.tell_died(died)

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        self._ready()
        with self.store.reading() as session:
            yield session

    def _enter(self) -> None:
        """Become the node that executes: its row, and each plugin's start."""
        from importlib.metadata import version  # here, as in _plugins: slow to import

        kinds = ",".join(sorted(self.registry.runnable))
        with self.store.transaction() as session:
            self._node_id = self.store.add_node(session, version("callboard"), kinds, self.clock.now_ns())
        if self._greeted:
            return
        self._greeted = True
        for kind, plugin in self.registry:
            for missing in self.registry.missing_services(kind):
                name = missing.__name__
                logger.warning(
                    "tasks of kind {} (plugin {}) are left to other nodes: no {} here; give"
                    " Engine(..., services={{{}: ...}})",
                    kind.name,
                    plugin,
                    name,
                    name,
                )
        for hook in self.plugins.hooks("callboard_startup"):
            self.plugins.call(hook, engine=self)

    def _after_fork(self) -> None:
        """Be an unstarted engine in a forked child: the threads are gone, the connections are the parent's."""
        self._lock = threading.RLock()
        self._runtime = None
        if self._state == _RUNNING:
            self._state = _UNSTARTED
        self._greeted = False
        self.store.forget()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_started: weakref.WeakSet[Engine] = weakref.WeakSet()


def _forked() -> None:
    for engine in list(_engines):
        engine._after_fork()
    _started.clear()


def _exiting() -> None:
    for engine in list(_started):
        engine.stop(timeout=0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_exiting)


def _seconds(timeout: float | timedelta | None) -> float | None:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not seconds >= 0:
        raise ConfigurationError(f"timeout must not be negative, not {timeout!r}")
    return seconds
