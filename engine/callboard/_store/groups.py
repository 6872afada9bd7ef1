"""The SQL of the group, member and pending-remove tables, which every database of ours understands.

Rows are the truth about a group. The host's events are written as they come, idempotently; what follows from
the rows (`is_leaving`, `has_pending_leave_request`) is computed by the one statement that ends each change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from callboard._group_state import GroupState, PendingRemove
from callboard._store.interface import Session

_NEXT_VERSION = "version = (callboard_group.version & 4611686018427387903) + 1"
# Before the marks are computed, because it locks the group's row: where others write at once, the statement that
# computes them must begin when nobody else can change what it reads.
_TOUCH = (
    "INSERT INTO callboard_group (group_id, active_at_ns, version) VALUES (?, ?, 1)"
    f" ON CONFLICT (group_id) DO UPDATE SET {_NEXT_VERSION}"
)
_TOUCH_KNOWN = f"UPDATE callboard_group SET {_NEXT_VERSION} WHERE group_id = ?"
_CREATED = (
    "INSERT INTO callboard_group (group_id, own_inbox_id, consent, active_at_ns, version)"
    " VALUES (?1, ?2, ?3, ?4, 1)"
    f" ON CONFLICT (group_id) DO UPDATE SET {_NEXT_VERSION}, own_inbox_id = ?2, active_at_ns ="
    " CASE WHEN callboard_group.active_at_ns > ?4 THEN callboard_group.active_at_ns ELSE ?4 END, consent ="
    " CASE callboard_group.consent WHEN 'unknown' THEN ?3 ELSE callboard_group.consent END"
)
_MEMBER = (
    "INSERT INTO callboard_group_member (group_id, inbox_id, is_super_admin) VALUES (?, ?, FALSE)"
    " ON CONFLICT (group_id, inbox_id) DO NOTHING"
)
_RANK = (
    "INSERT INTO callboard_group_member (group_id, inbox_id, is_super_admin) VALUES (?1, ?2, ?3)"
    " ON CONFLICT (group_id, inbox_id) DO UPDATE SET is_super_admin = ?3"
)
_DEMOTE = "UPDATE callboard_group_member SET is_super_admin = FALSE WHERE group_id = ? AND inbox_id = ?"
_REMOVE_MEMBER = "DELETE FROM callboard_group_member WHERE group_id = ? AND inbox_id = ?"
_LEAVE = (
    "INSERT INTO callboard_pending_remove (group_id, inbox_id, message_id, requested_at_ns) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (group_id, inbox_id) DO NOTHING"
)
_FORGET_LEAVE = "DELETE FROM callboard_pending_remove WHERE group_id = ? AND inbox_id = ?"
_CONSENT = "UPDATE callboard_group SET consent = ? WHERE group_id = ?"
_ACTIVE = "UPDATE callboard_group SET active_at_ns = ?1 WHERE group_id = ?2 AND active_at_ns < ?1"
# The check and the mark are one statement, so a request that arrives meanwhile is never wiped.
_MARK = (
    "UPDATE callboard_group AS g SET"
    " is_leaving = EXISTS (SELECT 1 FROM callboard_pending_remove AS p"
    " WHERE p.group_id = g.group_id AND p.inbox_id = g.own_inbox_id),"
    " has_pending_leave_request ="
    " EXISTS (SELECT 1 FROM callboard_pending_remove AS p"
    " WHERE p.group_id = g.group_id AND p.inbox_id <> g.own_inbox_id)"
    " AND EXISTS (SELECT 1 FROM callboard_group_member AS m"
    " WHERE m.group_id = g.group_id AND m.inbox_id = g.own_inbox_id AND m.is_super_admin)"
    " AND NOT EXISTS (SELECT 1 FROM callboard_pending_remove AS p"
    " WHERE p.group_id = g.group_id AND p.inbox_id = g.own_inbox_id)"
    " WHERE g.group_id = ?"
)
_GROUP = (
    "SELECT group_id, version, own_inbox_id, consent, active_at_ns, is_leaving, has_pending_leave_request"
    " FROM callboard_group WHERE group_id = ?"
)
_VERSION = "SELECT version FROM callboard_group WHERE group_id = ?"
_MEMBERS = "SELECT inbox_id, is_super_admin FROM callboard_group_member WHERE group_id = ?"
_PENDING = (
    "SELECT inbox_id, message_id, requested_at_ns FROM callboard_pending_remove WHERE group_id = ?"
    " ORDER BY requested_at_ns, inbox_id"
)


class SqlGroups:
    """The changes of groups' rows."""

    def created(
        self,
        session: Session,
        group_id: bytes,
        own_inbox_id: str,
        members: Collection[str],
        super_admins: Collection[str],
        consent: str,
        active_at_ns: int,
    ) -> None:
        """Write what the host says of a group that it created or was added to."""
        session.run(_CREATED, (group_id, own_inbox_id, consent, active_at_ns))
        session.run_many(_MEMBER, [(group_id, inbox) for inbox in sorted({own_inbox_id, *members, *super_admins})])
        session.run_many(_RANK, [(group_id, inbox, True) for inbox in sorted(super_admins)])
        session.run(_MARK, (group_id,))

    def membership_changed(
        self,
        session: Session,
        group_id: bytes,
        *,
        removed: Collection[str],
        added: Collection[str],
        promoted: Collection[str],
        demoted: Collection[str],
        active_at_ns: int,
    ) -> None:
        """Write a commit's change of membership; a removed member's leave request is settled by it."""
        session.run(_TOUCH, (group_id, active_at_ns))
        session.run_many(_REMOVE_MEMBER, [(group_id, inbox) for inbox in removed])
        session.run_many(_FORGET_LEAVE, [(group_id, inbox) for inbox in removed])
        session.run_many(_MEMBER, [(group_id, inbox) for inbox in added])
        session.run_many(_RANK, [(group_id, inbox, True) for inbox in promoted])
        session.run_many(_DEMOTE, [(group_id, inbox) for inbox in demoted])
        session.run(_MARK, (group_id,))

    def leave_requested(
        self, session: Session, group_id: bytes, inbox_id: str, message_id: bytes, requested_at_ns: int
    ) -> bool:
        """Write a leave request; `False`, and nothing changed, when the member's request is already there."""
        if not session.run(_LEAVE, (group_id, inbox_id, message_id, requested_at_ns)):
            return False
        session.run(_TOUCH, (group_id, requested_at_ns))
        session.run(_MARK, (group_id,))
        return True

    def leave_settled(self, session: Session, group_id: bytes, inbox_ids: Collection[str]) -> None:
        """Drop leave requests, and the group's mark once none is left that asks for it."""
        session.run(_TOUCH_KNOWN, (group_id,))
        session.run_many(_FORGET_LEAVE, [(group_id, inbox) for inbox in inbox_ids])
        session.run(_MARK, (group_id,))

    def set_consent(self, session: Session, group_id: bytes, consent: str) -> None:
        """Write the user's consent to the group."""
        session.run(_TOUCH, (group_id, 0))
        session.run(_CONSENT, (consent, group_id))
        session.run(_MARK, (group_id,))

    def set_active(self, session: Session, group_id: bytes, at_ns: int) -> None:
        """Write when the group was last active; an earlier time changes nothing."""
        session.run(_TOUCH, (group_id, at_ns))
        session.run(_ACTIVE, (at_ns, group_id))
        session.run(_MARK, (group_id,))

    def version(self, session: Session, group_id: bytes) -> int | None:
        """Return the group row's version, `None` without a row."""
        return next((row[0] for row in session.rows(_VERSION, (group_id,))), None)

    def state(self, session: Session, group_id: bytes) -> GroupState | None:
        """Return the group's rows, `None` without a group row."""
        found = session.rows(_GROUP, (group_id,))
        if not found:
            return None
        identity, number, own_inbox_id, consent, active_at_ns, is_leaving, marked = found[0]
        members = session.rows(_MEMBERS, (group_id,))
        pending = session.rows(_PENDING, (group_id,))
        return GroupState(
            group_id=identity,
            version=number,
            own_inbox_id=own_inbox_id,
            consent=consent,
            active_at_ns=active_at_ns,
            is_leaving=bool(is_leaving),
            has_pending_leave_request=bool(marked),
            members=frozenset(inbox for inbox, _ in members),
            super_admins=frozenset(inbox for inbox, is_super_admin in members if is_super_admin),
            pending_removes=tuple(PendingRemove._make(row) for row in pending),
        )

    def matching(
        self,
        session: Session,
        *,
        pending: bool | None,
        active_since_ns: int | None,
        consent: Sequence[str] | None,
        member: str | None,
        limit: int,
        after: bytes,
    ) -> list[bytes]:
        """Return ids of groups, in their order, that meet every condition given; page with `after`."""
        where, params = ["g.group_id > ?"], [after]
        clauses: list[tuple[str, list[object]]] = []
        has_rows = "EXISTS (SELECT 1 FROM callboard_pending_remove AS p WHERE p.group_id = g.group_id)"
        if pending is not None:
            clauses.append((f"{'' if pending else 'NOT '}(g.has_pending_leave_request OR {has_rows})", []))
        if active_since_ns is not None:
            clauses.append(("g.active_at_ns >= ?", [active_since_ns]))
        if consent is not None:
            among = f"g.consent IN ({', '.join('?' * len(consent))})" if consent else "FALSE"
            clauses.append((among, list(consent)))
        if member is not None:
            of_member = "SELECT m.group_id FROM callboard_group_member AS m WHERE m.inbox_id = ?"
            clauses.append((f"g.group_id IN ({of_member})", [member]))
        where += [text for text, _ in clauses]
        values = [*params, *(value for _, values in clauses for value in values), limit]
        sql = (
            f"SELECT g.group_id FROM callboard_group AS g WHERE {' AND '.join(where)} ORDER BY g.group_id LIMIT ?"
        )
        return [row[0] for row in session.rows(sql, values)]
