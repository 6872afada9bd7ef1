"""What a host's transaction enqueues and pulls in on PostgreSQL: appended to a table of its own, merged later.

Anything else would make the host wait or fail. `ON CONFLICT DO NOTHING` against a pending row loses the request
when the row is finished before the host commits. `DO UPDATE` keeps the row locked until then, so that the end of
its run waits for the host, and under REPEATABLE READ it aborts the host. A row that is appended meets nobody.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

from callboard import _lifecycle
from callboard._log import logger
from callboard._store.interface import Row, Session
from callboard._store.sql_tasks import SqlTasks
from callboard._task import Enqueued, EnqueueStatus, FinishedTask, NewTask, Task, TaskState

_NEW = ", ".join(NewTask._fields)
_MARKS = ", ".join("?" * len(NewTask._fields))
ACCEPT = f"INSERT INTO callboard_inbox ({_NEW}) VALUES ({_MARKS})"
_ACCEPT_PULL_IN = "INSERT INTO callboard_inbox (identity, not_later_than_ns) VALUES (?, ?)"
# Of two serializable transactions that read the inbox and append to it, the server would abort one. So they do
# not look, and the target is looked for when the pull-in is merged.
_IS_KNOWN = (
    "SELECT CASE current_setting('transaction_isolation') WHEN 'serializable' THEN TRUE ELSE"
    " EXISTS (SELECT 1 FROM callboard_task WHERE identity = ?1)"
    " OR EXISTS (SELECT 1 FROM callboard_inbox WHERE identity = ?1 AND kind IS NOT NULL) END"
)
# One node at a time: of two, the second could merge a pull-in before the first has merged what it is for.
_MY_TURN = "SELECT pg_try_advisory_xact_lock(?, 'callboard_inbox'::regclass::oid::integer)"
_MERGE_SPACE = 0x63616C6D
"""The first key of the advisory lock of whoever merges, beside that of claims; the second is the table's oid."""
_READ = (
    f"SELECT id, not_later_than_ns, {_NEW} FROM callboard_inbox"
    " WHERE identity <> ALL(?::bytea[]) ORDER BY id LIMIT ?"
)
_LIVE = (
    f"SELECT {', '.join(Task._fields)} FROM callboard_task WHERE identity = ANY(?::bytea[])"
    " ORDER BY identity FOR UPDATE SKIP LOCKED"
)
_KNOWN = "SELECT identity FROM callboard_task WHERE identity = ANY(?::bytea[])"
_FORGET = "DELETE FROM callboard_inbox WHERE id = ANY(?::bigint[])"


class Inbox(SqlTasks):
    """The part of the task table that takes what is not yet known to be committed, and merges it."""

    @abstractmethod
    def insert_many(self, session: Session, new: Sequence[NewTask]) -> dict[bytes, int]:
        """Write rows whose identities are not live; return the ids of those that were."""

    def accept(
        self, session: Session, new: Sequence[NewTask], recurring: Collection[str], died: list[FinishedTask]
    ) -> list[Enqueued]:
        """Take tasks in a transaction that others must not wait for; what becomes of them is known later."""
        session.run_many(ACCEPT, new)
        return [Enqueued(None, EnqueueStatus.ACCEPTED)] * len(new)

    def accept_pull_in(self, session: Session, identity: bytes, not_later_than_ns: int) -> bool:
        """Take a pull-in likewise; `False` if this transaction can see that there is no such task."""
        if not session.rows(_IS_KNOWN, (identity,))[0][0]:
            return False
        session.run(_ACCEPT_PULL_IN, (identity, not_later_than_ns))
        return True

    def merge_accepted(
        self, session: Session, recurring: Collection[str], died: list[FinishedTask], limit: int
    ) -> int:
        """Merge what was accepted and committed, at most `limit`; return how many.

        What meets a row that somebody else has locked stays, and everything after it of the same identity.
        """
        if not session.rows(_MY_TURN, (_MERGE_SPACE,))[0][0]:
            return 0
        merging = _Merging(self, session, recurring, died)
        merged, stuck = 0, -1
        while merged < limit and len(merging.stuck) > stuck:  # however much is stuck, what follows it is not
            stuck = len(merging.stuck)
            done = merging.merge(session.rows(_READ, (list(merging.stuck), limit - merged)))
            session.run(_FORGET, (done,))
            merged += len(done)
        return merged


class _Merging:
    """One transaction's entries, and the live rows that they are about.

    Attributes:
        stuck: the identities whose entries have to wait, because somebody else is at work on the row.
    """

    def __init__(
        self, inbox: Inbox, session: Session, recurring: Collection[str], died: list[FinishedTask]
    ) -> None:
        self._inbox = inbox
        self._session = session
        self._recurring = recurring
        self._died = died
        self._live: dict[bytes, Task | None] = {}
        self.stuck: set[bytes] = set()

    def merge(self, entries: Sequence[Row]) -> list[int]:
        """Return the ids of the entries that are merged."""
        done: list[int] = []
        first: dict[bytes, tuple[int, NewTask]] = {}
        seen: set[bytes] = set()
        for entry_id, pulled_in_ns, *columns in entries:
            new = NewTask._make(columns)
            if pulled_in_ns is None and new.identity not in seen:
                first[new.identity] = (entry_id, new)
            seen.add(new.identity)
        ids = self._inbox.insert_many(self._session, [new for _, new in first.values()])
        done += [entry_id for identity, (entry_id, _) in first.items() if identity in ids]
        if len(ids) < len(entries):
            self._look(sorted(seen))
        fresh = {first[identity][0] for identity in ids}
        for entry_id, pulled_in_ns, *columns in entries:
            new = NewTask._make(columns)
            if entry_id in fresh or new.identity in self.stuck:
                continue
            if pulled_in_ns is None:
                self._enqueue(new)
            elif self._live.get(new.identity) is not None:
                self._inbox.pull_in(self._session, new.identity, pulled_in_ns)
            if new.identity not in self.stuck:
                done.append(entry_id)
        return done

    def _look(self, identities: list[bytes]) -> None:
        rows = [Task._make(row) for row in self._session.rows(_LIVE, (identities,))]
        self._live = {task.identity: task for task in rows}
        missing = [identity for identity in identities if identity not in self._live]
        if missing:
            self.stuck |= {row[0] for row in self._session.rows(_KNOWN, (missing,))}

    def _enqueue(self, new: NewTask) -> None:
        live = self._live.get(new.identity)
        if live is not None and live.state != TaskState.RUNNING:
            burial = _lifecycle.overdue(live, new.created_at_ns, recurring=new.kind in self._recurring)
            if burial is not None:
                self._inbox.bury(self._session, [(live.id, burial)], new.created_at_ns)
                self._died.append(FinishedTask(live, None, burial.reason))
                live = None
        if live is None:
            if self._inbox.insert(self._session, new) is None:
                self.stuck.add(new.identity)  # another has just written such a row
            else:
                self._look_again(new.identity)
        elif live.data_hash == new.data_hash:
            self._inbox.request(self._session, live.id)
        else:
            logger.warning("task {} is live with another payload; an accepted one of its key is dropped", live.id)

    def _look_again(self, identity: bytes) -> None:
        rows = self._session.rows(_LIVE, ([identity],))
        self._live[identity] = Task._make(rows[0]) if rows else None
