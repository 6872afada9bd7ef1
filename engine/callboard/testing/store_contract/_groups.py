"""The contract's tests of what the host says of groups: rows that are idempotent, and marks that follow them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from callboard.stores import GroupState, GroupTable, PendingRemove
from callboard.testing.store_contract._steps import NOW_NS, ContractTests, Steps, at_once

GROUP = b"\0g\xff"
NOBODY: dict[str, Collection[str]] = {"removed": (), "added": (), "promoted": (), "demoted": ()}


class Groups:
    """A store's groups without their sessions."""

    def __init__(self, steps: Steps) -> None:
        """Speak of `GROUP`."""
        self._steps = steps
        self._groups: GroupTable = steps.store.groups

    def created(self, own: str = "me", members: Sequence[str] = (), admins: Sequence[str] = ()) -> None:
        """Say that the group was created."""
        self._steps.do(self._groups.created, GROUP, own, members, admins, "allowed", NOW_NS)

    def changed(self, at_ns: int = NOW_NS, **who: Collection[str]) -> None:
        """Say that a commit changed the membership."""
        self._steps.do(self._groups.membership_changed, GROUP, **{**NOBODY, **who}, active_at_ns=at_ns)

    def leaves(self, inbox_id: str, message_id: bytes = b"\1", at_ns: int = NOW_NS) -> bool:
        """Say that a member asked to be removed."""
        known: bool = self._steps.do(self._groups.leave_requested, GROUP, inbox_id, message_id, at_ns)
        return known

    def settled(self, *inbox_ids: str) -> None:
        """Say that requests are settled."""
        self._steps.do(self._groups.leave_settled, GROUP, inbox_ids)

    def people(self) -> tuple[set[str], set[str]]:
        """Return the members and the super-admins."""
        state = self.state()
        return set(state.members), set(state.super_admins)

    def state(self) -> GroupState:
        """Return what the rows say."""
        with self._steps.store.reading() as session:
            state = self._groups.state(session, GROUP)
            version = self._groups.version(session, GROUP)
        assert state is not None
        assert state.version == version
        return state

    def matching(self, **conditions: Any) -> list[bytes]:
        """Return the ids of groups."""
        given = {
            "pending": None,
            "active_since_ns": None,
            "consent": None,
            "member": None,
            "limit": 99,
            "after": b"",
        }
        with self._steps.store.reading() as session:
            return self._groups.matching(session, **{**given, **conditions})


class GroupsTests(ContractTests):
    """Groups, members, leave requests."""

    def test_nothing_is_known_of_a_group_that_nobody_told_of(self, steps: Steps) -> None:
        with steps.store.reading() as session:
            assert steps.store.groups.state(session, GROUP) is None
            assert steps.store.groups.version(session, GROUP) is None

    def test_a_created_group_is_as_the_host_says(self, steps: Steps) -> None:
        groups = Groups(steps)
        groups.created("me", ["ada"], ["ben"])

        state = groups.state()
        assert state == GroupState(
            group_id=GROUP,
            version=state.version,
            own_inbox_id="me",
            consent="allowed",
            active_at_ns=NOW_NS,
            is_leaving=False,
            has_pending_leave_request=False,
            members=frozenset({"me", "ada", "ben"}),
            super_admins=frozenset({"ben"}),
            pending_removes=(),
        )
        assert isinstance(state.is_leaving, bool)

    def test_created_again_adds_what_is_new_and_takes_nothing_away(self, steps: Steps) -> None:
        groups = Groups(steps)
        steps.do(steps.store.groups.set_consent, GROUP, "denied")
        groups.created("me", ["ada"], ["ada"])
        groups.created("me", ["ben"])

        assert groups.people() == ({"me", "ada", "ben"}, {"ada"})
        assert groups.state().consent == "denied", "what the user said before stands"

    def test_a_commit_changes_members_and_super_admins(self, steps: Steps) -> None:
        groups = Groups(steps)
        groups.changed(added=["ada", "ben"], promoted=["ben", "cem"])
        assert groups.people() == ({"ada", "ben", "cem"}, {"ben", "cem"})

        groups.changed(removed=["ben"], demoted=["cem"])
        assert groups.people() == ({"ada", "cem"}, set())

        groups.changed(added=["ben", "ada"])
        assert groups.people() == ({"ada", "ben", "cem"}, set())

    def test_the_version_grows_with_each_change_and_only_then(self, steps: Steps) -> None:
        groups = Groups(steps)
        table = steps.store.groups
        versions = []
        for change in (
            groups.created,
            lambda: groups.changed(added=["ada"]),
            lambda: groups.leaves("ada"),
            lambda: groups.settled("ada"),
            lambda: steps.do(table.set_consent, GROUP, "denied"),
            lambda: steps.do(table.set_active, GROUP, NOW_NS + 1),
        ):
            change()
            versions.append(groups.state().version)
        assert sorted(set(versions)) == versions

        assert groups.leaves("ada")
        before = groups.state()
        assert not groups.leaves("ada", b"\2", NOW_NS + 1)
        assert groups.state() == before

    def test_a_group_was_active_when_it_was_last_said(self, steps: Steps) -> None:
        groups = Groups(steps)
        steps.do(steps.store.groups.set_active, GROUP, NOW_NS)
        steps.do(steps.store.groups.set_active, GROUP, NOW_NS - 1)
        assert (groups.state().active_at_ns, groups.state().consent) == (NOW_NS, "unknown")
        groups.created()
        assert groups.state().active_at_ns == NOW_NS

    def test_leave_requests_are_kept_in_the_order_of_their_times(self, steps: Steps) -> None:
        groups = Groups(steps)
        assert groups.leaves("ben", b"\0\2", NOW_NS + 2)
        assert groups.leaves("ada", b"\0\1", NOW_NS + 1)
        assert groups.leaves("cem", b"\0\3", NOW_NS + 2)

        assert groups.state().pending_removes == (
            PendingRemove("ada", b"\0\1", NOW_NS + 1),
            PendingRemove("ben", b"\0\2", NOW_NS + 2),
            PendingRemove("cem", b"\0\3", NOW_NS + 2),
        )
        groups.settled("ben", "nobody")
        groups.changed(removed=["cem"])
        assert [request.inbox_id for request in groups.state().pending_removes] == ["ada"]

    def test_the_marks_follow_from_the_rows_whatever_the_order(self, steps: Steps) -> None:
        groups = Groups(steps)

        def marks() -> tuple[bool, bool]:
            return groups.state().is_leaving, groups.state().has_pending_leave_request

        groups.leaves("ada")
        assert marks() == (False, False)
        groups.created("me", ["ada"], ["me"])
        assert marks() == (False, True)
        groups.changed(demoted=["me"])
        assert marks() == (False, False), "somebody else has to do it"
        groups.changed(promoted=["me"])
        groups.leaves("me")
        assert marks() == (True, False), "who leaves evicts nobody"
        groups.settled("me")
        assert marks() == (False, True)
        groups.settled("ada")
        assert marks() == (False, False)

    def test_a_request_that_comes_while_others_are_settled_is_not_wiped(self, steps: Steps, other: Steps) -> None:
        ours, theirs = Groups(steps), Groups(other)
        ours.created("me", ["ada", "ben"], ["me"])
        for _ in range(10):
            ours.leaves("ada")
            at_once(lambda: ours.settled("ada"), lambda: theirs.leaves("ben"))
            assert ours.state().has_pending_leave_request
            ours.settled("ben")

    def test_groups_that_meet_every_condition_are_listed_by_id(self, steps: Steps) -> None:
        table = steps.store.groups
        steps.do(table.created, b"a", "me", ["ada"], ["me"], "allowed", NOW_NS)
        steps.do(table.created, b"b", "me", ["ben"], [], "denied", NOW_NS + 1)
        steps.do(table.created, b"c", "me", ["ada"], [], "unknown", NOW_NS + 2)
        steps.do(table.leave_requested, b"a", "ada", b"\1", NOW_NS)
        matching = Groups(steps).matching

        assert matching() == [b"a", b"b", b"c"]
        assert matching(limit=1, after=b"a") == [b"b"]
        assert (matching(pending=True), matching(pending=False)) == ([b"a"], [b"b", b"c"])
        assert (matching(member="ada"), matching(member="me", after=b"b")) == ([b"a", b"c"], [b"c"])
        assert (matching(consent=["denied", "unknown"]), matching(consent=[])) == ([b"b", b"c"], [])
        assert matching(active_since_ns=NOW_NS + 1) == [b"b", b"c"]
        assert matching(member="ada", consent=["unknown"], pending=False, active_since_ns=NOW_NS) == [b"c"]
