"""The SQL of the task and dead-task tables: each function is one step of a task's life, inside a session.

Plain SQL with fixed texts, because these statements are the hot path: an ORM in their place was measured at
2.6 times the cost in batches and 6.5 times one by one. Many ids travel as one JSON array, so that a batch is
one statement, whose text the driver has already prepared.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from callboard import _lifecycle
from callboard._store.interface import Row, Session
from callboard._store.policy import Orphan
from callboard._store.sql_tasks import ALONE, DUE, NEXT, TASK, SqlTasks, heads_statement
from callboard._store.task_table import LOOK, Held
from callboard._task import DeadTask, Enqueued, EnqueueStatus, FinishedTask, NewTask, Task

_NEXT_TOKEN = NEXT.format(name="token")
# A row as it is once claimed, so that nobody has to copy it for the columns that the claim changes.
_CLAIMED = ", ".join(
    {"state": "'running'", "token": _NEXT_TOKEN, "owner": "?"}.get(name, name) for name in Task._fields
)
_NEW = ", ".join(NewTask._fields)
_DEAD_COLUMNS = [name for name in DeadTask._fields if name not in ("id", "task_id", "reason", "died_at_ns")]
_DEAD = ", ".join(_DEAD_COLUMNS)
_IN_IDS = "id IN (SELECT value FROM json_each(?))"

DORMANT_NS = 60 * 10**9
"""A row that is further from due than this when it is written goes into the index of dormant identities."""

_MARKS = ", ".join("?" * len(NewTask._fields))
_WITH_IDENTITY = (
    "SELECT {columns} FROM callboard_task WHERE identity {test} AND dormant = 0 UNION ALL"
    " SELECT {columns} FROM callboard_task WHERE identity {test} AND dormant = 1"
)
_INSERT = f"INSERT INTO callboard_task ({_NEW}, dormant) VALUES ({_MARKS}, ?)"
_TAKE_WRITE_LOCK = "UPDATE callboard_task SET id = id WHERE 0"
# The statement takes the write lock before it looks, so what it finds holds until it has written.
_INSERT_IF_NEW = (
    f"INSERT INTO callboard_task ({_NEW}, dormant) SELECT {_MARKS}, ? WHERE NOT EXISTS"
    f" ({_WITH_IDENTITY.format(columns='1', test='= ?')}) RETURNING id"
)
_BY_IDENTITY = _WITH_IDENTITY.format(columns=TASK, test="= ?1")
_PULL_IN = (
    "UPDATE callboard_task SET"
    " next_attempt_at_ns = CASE state WHEN 'running' THEN next_attempt_at_ns ELSE min(next_attempt_at_ns, ?1) END,"
    " pulled_in_ns = CASE state WHEN 'running' THEN min(coalesce(pulled_in_ns, ?1), ?1) ELSE pulled_in_ns END"
    f" WHERE id IN ({_WITH_IDENTITY.format(columns='id', test='= ?2')})"
)

# A group belongs to the node that has rows of it running, so no lease of groups has to be written or given back.
# Twice, because an index finds what is smaller and what is larger; for what is different it must be read.
_RUN_BY = (
    "EXISTS (SELECT 1 FROM callboard_task AS other INDEXED BY callboard_task_running WHERE"
    " other.state = 'running' AND other.group_id = callboard_task.group_id AND other.owner {test} ?)"
)
_NOT_ELSEWHERE = f"NOT {_RUN_BY.format(test='<')} AND NOT {_RUN_BY.format(test='>')}"
# One arm for each kind: SQLite merges them in the index's order and stops at the limit.
_DUE_ARM = (
    f"SELECT {_CLAIMED} FROM callboard_task INDEXED BY callboard_task_due"
    f" WHERE {DUE} AND kind = ? AND next_attempt_at_ns <= ? AND {_NOT_ELSEWHERE}"
)
# The inner limit is on the rows that are read, as in `_PARK_MORE`.
_DUE_BESIDE = (
    f"SELECT {_CLAIMED} FROM callboard_task WHERE id IN (SELECT id FROM (SELECT id, group_id, next_attempt_at_ns"
    f" FROM callboard_task INDEXED BY callboard_task_due WHERE {DUE} AND kind = ? AND next_attempt_at_ns <= ?"
    " ORDER BY next_attempt_at_ns LIMIT ?) AS callboard_task"
    " WHERE (group_id IS NULL OR hex(group_id) NOT IN (SELECT value FROM json_each(?)))"
    f" AND {_NOT_ELSEWHERE} ORDER BY next_attempt_at_ns LIMIT ?) ORDER BY next_attempt_at_ns"
)
_MOST_ARMS = 500  # of one statement, by SQLite's default
_PARKED = (
    f"SELECT {_CLAIMED} FROM callboard_task INDEXED BY callboard_task_parked"
    f" WHERE parked = 1 AND group_id = ? AND next_attempt_at_ns <= ? AND {_NOT_ELSEWHERE}"
    " ORDER BY next_attempt_at_ns LIMIT ?"
)
_ALONE_DUE = (
    f"SELECT {_CLAIMED} FROM callboard_task INDEXED BY callboard_task_alone WHERE {ALONE}"
    f" AND next_attempt_at_ns <= ? AND kind IN (SELECT value FROM json_each(?)) AND {_NOT_ELSEWHERE}"
    " ORDER BY next_attempt_at_ns LIMIT 1"
)
_STRAYS = f"{ALONE} AND kind NOT IN (SELECT value FROM json_each(?))"
_HEADS = heads_statement(
    f"{ALONE} AND kind IN (SELECT value FROM json_each(?2)) AND {_NOT_ELSEWHERE.replace('?', '?1')}",
    _STRAYS.replace("?", "?2"),
)
_STRAYS_DUE = (
    f"SELECT kind, id FROM callboard_task INDEXED BY callboard_task_alone WHERE {_STRAYS}"
    " AND next_attempt_at_ns <= ? LIMIT ?"
)
_START = (
    f"UPDATE callboard_task SET state = 'running', parked = 0, token = {_NEXT_TOKEN}, last_attempted_at_ns = ?,"
    f" owner = ? WHERE {_IN_IDS}"
)
_PARK = f"UPDATE callboard_task SET parked = 1 WHERE {_IN_IDS}"
# The limit is on the rows that are read, so that it does not search a million others for one group's.
_PARK_MORE = (
    "UPDATE callboard_task SET parked = 1 WHERE id IN (SELECT id FROM (SELECT id, group_id FROM callboard_task"
    f" INDEXED BY callboard_task_due WHERE {DUE} AND kind = ? AND next_attempt_at_ns <= ?"
    " ORDER BY next_attempt_at_ns LIMIT ?) WHERE hex(group_id) IN (SELECT value FROM json_each(?)))"
)
_RUNNING = f"SELECT id, token, requests, cancelled FROM callboard_task WHERE {_IN_IDS} AND state = 'running'"
# One more, and not `_NEXT_TOKEN`, which may wrap: by that its run knows the row that it has to bury.
_CANCEL = (
    "UPDATE callboard_task SET cancelled = requests, token = min(token, 9223372036854775806) + 1"
    " WHERE id = ? AND cancelled = 0"
)
_ORPHANS = (
    f"SELECT owner, alone, crashes, cancelled, {TASK} FROM callboard_task INDEXED BY callboard_task_running"
    " WHERE state = 'running' AND (owner IS NULL OR owner NOT IN (SELECT id FROM callboard_node))"
)
_SPARED = 2
"""Added to `alone`: the engine was stopped while the task ran on."""
_SPARE = f"UPDATE callboard_task SET alone = alone + {_SPARED} WHERE {_IN_IDS} AND state = 'running' AND owner = ?"
_RUN_AGAIN = (
    f"UPDATE callboard_task SET state = 'pending', owner = NULL, token = {_NEXT_TOKEN}, alone = ?1, crashes = ?2,"
    " next_attempt_at_ns = max(?3, min(next_attempt_at_ns, coalesce(pulled_in_ns, next_attempt_at_ns))),"
    " pulled_in_ns = NULL WHERE id = ?4"
)
# Skips from group to group, since one that somebody runs may have hundreds of thousands of parked rows.
_UNPARK_FREE = (
    "WITH RECURSIVE behind(group_id) AS (SELECT min(group_id) FROM callboard_task WHERE parked = 1 UNION ALL"
    " SELECT (SELECT min(group_id) FROM callboard_task WHERE parked = 1 AND group_id > behind.group_id)"
    " FROM behind WHERE behind.group_id IS NOT NULL)"
    " UPDATE callboard_task SET parked = 0 WHERE parked = 1 AND group_id IN (SELECT group_id FROM behind"
    " WHERE group_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM callboard_task AS other"
    " INDEXED BY callboard_task_running WHERE other.state = 'running' AND other.group_id = behind.group_id))"
)
_UNPARK_LOOSE = "UPDATE callboard_task SET parked = 0 WHERE parked = 1 AND group_id IS NULL"  # by hand
_DELETE = f"DELETE FROM callboard_task WHERE {_IN_IDS}"
_KEEP = (
    "UPDATE callboard_task SET state = 'pending', owner = NULL, attempts = ?1, outages = ?2,"
    " next_attempt_at_ns = min(?3, coalesce(pulled_in_ns, ?3)), pulled_in_ns = NULL,"
    " created_at_ns = ?4, expires_at_ns = ?5, last_error = ?6,"
    " dormant = min(?3, coalesce(pulled_in_ns, ?3)) > ?7, alone = 0, crashes = 0 WHERE id = ?8"
)
_BURY = (
    f"INSERT INTO callboard_dead_task (task_id, {_DEAD}, reason, died_at_ns) SELECT id,"
    f" {', '.join({'attempts': '?', 'last_error': '?'}.get(name, name) for name in _DEAD_COLUMNS)}, ?, ?"
    " FROM callboard_task WHERE id = ?"
)
_HAND_BACK = (
    "UPDATE callboard_task SET state = 'pending', owner = NULL,"
    " next_attempt_at_ns = min(next_attempt_at_ns, coalesce(pulled_in_ns, next_attempt_at_ns)),"
    f" pulled_in_ns = NULL WHERE {_IN_IDS} AND state = 'running'"
)
_UNPARK = "UPDATE callboard_task SET parked = 0 WHERE parked = 1 AND group_id = ?"
_SET_ASIDE = (
    "UPDATE callboard_task SET state = 'deferred', dormant = 1, next_attempt_at_ns = ? WHERE id IN ("
    f"SELECT id FROM callboard_task INDEXED BY callboard_task_due WHERE {DUE} AND kind = ?"
    " AND next_attempt_at_ns <= ? AND expires_at_ns > ? AND length(data) > 0"
    " AND (max_attempts IS NULL OR attempts < max_attempts) LIMIT ?) RETURNING id"
)
_SET_ASIDE_AGAIN = (
    "UPDATE callboard_task SET next_attempt_at_ns = ? WHERE id IN (SELECT id FROM callboard_task"
    " WHERE state = 'deferred' AND kind = ? AND next_attempt_at_ns <= ? LIMIT ?) RETURNING id"
)
_SET_THESE_ASIDE = (
    f"UPDATE callboard_task SET state = 'deferred', parked = 0, next_attempt_at_ns = ? WHERE {_IN_IDS}"
)
_TAKE_UP = (
    "UPDATE callboard_task SET state = 'pending', next_attempt_at_ns = min(next_attempt_at_ns, ?1)"
    " WHERE id IN (SELECT id FROM callboard_task WHERE state = 'deferred'"
    " AND kind IN (SELECT value FROM json_each(?2))"
    " AND (next_attempt_at_ns <= ?1 OR id NOT IN (SELECT value FROM json_each(?3))) LIMIT ?4)"
)
_DEFERRED_EXPIRED = f"SELECT {TASK} FROM callboard_task WHERE state = 'deferred' AND expires_at_ns <= ? LIMIT ?"
# Each arm has an index, so that a table of sleeping rows is not read for it.
_KEEP_DUE = (
    "UPDATE callboard_task SET next_attempt_at_ns = next_attempt_at_ns - ?2 WHERE id IN ("
    + " UNION ALL ".join(
        f"SELECT id FROM callboard_task INDEXED BY callboard_task_{index} WHERE {condition}"
        " AND next_attempt_at_ns > ?1 AND next_attempt_at_ns <= ?1 + ?2"
        for index, condition in (
            ("due", DUE),
            ("alone", ALONE),
            ("parked", "parked = 1"),
            ("running", "state = 'running'"),
        )
    )
    + ")"
)
_PRUNE_DEAD = (
    "DELETE FROM callboard_dead_task WHERE id IN"
    " (SELECT id FROM callboard_dead_task WHERE died_at_ns < ? ORDER BY died_at_ns LIMIT ?)"
)

_CHUNK = 500


def _ids(ids: Iterable[int]) -> str:
    return json.dumps(list(ids))


def _names(group_ids: Iterable[bytes]) -> str:
    """Return groups as SQLite's `hex` names them, since JSON has no bytes."""
    return json.dumps([group_id.hex().upper() for group_id in group_ids])


def _is_dormant(new: NewTask) -> bool:
    return new.next_attempt_at_ns - new.created_at_ns > DORMANT_NS


class SqliteTasks(SqlTasks):
    """The steps of tasks' lives on SQLite."""

    def insert(self, session: Session, new: NewTask) -> int | None:
        """Write a row and return its id; `None`, and nothing written, when its identity is live."""
        written = session.rows(_INSERT_IF_NEW, (*new, _is_dormant(new), new.identity, new.identity))
        return written[0][0] if written else None

    def by_identity(self, session: Session, identity: bytes) -> Task:
        """Return the live row that was in the way of `insert`."""
        return Task._make(session.rows(_BY_IDENTITY, (identity,))[0])

    def enqueue_many(
        self, session: Session, new: Sequence[NewTask], recurring: Collection[str], died: list[FinishedTask]
    ) -> list[Enqueued]:
        """Write many tasks in their order; return the answers in the same."""
        answers: dict[int, Enqueued] = {}
        # First, because a host's transaction may have no lock yet, and another's row must not come in between
        # the look at what is there and the insert. It also rules deadlocks out, so the rows keep the caller's
        # order: sorted by identity, each claim found its rows all over the file (0.6 of the drain rate).
        session.run(_TAKE_WRITE_LOCK)
        for start in range(0, len(new), _CHUNK):
            chunk = range(start, min(start + _CHUNK, len(new)))
            marks = ", ".join("?" * len(chunk))
            known = _WITH_IDENTITY.format(columns="identity", test=f"IN ({marks})")
            taken = {row[0] for row in session.rows(known, [new[position].identity for position in chunk] * 2)}
            fresh = []
            for position in chunk:
                if new[position].identity not in taken:
                    taken.add(new[position].identity)
                    fresh.append(position)
            if fresh:
                session.run_many(_INSERT, [(*new[position], _is_dormant(new[position])) for position in fresh])
                # The write lock is held and ids are handed out in order, so the last one tells them all.
                last = session.rows("SELECT last_insert_rowid()")[0][0]
                for offset, position in enumerate(reversed(fresh)):
                    answers[position] = Enqueued(last - offset, EnqueueStatus.INSERTED)
            for position in chunk:
                if position not in answers:
                    answers[position] = self.enqueue(session, new[position], recurring, died)
        return [answers[position] for position in range(len(new))]

    def pull_in(self, session: Session, identity: bytes, not_later_than_ns: int) -> bool:
        """Lower a live row's deadline, or what it is to be after its run (rule 15); `False` if there is none."""
        return session.run(_PULL_IN, (not_later_than_ns, identity)) > 0

    def due(
        self, session: Session, kinds: Sequence[str], node_id: int, now_ns: int, limit: int, *, grouped_only: bool
    ) -> list[Task]:
        """Return due rows of `kinds` as `start` will leave them, earliest deadline first.

        Rows of groups that another node than `node_id` runs are left out.
        """
        arm = f"{_DUE_ARM} AND group_id IS NOT NULL" if grouped_only else _DUE_ARM
        found: list[Task] = []
        for start in range(0, len(kinds), _MOST_ARMS):
            some = kinds[start : start + _MOST_ARMS]
            sql = f"{' UNION ALL '.join([arm] * len(some))} ORDER BY next_attempt_at_ns LIMIT ?"
            params = [value for kind in some for value in (node_id, kind, now_ns, node_id, node_id)]
            found += [Task._make(row) for row in session.rows(sql, [*params, limit])]
        if len(kinds) > _MOST_ARMS:
            found = sorted(found, key=attrgetter("next_attempt_at_ns"))[:limit]
        return found

    def due_beside(
        self, session: Session, kind: str, group_ids: Collection[bytes], node_id: int, now_ns: int, limit: int
    ) -> list[Task]:
        """Return due rows of a kind as `start` will leave them, without those of these groups."""
        params = (node_id, kind, now_ns, LOOK, _names(group_ids), node_id, node_id, limit)
        return [Task._make(row) for row in session.rows(_DUE_BESIDE, params)]

    def parked(self, session: Session, rooms: Mapping[bytes, int], node_id: int, now_ns: int) -> list[Task]:
        """Return the earliest rows that were parked behind their groups', as `start` will leave them."""
        return [
            Task._make(row)
            for group_id, room in rooms.items()
            for row in session.rows(_PARKED, (node_id, group_id, now_ns, node_id, node_id, room))
        ]

    def start(self, session: Session, ids: Sequence[int], now_ns: int, owner: int) -> None:
        """Mark rows as running, each with a new token."""
        session.run(_START, (now_ns, owner, _ids(ids)))

    def park(self, session: Session, ids: Sequence[int]) -> None:
        """Take due rows out of the due index until their group has room."""
        session.run(_PARK, (_ids(ids),))

    def park_more(
        self, session: Session, kind: str, group_ids: Collection[bytes], now_ns: int, limit: int
    ) -> None:
        """Park the rows of these groups that are among the first `limit` due ones of a kind."""
        session.run(_PARK_MORE, (kind, now_ns, limit, _names(group_ids)))

    def still_running(self, session: Session, ids: Sequence[int]) -> dict[int, Held]:
        """Return the state of those rows that are still there and running."""
        return {row[0]: Held(*row[1:]) for row in session.rows(_RUNNING, (_ids(ids),))}

    def settle(self, session: Session, changes: Sequence[tuple[int, _lifecycle.Transition]], now_ns: int) -> None:
        """Write what becomes of a batch of rows, each kind of change in one go."""
        finished = [task_id for task_id, change in changes if isinstance(change, _lifecycle.Finish)]
        if finished:
            session.run(_DELETE, (_ids(finished),))
        kept = [
            (*change, now_ns + DORMANT_NS, task_id)
            for task_id, change in changes
            if isinstance(change, _lifecycle.Keep)
        ]
        if kept:
            session.run_many(_KEEP, kept)
        buried = [(task_id, change) for task_id, change in changes if isinstance(change, _lifecycle.Bury)]
        if buried:
            self.bury(session, buried, now_ns)

    def bury(self, session: Session, burials: Sequence[tuple[int, _lifecycle.Bury]], now_ns: int) -> None:
        """Move rows to the dead-task table, each with its reason."""
        session.run_many(
            _BURY,
            [(died.attempts, died.last_error, died.reason.value, now_ns, task_id) for task_id, died in burials],
        )
        session.run(_DELETE, (_ids(task_id for task_id, _ in burials),))

    def hand_back(self, session: Session, ids: Sequence[int]) -> None:
        """Make claimed rows pending again, as if they had not been claimed."""
        session.run(_HAND_BACK, (_ids(ids),))

    def mark_cancelled(self, session: Session, task_id: int) -> None:
        """Keep a running row's number of requests as `cancelled` and add 1 to its token, unless that was done."""
        session.run(_CANCEL, (task_id,))

    def orphans(self, session: Session) -> list[Orphan]:
        """Return the running rows whose node has no row."""
        return [
            Orphan(owner, bool(mark % _SPARED), mark >= _SPARED, crashes, cancelled, Task._make(row))
            for owner, mark, crashes, cancelled, *row in session.rows(_ORPHANS)
        ]

    def run_again(self, session: Session, task_id: int, *, alone: bool, crashes: int, not_before_ns: int) -> None:
        """Make an orphan pending with a new token, at its deadline or `pulled_in_ns` but not before that time."""
        session.run(_RUN_AGAIN, (alone, crashes, not_before_ns, task_id))

    def unpark_free(self, session: Session) -> None:
        """Give the parked rows of groups that nobody runs back to the due ones."""
        session.run(_UNPARK_FREE)
        session.run(_UNPARK_LOOSE)

    def spare(self, session: Session, task_ids: Sequence[int], node_id: int) -> None:
        """Note of rows that the node runs that it was stopped in good order meanwhile."""
        session.run(_SPARE, (_ids(task_ids), node_id))

    def alone_due(self, session: Session, kinds: Iterable[str], node_id: int, now_ns: int) -> list[Task]:
        """Return the first due row that must run alone, as `start` will leave it."""
        rows = session.rows(_ALONE_DUE, (node_id, now_ns, json.dumps(list(kinds)), node_id, node_id))
        return [Task._make(row) for row in rows]

    def head_rows(self, session: Session, kinds: Collection[str], node_id: int) -> list[Row]:
        """Return the rows of the statement."""
        return session.rows(_HEADS, (node_id, json.dumps(list(kinds))))

    def set_strays_aside(
        self, session: Session, kinds: Iterable[str], now_ns: int, until_ns: int, limit: int
    ) -> dict[str, list[int]]:
        """Defer due rows that must run alone and are of none of `kinds`; return their ids by kind."""
        ids: dict[str, list[int]] = {}
        for kind, task_id in session.rows(_STRAYS_DUE, (json.dumps(list(kinds)), now_ns, limit)):
            ids.setdefault(kind, []).append(task_id)
        self.set_these_aside(session, [task_id for of_kind in ids.values() for task_id in of_kind], until_ns)
        return ids

    def unpark(self, session: Session, group_ids: Iterable[bytes]) -> None:
        """Put parked rows of groups back into the due index."""
        session.run_many(_UNPARK, [(group_id,) for group_id in group_ids])

    def set_aside(self, session: Session, kind: str, now_ns: int, until_ns: int, limit: int) -> list[int]:
        """Defer due rows of a kind that nothing here runs (rule 16); return their ids, at most `limit`."""
        ids = [row[0] for row in session.rows(_SET_ASIDE, (until_ns, kind, now_ns, now_ns, limit))]
        ids += [row[0] for row in session.rows(_SET_ASIDE_AGAIN, (until_ns, kind, now_ns, limit))]
        return ids

    def set_these_aside(self, session: Session, ids: Iterable[int], until_ns: int) -> None:
        """Defer rows whose payload only a newer build understands."""
        session.run(_SET_THESE_ASIDE, (until_ns, _ids(ids)))

    def take_up(
        self, session: Session, kinds: Iterable[str], except_ids: Iterable[int], now_ns: int, limit: int
    ) -> int:
        """Make deferred rows of kinds that run here pending (rule 17), at most `limit`; return how many."""
        return session.run(_TAKE_UP, (now_ns, json.dumps(list(kinds)), _ids(except_ids), limit))

    def deferred_expired(self, session: Session, now_ns: int, limit: int) -> list[Task]:
        """Return deferred rows whose time is up."""
        return [Task._make(row) for row in session.rows(_DEFERRED_EXPIRED, (now_ns, limit))]

    def keep_due(self, session: Session, now_ns: int, set_back_ns: int) -> int:
        """Have rows still due that were before the clock was set back by `set_back_ns`; return how many."""
        return session.run(_KEEP_DUE, (now_ns, set_back_ns))

    def prune_dead(self, session: Session, before_ns: int, limit: int) -> int:
        """Delete dead rows that died before `before_ns`, at most `limit`; return how many."""
        return session.run(_PRUNE_DEAD, (before_ns, limit))
