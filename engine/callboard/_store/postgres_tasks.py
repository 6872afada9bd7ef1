"""The SQL of the task, dead-task and inbox tables on PostgreSQL: each function is one step, inside a session.

Many rows travel as one array for each column, so that a batch is one statement. Rows that a query chooses are
changed as `id = ANY(ARRAY(...))`: with old statistics the planner may run the query of `id IN (...)` again for
each row, which took a minute for 20,000. Nothing here waits for a row that somebody else has locked, but for the
calls that write one task and commit: a claim, the end of a batch of runs and the merging of the inbox leave such a
row for later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from callboard import _lifecycle
from callboard._store.interface import Row, Session
from callboard._store.policy import Orphan
from callboard._store.postgres_inbox import Inbox
from callboard._store.sql_tasks import ALONE, DUE, NEXT, TASK, heads_statement
from callboard._store.task_table import LOOK, Held
from callboard._task import DeadTask, Enqueued, EnqueueStatus, FinishedTask, NewTask, Task

_NEXT_TOKEN = NEXT.format(name="token")
_CLAIMED = ", ".join(
    {"state": "'running'", "token": _NEXT_TOKEN, "owner": "?1::bigint"}.get(name, name) for name in Task._fields
)
_NEW = ", ".join(NewTask._fields)
_DEAD_COLUMNS = [name for name in DeadTask._fields if name not in ("id", "task_id", "reason", "died_at_ns")]
_IN_IDS = "id = ANY(?::bigint[])"

_TYPES = {
    "kind": "text",
    "group_id": "bytea",
    "identity": "bytea",
    "data": "bytea",
    "data_hash": "bytea",
    "backoff_factor": "double precision",
    "origin": "text",
}
_COLUMN_ARRAYS = ", ".join(f"?::{_TYPES.get(name, 'bigint')}[]" for name in NewTask._fields)
# In the order of the identities, so that two of them cannot wait for each other; the ids are in the caller's.
_INSERT_MANY = (
    f"INSERT INTO callboard_task (id, {_NEW}) SELECT * FROM (SELECT"
    f" nextval(pg_get_serial_sequence('callboard_task', 'id')), {_NEW} FROM unnest({_COLUMN_ARRAYS})"
    f" WITH ORDINALITY AS new({_NEW}, place) ORDER BY place) AS numbered ORDER BY identity"
    " ON CONFLICT (identity) DO NOTHING RETURNING identity, id"
)
_INSERT = (
    f"INSERT INTO callboard_task ({_NEW}) VALUES ({', '.join('?' * len(NewTask._fields))})"
    " ON CONFLICT (identity) DO NOTHING RETURNING id"
)
DIRECT_INSERT = (
    f"INSERT INTO callboard_task ({_NEW}) VALUES ({', '.join(f'${n + 1}' for n in range(len(NewTask._fields)))})"
    " ON CONFLICT (identity) DO NOTHING RETURNING id"
)
"""The same as libpq takes it."""
_BY_IDENTITY = f"SELECT {TASK} FROM callboard_task WHERE identity = ? FOR UPDATE"
_PULL_IN = (
    "UPDATE callboard_task SET next_attempt_at_ns ="
    " CASE state WHEN 'running' THEN next_attempt_at_ns ELSE least(next_attempt_at_ns, ?1::bigint) END,"
    " pulled_in_ns = CASE state WHEN 'running' THEN least(pulled_in_ns, ?1::bigint) ELSE pulled_in_ns END"
    " WHERE identity = ?2"
)

# `+ 0` and `|| ''` keep the planner from the partial indexes: to find 512 ids it took the one of due rows and read
# it whole, or that of running rows and compared each of them with each id.
_STILL_DUE = DUE.replace("parked", "parked + 0").replace("alone", "alone + 0")
_STILL_PARKED = "parked + 0 = 1"
_STILL_ALONE = ALONE.replace("alone", "alone + 0")
_STILL_RUNNING = "state || '' = 'running'"
# The look at others' running rows is only good under the group's lock, and in a statement that begins after it.
# With LIMIT, because the planner would make a join of it: if no rows ran when the table was analyzed, that reads
# all running rows for each due one (0.05 of the drain rate beside a million sleeping rows). Twice, because an
# index finds what is smaller and what is larger; for what is different it reads every row that runs here.
_RUN_BY = (
    "(SELECT TRUE FROM callboard_task AS other WHERE other.state = 'running'"
    " AND other.group_id = {group_id} AND other.owner {test} ?1 LIMIT 1) IS NULL"
)
_NOT_RUN_BY_OTHERS = f"{_RUN_BY.replace('{test}', '<')} AND {_RUN_BY.replace('{test}', '>')}"
_NOT_ELSEWHERE = _NOT_RUN_BY_OTHERS.format(group_id="callboard_task.group_id")
_AMONG_OTHERS_S = 30.0
"""How long `due` steps over others' groups, once it has met one: to look for them is half of its search."""
_DUE_CANDIDATES = (
    "SELECT id, group_id FROM unnest(?2::text[]) AS wanted(kind) CROSS JOIN LATERAL"
    " (SELECT id, group_id, next_attempt_at_ns FROM callboard_task"
    f" WHERE {DUE} AND callboard_task.kind = wanted.kind AND next_attempt_at_ns <= ?3"
    "{conditions} ORDER BY next_attempt_at_ns, id LIMIT {limit}) AS first"
    " ORDER BY next_attempt_at_ns, id LIMIT {limit}"
)
_BESIDE_CANDIDATES = (
    "SELECT id, group_id FROM (SELECT id, group_id, next_attempt_at_ns FROM callboard_task"
    f" WHERE {DUE} AND kind = ?2 AND next_attempt_at_ns <= ?3 ORDER BY next_attempt_at_ns, id LIMIT {LOOK})"
    " AS callboard_task WHERE (group_id IS NULL OR group_id <> ALL(?4::bytea[]))"
    f" AND {_NOT_ELSEWHERE} ORDER BY next_attempt_at_ns, id LIMIT {{limit}}"
)
_CLAIM_SPACE = 0x63616C6C
"""The first key of the advisory locks of groups, `call` in ASCII; the second is the group's hash.

Engines in two schemas of a database share it, and at most wait for each other's claims.
"""
# Around the whole search, or groups would be locked of which nothing is taken; and in one statement with it, for
# each is a way to the server and back.
_WITH_LOCK = (
    "SELECT id, group_id, group_id IS NULL OR"
    f" pg_try_advisory_xact_lock({_CLAIM_SPACE}, hashtext(encode(group_id, 'hex'))) FROM ({{candidates}}) AS found"
)
_TAKE = (
    "WITH free(group_id) AS MATERIALIZED (SELECT group_id FROM unnest(?3::bytea[]) AS locked(group_id)"
    f" WHERE {_NOT_RUN_BY_OTHERS.format(group_id='locked.group_id')})"
    f" SELECT {_CLAIMED} FROM callboard_task WHERE id = ANY(?2::bigint[])"
    " AND (group_id IS NULL OR group_id IN (SELECT group_id FROM free))"
    " AND next_attempt_at_ns <= ?4 AND {condition} ORDER BY next_attempt_at_ns, id FOR UPDATE SKIP LOCKED"
)
_PARKED_CANDIDATES = (
    "SELECT first.id, wanted.group_id FROM unnest(?::bytea[], ?::bigint[]) AS wanted(group_id, room)"
    " CROSS JOIN LATERAL (SELECT id FROM callboard_task WHERE parked = 1"
    " AND callboard_task.group_id = wanted.group_id AND next_attempt_at_ns <= ?"
    " ORDER BY next_attempt_at_ns, id LIMIT wanted.room) AS first"
)
_ALONE_CANDIDATES = (
    f"SELECT id, group_id FROM callboard_task WHERE {ALONE} AND next_attempt_at_ns <= ?2"
    f" AND kind = ANY(?3::text[]) AND {_NOT_ELSEWHERE} ORDER BY next_attempt_at_ns, id LIMIT 1"
)
_STRAYS = f"{ALONE} AND kind <> ALL(?::text[])"
_HEADS = heads_statement(
    f"{ALONE} AND kind = ANY(?2::text[]) AND {_NOT_ELSEWHERE}",
    _STRAYS.replace("?", "?2"),
    "(SELECT 1 FROM callboard_inbox LIMIT 1)",
)
_STRAYS_DUE = (
    f"SELECT kind, id FROM callboard_task WHERE {_STRAYS} AND next_attempt_at_ns <= ?"
    " ORDER BY next_attempt_at_ns, id LIMIT ? FOR UPDATE SKIP LOCKED"
)
_START = (
    f"UPDATE callboard_task SET state = 'running', parked = 0, token = {_NEXT_TOKEN}, last_attempted_at_ns = ?,"
    f" owner = ? WHERE {_IN_IDS}"
)
_PARK = f"UPDATE callboard_task SET parked = 1 WHERE {_IN_IDS}"
_PARK_MORE = (
    "UPDATE callboard_task SET parked = 1 WHERE id = ANY(ARRAY(SELECT id FROM callboard_task WHERE id = ANY(ARRAY("
    f"SELECT id FROM (SELECT id, group_id FROM callboard_task WHERE {DUE} AND kind = ? AND next_attempt_at_ns <= ?"
    " ORDER BY next_attempt_at_ns, id LIMIT ?) AS first WHERE group_id = ANY(?::bytea[])))"
    f" AND {_STILL_DUE} FOR UPDATE SKIP LOCKED))"
)
_RUNNING = f"SELECT id, token, requests, cancelled FROM callboard_task WHERE {_IN_IDS} AND {_STILL_RUNNING}"
_HOLD = (
    f"SELECT id, token, requests, cancelled, state = 'running' FROM callboard_task WHERE {_IN_IDS}"
    " ORDER BY id FOR UPDATE"
)
_THERE = f"SELECT id FROM callboard_task WHERE {_IN_IDS}"
_CANCEL = (
    "UPDATE callboard_task SET cancelled = requests, token = least(token, 9223372036854775806) + 1"
    " WHERE id = ? AND cancelled = 0"
)
_OF_NOBODY = (
    "FROM callboard_task WHERE state = 'running'"
    " AND (owner IS NULL OR NOT EXISTS (SELECT 1 FROM callboard_node WHERE callboard_node.id = owner))"
)
_ORPHANS = f"SELECT owner, alone, crashes, cancelled, {TASK} {_OF_NOBODY} FOR UPDATE SKIP LOCKED"
_HAS_ORPHANS = f"SELECT EXISTS (SELECT 1 {_OF_NOBODY})"
_SPARED = 2
"""Added to `alone`: the engine was stopped while the task ran on."""
_SPARE = f"UPDATE callboard_task SET alone = alone + {_SPARED} WHERE {_IN_IDS} AND {_STILL_RUNNING} AND owner = ?"
_RUN_AGAIN = (
    f"UPDATE callboard_task SET state = 'pending', owner = NULL, token = {_NEXT_TOKEN}, alone = ?1, crashes = ?2,"
    " next_attempt_at_ns = greatest(?3::bigint, least(next_attempt_at_ns, pulled_in_ns)), pulled_in_ns = NULL"
    " WHERE id = ?4"
)
_UNPARK_FREE = (
    "UPDATE callboard_task SET parked = 0 WHERE id = ANY(ARRAY(SELECT id FROM callboard_task WHERE parked = 1"
    " AND (group_id IS NULL OR group_id IN (WITH RECURSIVE behind(group_id) AS"
    " ((SELECT group_id FROM callboard_task WHERE parked = 1 AND group_id IS NOT NULL ORDER BY group_id LIMIT 1)"
    " UNION ALL SELECT (SELECT group_id FROM callboard_task WHERE parked = 1 AND group_id > behind.group_id"
    " ORDER BY group_id LIMIT 1) FROM behind WHERE behind.group_id IS NOT NULL)"
    " SELECT group_id FROM behind WHERE group_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM callboard_task AS other"
    " WHERE other.state = 'running' AND other.group_id = behind.group_id))) FOR UPDATE SKIP LOCKED))"
)
_DELETE = f"DELETE FROM callboard_task WHERE {_IN_IDS}"
_KEEP = (
    "UPDATE callboard_task SET state = 'pending', owner = NULL, attempts = new.attempts, outages = new.outages,"
    " next_attempt_at_ns = least(new.at_ns, pulled_in_ns), pulled_in_ns = NULL, created_at_ns = new.created_ns,"
    " expires_at_ns = new.expires_ns, last_error = new.error, alone = 0, crashes = 0"
    " FROM unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[], ?::text[], ?::bigint[])"
    " AS new(attempts, outages, at_ns, created_ns, expires_ns, error, id) WHERE callboard_task.id = new.id"
)
_BURY = (
    f"INSERT INTO callboard_dead_task (task_id, {', '.join(_DEAD_COLUMNS)}, reason, died_at_ns) SELECT task.id, "
    + ", ".join(
        {"attempts": "died.attempts", "last_error": "died.error"}.get(name, f"task.{name}")
        for name in _DEAD_COLUMNS
    )
    + ", died.reason, ? FROM unnest(?::bigint[], ?::text[], ?::text[], ?::bigint[])"
    " WITH ORDINALITY AS died(attempts, error, reason, id, place)"
    " JOIN callboard_task AS task ON task.id = died.id ORDER BY died.place"
)
_HAND_BACK = (
    "UPDATE callboard_task SET state = 'pending', owner = NULL,"
    " next_attempt_at_ns = least(next_attempt_at_ns, pulled_in_ns), pulled_in_ns = NULL"
    f" WHERE {_IN_IDS} AND {_STILL_RUNNING}"
)
_UNPARK = "UPDATE callboard_task SET parked = 0 WHERE parked = 1 AND group_id = ANY(?::bytea[])"
_SET_ASIDE = (
    "UPDATE callboard_task SET state = 'deferred', next_attempt_at_ns = ? WHERE id = ANY(ARRAY("
    f"SELECT id FROM callboard_task WHERE {DUE} AND kind = ?"
    " AND next_attempt_at_ns <= ? AND expires_at_ns > ? AND length(data) > 0"
    " AND (max_attempts IS NULL OR attempts < max_attempts)"
    " ORDER BY next_attempt_at_ns, id LIMIT ? FOR UPDATE SKIP LOCKED)) RETURNING id"
)
_SET_ASIDE_AGAIN = (
    "UPDATE callboard_task SET next_attempt_at_ns = ? WHERE id = ANY(ARRAY(SELECT id FROM callboard_task"
    " WHERE state = 'deferred' AND kind = ? AND next_attempt_at_ns <= ? ORDER BY next_attempt_at_ns, id LIMIT ?"
    " FOR UPDATE SKIP LOCKED)) RETURNING id"
)
_SET_THESE_ASIDE = (
    f"UPDATE callboard_task SET state = 'deferred', parked = 0, next_attempt_at_ns = ? WHERE {_IN_IDS}"
)
_TAKE_UP = (
    "UPDATE callboard_task SET state = 'pending', next_attempt_at_ns = least(next_attempt_at_ns, ?1)"
    " WHERE id = ANY(ARRAY(SELECT id FROM callboard_task WHERE state = 'deferred' AND kind = ANY(?2::text[])"
    " AND (next_attempt_at_ns <= ?1 OR id <> ALL(?3::bigint[])) LIMIT ?4 FOR UPDATE SKIP LOCKED))"
)
_DEFERRED_EXPIRED = (
    f"SELECT {TASK} FROM callboard_task WHERE state = 'deferred' AND expires_at_ns <= ? LIMIT ?"
    " FOR UPDATE SKIP LOCKED"
)
_KEEP_DUE = (
    "UPDATE callboard_task SET next_attempt_at_ns = next_attempt_at_ns - ?2 WHERE state IN ('pending', 'running')"
    " AND next_attempt_at_ns > ?1 AND next_attempt_at_ns <= ?1 + ?2"
)
# What an insert does by itself, for the changes of a row that may be another node's business at once.
_TELL = (
    "SELECT pg_notify('callboard.' || relnamespace, relname) FROM pg_class WHERE oid = 'callboard_task'::regclass"
)
_PRUNE_DEAD = (
    "DELETE FROM callboard_dead_task WHERE id = ANY(ARRAY(SELECT id FROM callboard_dead_task"
    " WHERE died_at_ns < ? ORDER BY died_at_ns LIMIT ? FOR UPDATE SKIP LOCKED))"
)


def _text(value: str | None) -> str | None:
    """Return a text without the one character that PostgreSQL has no place for."""
    return value.replace("\0", "\\x00") if value else value


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _bigints(numbers: Iterable[int]) -> str:
    """Return numbers as PostgreSQL writes an array of them.

    From a list, psycopg makes the array number by number in Python, which takes twice as long with the server's
    share in it, and four of these arrays go with each pass.
    """
    return f"{{{','.join(map(str, numbers))}}}"


def _text_limit(limit: int) -> int:
    """Return the power of two that is no less, to stand in a statement's text.

    A plan that is kept for any limit sorts all due rows, and with each limit in the text hardly one would be kept.
    """
    return 1 << max(limit - 1, 0).bit_length()


def _lock(session: Session, candidates: str, params: Sequence[object]) -> list[Row]:
    """Return id and group of rows that may be claimed, and whether the group is now ours to claim in."""
    return session.rows(_WITH_LOCK.format(candidates=candidates), params)


class PostgresTasks(Inbox):
    """The steps of tasks' lives on PostgreSQL."""

    def __init__(self, look_soon: Callable[[], None]) -> None:
        """Call `look_soon` when due rows were left, and no notification will tell when they can be had."""
        self._look_soon = look_soon
        self._among_others_until_s = 0.0

    def insert(self, session: Session, new: NewTask) -> int | None:
        """Write a row and return its id; `None`, and nothing written, when its identity is live."""
        written = session.rows(_INSERT, new)
        return written[0][0] if written else None

    def by_identity(self, session: Session, identity: bytes) -> Task | None:
        """Lock the live row that was in the way of `insert`, and return it; `None` when it has ended since."""
        return next((Task._make(row) for row in session.rows(_BY_IDENTITY, (identity,))), None)

    def insert_many(self, session: Session, new: Sequence[NewTask]) -> dict[bytes, int]:
        """Write rows whose identities are not live; return the ids of those that were."""
        return dict(session.rows(_INSERT_MANY, _columns(new, len(NewTask._fields))))

    def enqueue_many(
        self, session: Session, new: Sequence[NewTask], recurring: Collection[str], died: list[FinishedTask]
    ) -> list[Enqueued]:
        """Write many tasks; return the answers in the order in which they were given."""
        if not new:
            return []
        first: dict[bytes, int] = {}
        for place, task in enumerate(new):
            first.setdefault(task.identity, place)
        ids = self.insert_many(session, [new[place] for place in first.values()])
        answers: dict[int, Enqueued] = {
            place: Enqueued(ids[identity], EnqueueStatus.INSERTED)
            for identity, place in first.items()
            if identity in ids
        }
        left = [place for place in range(len(new)) if place not in answers]
        for place in sorted(left, key=lambda place: new[place].identity):
            answers[place] = self.enqueue(session, new[place], recurring, died)
        return [answers[place] for place in range(len(new))]

    def pull_in(self, session: Session, identity: bytes, not_later_than_ns: int) -> bool:
        """Lower a live row's deadline, or what it is to be after its run (rule 15); `False` if there is none."""
        found = session.run(_PULL_IN, (not_later_than_ns, identity)) > 0
        if found:
            session.rows(_TELL)
        return found

    def due(
        self, session: Session, kinds: Sequence[str], node_id: int, now_ns: int, limit: int, *, grouped_only: bool
    ) -> list[Task]:
        """Lock due rows of `kinds` and their groups, and return them as `start` will leave them."""
        conditions = " AND group_id IS NOT NULL" if grouped_only else ""
        if time.monotonic() >= self._among_others_until_s:
            found, tasks = self._due(session, conditions, kinds, node_id, now_ns, limit)
            if len(tasks) < len(found):
                self._among_others_until_s = time.monotonic() + _AMONG_OTHERS_S
            if tasks or not found:
                return tasks
        found, tasks = self._due(session, f"{conditions} AND {_NOT_ELSEWHERE}", kinds, node_id, now_ns, limit)
        if not found:  # in spite of the heads: another node is at work in their groups
            self._look_soon()
        return tasks

    def _due(
        self, session: Session, conditions: str, kinds: Sequence[str], node_id: int, now_ns: int, limit: int
    ) -> tuple[list[Row], list[Task]]:
        sql = _DUE_CANDIDATES.format(conditions=conditions, limit=_text_limit(limit))
        found = _lock(session, sql, (node_id, list(kinds), now_ns))[:limit]
        return found, self._take(session, found, _STILL_DUE, node_id, now_ns)

    def due_beside(
        self, session: Session, kind: str, group_ids: Collection[bytes], node_id: int, now_ns: int, limit: int
    ) -> list[Task]:
        """Lock due rows of a kind and their groups, but for these, and return them as `start` will leave them."""
        sql = _BESIDE_CANDIDATES.format(limit=_text_limit(limit))
        found = _lock(session, sql, (node_id, kind, now_ns, list(group_ids)))[:limit]
        if not found:  # another node may be at work in their groups
            self._look_soon()
        return self._take(session, found, _STILL_DUE, node_id, now_ns)

    def parked(self, session: Session, rooms: Mapping[bytes, int], node_id: int, now_ns: int) -> list[Task]:
        """Return the earliest rows that were parked behind their groups', as `start` will leave them."""
        found = _lock(session, _PARKED_CANDIDATES, (list(rooms), list(rooms.values()), now_ns))
        return self._take(session, found, _STILL_PARKED, node_id, now_ns)

    def _take(
        self,
        session: Session,
        found: Sequence[Row],
        condition: str,
        node_id: int,
        now_ns: int,
    ) -> list[Task]:
        """Lock rows that meet `condition` still, unless another node is at work on them or in their groups.

        Whoever claims in a group holds the group's lock until its claim is committed, and so is seen by the next.

        Args:
            session: in whose transaction.
            found: what `_lock` returned.
            condition: what makes a row fit.
            node_id: who claims.
            now_ns: rows of later deadlines are left.
        """
        if not found:
            return []
        ids = [task_id for task_id, _, is_ours in found if is_ours]
        groups = list({group_id for _, group_id, is_ours in found if is_ours and group_id is not None})
        rows = session.rows(_TAKE.format(condition=condition), (node_id, _bigints(ids), groups, now_ns))
        if len(rows) < len(found):
            self._look_soon()
        return [Task._make(row) for row in rows]

    def start(self, session: Session, ids: Sequence[int], now_ns: int, owner: int) -> None:
        """Mark rows as running, each with a new token."""
        session.run(_START, (now_ns, owner, _bigints(ids)))

    def park(self, session: Session, ids: Sequence[int]) -> None:
        """Take due rows out of the due index until their group has room."""
        session.run(_PARK, (_bigints(ids),))

    def park_more(
        self, session: Session, kind: str, group_ids: Collection[bytes], now_ns: int, limit: int
    ) -> None:
        """Park the rows of these groups that are among the first `limit` due ones of a kind."""
        session.run(_PARK_MORE, (kind, now_ns, limit, list(group_ids)))

    def still_running(self, session: Session, ids: Sequence[int]) -> dict[int, Held]:
        """Return the state of those rows that are still there and running."""
        return {row[0]: Held(*row[1:]) for row in session.rows(_RUNNING, (list(ids),))}

    def hold(self, session: Session, ids: Sequence[int], *, wait: bool) -> dict[int, Held | None]:
        """Lock rows; return those that run, and `None` for those that somebody else has locked."""
        rows = session.rows(_HOLD if wait else f"{_HOLD} SKIP LOCKED", (_bigints(ids),))
        held: dict[int, Held | None] = {row[0]: Held(*row[1:4]) for row in rows if row[4]}
        if len(rows) < len(ids) and not wait:
            missing = set(ids).difference(row[0] for row in rows)
            held |= dict.fromkeys(row[0] for row in session.rows(_THERE, (list(missing),)))
        return held

    def settle(self, session: Session, changes: Sequence[tuple[int, _lifecycle.Transition]], now_ns: int) -> None:
        """Write what becomes of a batch of rows, each kind of change in one go."""
        finished = [task_id for task_id, change in changes if isinstance(change, _lifecycle.Finish)]
        if finished:
            session.run(_DELETE, (_bigints(finished),))
        kept = [
            (*change._replace(last_error=_text(change.last_error)), task_id)
            for task_id, change in changes
            if isinstance(change, _lifecycle.Keep)
        ]
        if kept:
            session.run(_KEEP, _columns(kept, len(_lifecycle.Keep._fields) + 1))
        buried = [(task_id, change) for task_id, change in changes if isinstance(change, _lifecycle.Bury)]
        if buried:
            self.bury(session, buried, now_ns)

    def bury(self, session: Session, burials: Sequence[tuple[int, _lifecycle.Bury]], now_ns: int) -> None:
        """Move rows to the dead-task table, each with its reason."""
        rows = [(died.attempts, _text(died.last_error), died.reason.value, task_id) for task_id, died in burials]
        session.run(_BURY, (now_ns, *_columns(rows, 4)))
        session.run(_DELETE, ([task_id for task_id, _ in burials],))

    def hand_back(self, session: Session, ids: Sequence[int]) -> None:
        """Make claimed rows pending again, as if they had not been claimed."""
        session.run(_HAND_BACK, (list(ids),))
        session.rows(_TELL)

    def mark_cancelled(self, session: Session, task_id: int) -> None:
        """Keep a running row's number of requests as `cancelled` and add 1 to its token, unless that was done."""
        session.run(_CANCEL, (task_id,))
        session.rows(_TELL)

    def orphans(self, session: Session) -> list[Orphan]:
        """Lock the running rows whose node has no row, and return them."""
        return [
            Orphan(owner, bool(mark % _SPARED), mark >= _SPARED, crashes, cancelled, Task._make(row))
            for owner, mark, crashes, cancelled, *row in session.rows(_ORPHANS)
        ]

    def has_orphans(self, session: Session) -> bool:
        """Return whether somebody else has locked one that `rescue` would have taken."""
        return bool(session.rows(_HAS_ORPHANS)[0][0])

    def run_again(self, session: Session, task_id: int, *, alone: bool, crashes: int, not_before_ns: int) -> None:
        """Make an orphan pending with a new token, at its deadline or `pulled_in_ns` but not before that time."""
        session.run(_RUN_AGAIN, (int(alone), crashes, not_before_ns, task_id))

    def unpark_free(self, session: Session) -> None:
        """Give the parked rows of groups that nobody runs back to the due ones."""
        session.run(_UNPARK_FREE)

    def spare(self, session: Session, task_ids: Sequence[int], node_id: int) -> None:
        """Note of rows that the node runs that it was stopped in good order meanwhile."""
        session.run(_SPARE, (list(task_ids), node_id))

    def alone_due(self, session: Session, kinds: Iterable[str], node_id: int, now_ns: int) -> list[Task]:
        """Return the first due row that must run alone, as `start` will leave it."""
        found = _lock(session, _ALONE_CANDIDATES, (node_id, now_ns, list(kinds)))
        return self._take(session, found, _STILL_ALONE, node_id, now_ns)

    def head_rows(self, session: Session, kinds: Collection[str], node_id: int) -> list[Row]:
        """Return the rows of the statement."""
        return session.rows(_HEADS, (node_id, list(kinds)))

    def set_strays_aside(
        self, session: Session, kinds: Iterable[str], now_ns: int, until_ns: int, limit: int
    ) -> dict[str, list[int]]:
        """Defer due rows that must run alone and are of none of `kinds`; return their ids by kind."""
        ids: dict[str, list[int]] = {}
        for kind, task_id in session.rows(_STRAYS_DUE, (list(kinds), now_ns, limit)):
            ids.setdefault(kind, []).append(task_id)
        self.set_these_aside(session, [task_id for of_kind in ids.values() for task_id in of_kind], until_ns)
        return ids

    def unpark(self, session: Session, group_ids: Iterable[bytes]) -> None:
        """Put parked rows of groups back into the due index."""
        session.run(_UNPARK, (list(group_ids),))

    def set_aside(self, session: Session, kind: str, now_ns: int, until_ns: int, limit: int) -> list[int]:
        """Defer due rows of a kind that nothing here runs (rule 16); return their ids, at most `limit`."""
        ids = [row[0] for row in session.rows(_SET_ASIDE, (until_ns, kind, now_ns, now_ns, limit))]
        ids += [row[0] for row in session.rows(_SET_ASIDE_AGAIN, (until_ns, kind, now_ns, limit))]
        if ids:
            session.rows(_TELL)
        return ids

    def set_these_aside(self, session: Session, ids: Iterable[int], until_ns: int) -> None:
        """Defer rows whose payload only a newer build understands."""
        session.run(_SET_THESE_ASIDE, (until_ns, list(ids)))
        session.rows(_TELL)

    def take_up(
        self, session: Session, kinds: Iterable[str], except_ids: Iterable[int], now_ns: int, limit: int
    ) -> int:
        """Make deferred rows of kinds that run here pending (rule 17), at most `limit`; return how many."""
        return session.run(_TAKE_UP, (now_ns, list(kinds), list(except_ids), limit))

    def deferred_expired(self, session: Session, now_ns: int, limit: int) -> list[Task]:
        """Return deferred rows whose time is up."""
        return [Task._make(row) for row in session.rows(_DEFERRED_EXPIRED, (now_ns, limit))]

    def keep_due(self, session: Session, now_ns: int, set_back_ns: int) -> int:
        """Have rows still due that were before the clock was set back by `set_back_ns`; return how many."""
        return session.run(_KEEP_DUE, (now_ns, set_back_ns))

    def prune_dead(self, session: Session, before_ns: int, limit: int) -> int:
        """Delete dead rows that died before `before_ns`, at most `limit`; return how many."""
        return session.run(_PRUNE_DEAD, (before_ns, limit))
