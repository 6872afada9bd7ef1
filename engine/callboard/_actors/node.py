"""This engine among the others on its database: its row, its lease, and the nodes that are gone.

A node may claim, start and write only while it holds its lease. It renews the lease by a heartbeat; others
take its tasks over when the heartbeat has stood still for the lease's length, or at once when they can see
that its process has ended. All of this is measured on monotonic clocks, so that setting the wall clock neither
ends a lease nor prolongs one. A node that slept through its lease finds its row gone: the tokens of its runs
are stale then, and it joins anew. So does one whose row was removed because it held nothing for a day and gave no
sign of life.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from callboard._actors.enduring import endure
from callboard._actors.workload import Workload
from callboard._log import logger
from callboard._store.nodes import PAUSED
from callboard._task import FinishedTask
from callboard.errors import StoreError

if TYPE_CHECKING:
    from callboard._core import Core
    from callboard._store.interface import NodeRow, Session

HEARTBEATS = 3
"""Heartbeats in the time of one lease by default, so that one may be late."""

_WAITED_NS = 5 * 10**8
"""Whoever waits longer for the write lock has found out that others cannot give a sign of life either."""


class _Seen(NamedTuple):
    row: NodeRow
    since_ns: int


class Node:
    """One engine's membership.

    Attributes:
        id: the row's id; another one after the lease was lost.
        lease_until_ns: until when the lease is certain, on the monotonic clock.
    """

    def __init__(self, core: Core, workload: Workload, report: Callable[[list[FinishedTask]], None]) -> None:
        """Be nobody until `join`; `report` takes the tasks that a rescue buries."""
        self._report = report
        self._core = core
        self._nodes = core.store.nodes
        self._workload = workload
        self._others: dict[int, _Seen] = {}
        self._orphans_left = False
        self.id = 0
        self.lease_until_ns = 0

    def join(self) -> None:
        """Become a node, and take over what nodes that are gone have left."""
        with self.renewing(self._core.store.transaction()):
            pass
        try:
            self.look(changed=True)
            self._take_over()
        except BaseException:
            self.leave()
            raise

    def has_company(self) -> bool:
        """Return whether other nodes execute this database's tasks, as far as the last look knew."""
        return bool(self._others)

    def leave(self) -> None:
        """Be no node any more; called when nothing is claimed.

        Where the database is out of reach the row stays, for the next node to remove; the stop goes on.
        """
        try:
            with self._core.store.transaction() as session:
                self._nodes.remove(session, self.id)
        except StoreError as error:
            logger.warning("stopped, but the node's row stays behind: {}", error)
        finally:
            self._nodes.unlock(self.id)

    @contextmanager
    def renewing(self, opened: AbstractContextManager[Session], *, always: bool = True) -> Iterator[Session]:
        """Enter a transaction that renews the lease with its commit; a node whose row is gone joins anew.

        Unless `always`, a lease of which half is left stays as it is.
        """
        entered, before = False, self.id
        try:
            with opened as session:
                entered, before = True, self.id
                now_ns, until_ns = self._core.clock.monotonic_ns(), self.lease_until_ns
                if always or until_ns - now_ns <= self._core.lease_ns // 2:
                    self._beat(session)
                    until_ns = now_ns + self._core.lease_ns
                yield session
        except BaseException:
            if entered and before != self.id:  # the row was not committed, so others may get its number
                self._nodes.unlock(self.id)
                self.id = before
            raise
        self.lease_until_ns = until_ns
        if before != self.id:
            self._nodes.unlock(before)

    def heartbeat(self) -> None:
        """Renew the lease, if it protects anything."""
        if self._workload.runs:
            with self.renewing(self._core.store.transaction()):
                pass

    def look(self, *, changed: bool) -> bool:
        """Take over the tasks of nodes that are gone; return whether there were any.

        Args:
            changed: whether another connection has written, so that rows must be read; otherwise this reads
                no table unless a node is gone.
        """
        now_ns = self._core.clock.monotonic_ns()
        if changed:
            self._read(now_ns)
        gone = self._gone(now_ns)
        if gone and not changed:
            self._read(now_ns)  # of its runs' ends nothing may have told; a node that holds nothing is silent
            gone = self._gone(now_ns)
        if not gone:
            return self._orphans_left and self._take_over()
        with self._core.store.transaction() as session:
            if self._core.clock.monotonic_ns() - now_ns > _WAITED_NS:
                self.excuse()
                return False
            buried = [row for row in gone if self._nodes.bury(session, row)]
            # In the same transaction: only a node that starts looks for the tasks of one that has no row.
            rescue = self._rescue(session)
        if len(buried) < len(gone):
            self._read(now_ns)
        for row in buried:
            self._others.pop(row.id, None)
            logger.warning("node {} (process {} on {}) is gone", row.id, row.pid, row.host)
        return self._has_rescued(*rescue)

    def excuse(self) -> None:
        """Count the silence of others from now on: while nobody could write to the database, it told nothing."""
        now_ns = self._core.clock.monotonic_ns()
        self._others = {node_id: _Seen(seen.row, now_ns) for node_id, seen in self._others.items()}

    def tell_kinds(self, session: Session) -> None:
        """Write anew for whoever looks at the nodes which kinds this one runs, and which it has paused."""
        self._nodes.tell_kinds(session, self.id, self._kinds())

    def _kinds(self) -> str:
        paused = (f"{PAUSED}{kind}" for kind in sorted(self._workload.throttle.paused_kinds()))
        return ",".join([*sorted(self._core.registry.runnable), *paused])

    def _add(self, session: Session) -> None:
        from importlib.metadata import version  # here, as in _plugins: slow to import

        now_ns = self._core.clock.now_ns()
        self.id = self._nodes.add(session, version("callboard"), self._kinds(), self._core.lease_ns, now_ns)

    def _beat(self, session: Session) -> None:
        if self.id and self._nodes.renew(session, self.id, self._core.clock.now_ns()):
            return
        runs = list(self._workload.runs.values())
        if runs:
            logger.warning("this node's lease ran out and others took its tasks over; it joins anew")
        for run in runs:
            run.cancel()
        self._add(session)

    def _read(self, now_ns: int) -> None:
        with self._core.store.reading() as session:
            rows = self._nodes.others(session, self.id)
        before, self._others = self._others, {}
        for row in rows:
            seen = before.get(row.id)
            moved = seen is None or seen.row.heartbeat != row.heartbeat
            self._others[row.id] = _Seen(row, now_ns if moved or seen is None else seen.since_ns)

    def _gone(self, now_ns: int) -> list[NodeRow]:
        return [seen.row for seen in self._others.values() if self._is_gone(seen, now_ns)]

    def _is_gone(self, seen: _Seen, now_ns: int) -> bool:
        ran_out = seen.row.holds and now_ns - seen.since_ns > seen.row.lease_ns
        return ran_out or self._nodes.has_ended(seen.row)

    def _take_over(self) -> bool:
        with self._core.store.transaction() as session:
            rescue = self._rescue(session)
        return self._has_rescued(*rescue)

    def _rescue(self, session: Session) -> tuple[int, list[FinishedTask], bool]:
        core = self._core
        tasks, now_ns = core.store.tasks, core.clock.now_ns()
        rescued, died = tasks.rescue(session, now_ns, core.max_crashes, core.recurring_kinds)
        return rescued, died, tasks.has_orphans(session)

    def _has_rescued(self, rescued: int, died: list[FinishedTask], orphans_left: bool) -> bool:
        """Tell of what has been committed; return whether tasks are pending again."""
        self._orphans_left = orphans_left
        self._report(died)
        if rescued:
            logger.info("{} task(s) that an engine left running are pending again", rescued)
        return rescued > 0


class Heartbeat:
    """A thread of its own for a node's heartbeats, so that no handler and no pass can hold them up."""

    def __init__(self, node: Node, interval_ns: int) -> None:
        """Beat for `node`, once in an interval."""
        self._node = node
        self._interval_s = interval_ns / 1e9
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="callboard-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        endure("the heartbeat", self._beat)

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._node.heartbeat()
            except StoreError as error:
                logger.warning("a heartbeat failed, the next one is in {:.1f} s: {}", self._interval_s, error)
