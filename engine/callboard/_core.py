"""What the parts of one engine share: its database, clock, plugins and kinds. They know this, not the facade."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.protobuf.message import Message

from callboard import _completion
from callboard._clock import Clock
from callboard._compose import Composer
from callboard._kinds import KindRegistry
from callboard._plugin_tables import PluginMigrator
from callboard._plugins import PluginHost
from callboard._run import Run
from callboard._store.interface import Session, Store
from callboard._task import Enqueued, EnqueueStatus, FinishedTask, NewTask
from callboard._transaction import Transaction
from callboard.errors import EngineStateError, ServiceMissingError

if TYPE_CHECKING:
    from callboard._actors.runtime import Runtime
    from callboard._engine import Engine

T = TypeVar("T")

_LOOK_NS = 10**9
"""How long the tables are taken for what they were: a newer engine may migrate them at any time."""

UNSTARTED, RUNNING, STOPPING, STOPPED = "unstarted", "running", "stopping", "stopped"


class Core:
    """One engine's shared parts.

    Attributes:
        engine: the facade, for plugins and handlers.
        running: the moving parts of a started engine, else `None`.
        state: `unstarted`, `running`, `stopping` or `stopped`.
        lock: held while the state changes.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        clock: Clock,
        plugins: Sequence[Any] | None,
        block: Collection[str],
        services: Mapping[type[Any], Any],
        dead_retention: timedelta | None,
        lease_ns: int,
        heartbeat_ns: int,
        max_crashes: int,
    ) -> None:
        """Put the parts of `engine` together; connects to nothing."""
        self.engine = engine
        self.store = store
        self.clock = clock
        self.services = dict(services)
        self.dead_retention = dead_retention
        self.lease_ns = lease_ns
        self.heartbeat_ns = heartbeat_ns
        self.max_crashes = max_crashes
        self.registry = KindRegistry(self.services)
        self.plugins = PluginHost(plugins, block, self.registry)
        self.plugin_tables = PluginMigrator(self.plugins, store)
        self.composer = Composer(self.registry, clock)
        self.recurring_kinds: frozenset[str] = frozenset()
        self.running: Runtime | None = None
        self.state = UNSTARTED
        self.lock = threading.RLock()
        self._loading = False
        self._loaded = False
        self._prepared = False
        self._prepared_ns = 0

    def load_plugins(self) -> None:
        """Load the plugins once.

        Raises:
            PluginError: a plugin asked for by name is not installed.
            EngineStateError: a hook calls, while the plugins are loaded.
        """
        with self.lock:
            if self._loaded:
                return
            if self._loading:
                raise EngineStateError(
                    "the plugins are still being loaded: a hook that says what its plugin has may keep the engine,"
                    " and use it from callboard_startup on"
                )
            self._loading = True
            try:
                self.plugins.load(self.engine)
                self.plugin_tables.collect(self.engine)
            finally:
                self._loading = False
            self.recurring_kinds = frozenset(kind.name for kind, _ in self.registry if kind.recurring)
            self._loaded = True

    def migrate(self) -> list[str]:
        """Bring the tables up to date, the engine's and then each plugin's; return what was done.

        Raises:
            PluginError: a plugin asked for by name is not installed.
        """
        self.check_usable()
        with self.lock:
            self.load_plugins()
            done = self.store.prepare(self.clock.now_ns())
            done += self.plugin_tables.migrate(self.clock.now_ns())
            # A transaction may yet be rolled back, and the tables with it.
            self._prepared = self._prepared or not self.store.in_transaction()
            self._prepared_ns = self.clock.monotonic_ns()
            return done

    def check_usable(self) -> None:
        """Refuse every call after the stop.

        Raises:
            EngineStateError: the engine has been stopped.
        """
        if self.state == STOPPED:
            raise EngineStateError("this engine has been stopped; make a new Engine")

    def ready(self, *, connects: bool = True) -> None:
        """Do what every call needs: load the plugins and, if it `connects`, migrate; look again each second.

        Inside a transaction there is no second look: nobody else can migrate meanwhile, and whoever holds the lock
        may be waiting until this transaction has ended, so that the process can fork.

        Raises:
            SchemaError: a newer engine has migrated the tables and says that this one cannot use them.
        """
        self.check_usable()
        if not self._loaded:
            self.load_plugins()
        if connects and not (self._prepared and (self._looked() or self.store.in_transaction())):
            self.migrate()

    def _looked(self) -> bool:
        return self.clock.monotonic_ns() - self._prepared_ns < _LOOK_NS

    def enqueue(self, message: Message, connection: Any, **options: Any) -> Enqueued:
        """Write a task in the transaction that is open on this thread or `connection`, or else at once."""
        self.ready(connects=connection is None)
        _completion.check_thread()
        new = self.composer.compose(message, **options)
        if connection is None and not self.store.in_transaction():
            task_id = self.store.insert_now(new)
            if task_id is not None:
                self.engine.wake()
                return Enqueued(task_id, EnqueueStatus.INSERTED)
        with self.transaction(connection, brief=True) as tx:
            return tx.write(new)

    @contextmanager
    def transaction(self, connection: Any = None, *, brief: bool = False) -> Iterator[Transaction]:
        """Open a transaction on this thread or on the host's `connection`, or join the one that is open there.

        One that is `brief` ends with the one call that it is opened for, unless it joins another.
        """
        self.ready(connects=connection is None)
        _completion.check_thread()
        brief = brief and connection is None and not self.store.in_transaction()
        opened = self.store.transaction() if connection is None else self.store.session_on(connection)
        with opened as session:
            tx = Transaction(self, session, brief=brief)
            with _completion.owned():
                yield tx
            if tx.dirty:
                session.after_commit(self.engine.wake)
            if tx.died:
                session.after_commit(partial(self._tell_died, tx.died))

    def compose(self, messages: Iterable[Message], **options: Any) -> list[NewTask]:
        """Return the rows for `messages`, to be written without a `transaction`; `options` are the composer's."""
        self.ready(connects=False)
        return [self.composer.compose(message, **options) for message in messages]

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session that reads."""
        self.ready()
        with self.store.reading() as session:
            yield session

    def service(self, service_type: type[T]) -> T:
        """Return the host's service of this type.

        Raises:
            ServiceMissingError: the host gave none.
        """
        if service_type not in self.services:
            name = service_type.__name__
            raise ServiceMissingError(
                f"no service of type {name}: Engine(..., services={{{name}: ...}}) gives one"
            )
        return cast(T, self.services[service_type])

    def wake(self) -> None:
        """Have the table read again, if anything runs."""
        if (running := self.running) is not None:
            running.wake()

    def cancel(self, task_id: int) -> None:
        """Tell a task's run, if there is one, that it has been cancelled."""
        if (running := self.running) is not None:
            running.cancel(task_id)

    def run_of(self, task_id: int) -> Run | None:
        """Return the run of a task that is claimed here."""
        running = self.running
        return None if running is None else running.workload.runs.get(task_id)

    def want_reconcile(self, reason: str) -> None:
        """Have every plugin reconcile soon; an engine that is not started does so when it starts."""
        if (running := self.running) is not None:
            running.want_reconcile(reason)

    def _tell_died(self, died: list[FinishedTask]) -> None:
        if (running := self.running) is not None:
            running.tell_died(died)

    def forget(self) -> None:
        """Be an unstarted engine's core in a forked child: its threads are gone, its connections the parent's."""
        self.lock = threading.RLock()
        self.running = None
        if self.state in (RUNNING, STOPPING):
            self.state = UNSTARTED
        self.store.forget()
