"""The engine's own rows of a group: what the host tells, in whatever order, and what plugins do about it."""

import itertools
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.acting import WAIT_S, Blocking, MakeEngine, Plugin, Scripted, receipt, receipts, thread, threads
from tests.engine.rows import sql

from callboard import (
    ConsentChanged,
    Engine,
    GroupCreated,
    GroupHandle,
    GroupState,
    LeaveRequested,
    MembershipChanged,
    PendingRemove,
    Transaction,
)
from callboard.testing import FakeClock

GROUP = b"group"
SECOND = timedelta(seconds=1)


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    """An engine without any plugin, which is all that group rows need."""
    return make_engine()


@pytest.fixture
def group(engine: Engine) -> GroupHandle:
    return engine.group(GROUP)


def state_of(group: GroupHandle) -> GroupState:
    state = group.state()
    assert state is not None
    return state


# Rows


def test_nothing_is_known_of_a_group_that_nobody_told_of(group: GroupHandle) -> None:
    assert group.state() is None


def test_a_created_group_is_as_the_host_says(group: GroupHandle, callboard_clock: FakeClock) -> None:
    group.created("alice", members=["bob", "carol"], super_admins=["bob"], consent="allowed")

    state = state_of(group)
    assert state == GroupState(
        group_id=GROUP,
        version=state.version,
        own_inbox_id="alice",
        consent="allowed",
        active_at_ns=callboard_clock.now_ns(),
        is_leaving=False,
        has_pending_leave_request=False,
        members=frozenset({"alice", "bob", "carol"}),
        super_admins=frozenset({"bob"}),
        pending_removes=(),
    )
    assert not state.is_super_admin


def test_created_again_adds_what_is_new_and_takes_nothing_away(group: GroupHandle) -> None:
    group.created("alice", members=["bob"], super_admins=["alice"], consent="allowed")
    group.consent("denied")

    group.created("alice", members=["carol"])

    state = state_of(group)
    assert state.members == {"alice", "bob", "carol"}
    assert state.super_admins == {"alice"}
    assert state.consent == "denied"


def test_consent_that_was_given_before_the_group_was_known_stands(group: GroupHandle) -> None:
    group.consent("denied")
    group.created("alice", consent="unknown")

    assert state_of(group).consent == "denied"


def test_a_group_that_was_known_before_it_was_created_takes_its_consent(group: GroupHandle) -> None:
    group.leave_requested("bob", b"message")
    group.created("alice", consent="allowed")

    assert state_of(group).consent == "allowed"


def test_a_commit_changes_members_and_super_admins(group: GroupHandle) -> None:
    group.created("alice", members=["bob", "carol"], super_admins=["alice", "bob"])

    group.membership_changed(removed=["carol"], added=["dave", "erin"], promoted=["dave"], demoted=["bob"])

    state = state_of(group)
    assert state.members == {"alice", "bob", "dave", "erin"}
    assert state.super_admins == {"alice", "dave"}


def test_a_member_who_is_promoted_without_having_been_seen_is_a_member(group: GroupHandle) -> None:
    group.membership_changed(promoted=["bob"])

    assert state_of(group).members == state_of(group).super_admins == {"bob"}


def test_a_member_who_is_removed_and_added_again_is_no_super_admin(group: GroupHandle) -> None:
    group.created("alice", super_admins=["bob"])
    group.membership_changed(removed=["bob"])
    group.membership_changed(added=["bob"])

    assert state_of(group).super_admins == frozenset()


@pytest.mark.parametrize(
    "tell",
    [
        lambda group: group.membership_changed(added=["bob"]),
        lambda group: group.leave_requested("bob", b"message"),
        lambda group: group.consent("allowed"),
        lambda group: group.active(),
        lambda group: group.created("alice"),
    ],
)
def test_a_missing_group_row_is_created(tell: Callable[[GroupHandle], Any], group: GroupHandle) -> None:
    tell(group)

    assert state_of(group).group_id == GROUP


def test_the_version_grows_with_each_change(group: GroupHandle) -> None:
    versions = []
    for tell in (
        lambda: group.created("alice", super_admins=["alice"]),
        lambda: group.leave_requested("bob", b"message"),
        lambda: group.membership_changed(added=["carol"]),
        lambda: group.consent("denied"),
        lambda: group.active(),
        lambda: group.leave_settled(["bob"]),
    ):
        tell()
        versions.append(state_of(group).version)

    assert versions == sorted(set(versions))


# Activity and consent


def test_a_group_was_active_when_the_host_says_and_at_its_changes(
    group: GroupHandle, callboard_clock: FakeClock
) -> None:
    group.active(at_ns=1_000)
    assert state_of(group).active_at_ns == 1_000

    group.active()
    assert state_of(group).active_at_ns == callboard_clock.now_ns()


def test_activity_that_is_reported_late_takes_nothing_back(group: GroupHandle) -> None:
    group.active(at_ns=2_000)
    group.active(at_ns=1_000)

    assert state_of(group).active_at_ns == 2_000


@pytest.mark.parametrize("consent", ["allowed", "denied", "unknown"])
def test_consent_is_what_the_user_said_last(consent: Any, group: GroupHandle) -> None:
    group.created("alice", consent="allowed")
    group.consent("denied")
    group.consent(consent)

    assert state_of(group).consent == consent


# Leave requests


def test_a_leave_request_is_kept_with_its_message_and_time(group: GroupHandle, callboard_clock: FakeClock) -> None:
    group.created("alice", members=["bob", "carol"])
    first_ns = callboard_clock.now_ns()
    assert group.leave_requested("carol", b"message 1") is True
    callboard_clock.advance(SECOND)
    assert group.leave_requested("bob", b"message 2") is True

    assert state_of(group).pending_removes == (
        PendingRemove("carol", b"message 1", first_ns),
        PendingRemove("bob", b"message 2", first_ns + 10**9),
    )


@pytest.mark.parametrize("message_id", [b"message", b"another message"])
def test_a_leave_request_that_comes_again_changes_nothing(
    message_id: bytes, group: GroupHandle, callboard_clock: FakeClock, callboard_database: str
) -> None:
    group.created("alice", members=["bob"], super_admins=["alice"])
    group.leave_requested("bob", b"message")
    before = sql(
        callboard_database, "SELECT * FROM callboard_group JOIN callboard_pending_remove USING (group_id)"
    )
    callboard_clock.advance(SECOND)

    assert group.leave_requested("bob", message_id) is False

    after = sql(callboard_database, "SELECT * FROM callboard_group JOIN callboard_pending_remove USING (group_id)")
    assert after == before
    assert len(after) == 1


def test_nothing_is_checked_against_the_host(group: GroupHandle) -> None:
    """Who asks to leave need not be known as a member: messages and commits come in any order."""
    assert group.leave_requested("stranger", b"message") is True

    assert [pending.inbox_id for pending in state_of(group).pending_removes] == ["stranger"]
    assert state_of(group).members == frozenset()


def test_a_commit_that_removes_a_member_settles_the_request(group: GroupHandle) -> None:
    group.created("alice", members=["bob", "carol"], super_admins=["alice"])
    group.leave_requested("bob", b"message 1")
    group.leave_requested("carol", b"message 2")

    group.membership_changed(removed=["bob"])
    assert [pending.inbox_id for pending in state_of(group).pending_removes] == ["carol"]
    assert state_of(group).has_pending_leave_request

    group.membership_changed(removed=["carol"])
    assert state_of(group).pending_removes == ()
    assert not state_of(group).has_pending_leave_request


def test_settling_drops_the_requests_named_and_the_mark_with_the_last(group: GroupHandle) -> None:
    group.created("alice", members=["bob", "carol"], super_admins=["alice"])
    group.leave_requested("bob", b"message 1")
    group.leave_requested("carol", b"message 2")

    group.leave_settled(["bob", "nobody"])
    assert state_of(group).has_pending_leave_request
    group.leave_settled(["carol"])
    assert not state_of(group).has_pending_leave_request
    assert state_of(group).members == {"alice", "bob", "carol"}


def test_a_request_that_arrives_while_others_are_settled_is_not_wiped(engine: Engine, group: GroupHandle) -> None:
    """A handler reads the list, and cleans up what it read."""
    group.created("alice", members=["bob", "carol"], super_admins=["alice"])
    group.leave_requested("bob", b"message 1")
    read = [pending.inbox_id for pending in state_of(group).pending_removes]

    group.leave_requested("carol", b"message 2")
    group.leave_settled(read)

    assert state_of(group).has_pending_leave_request
    assert [pending.inbox_id for pending in state_of(group).pending_removes] == ["carol"]


EVENTS: dict[str, Callable[[GroupHandle], Any]] = {
    "created": lambda group: group.created("alice", members=["bob"]),
    "promoted": lambda group: group.membership_changed(promoted=["alice"]),
    "bob leaves": lambda group: group.leave_requested("bob", b"message 1"),
    "carol leaves": lambda group: group.leave_requested("carol", b"message 2"),
    "alice leaves": lambda group: group.leave_requested("alice", b"message 3"),
}


@pytest.mark.parametrize(
    ("events", "marked", "leaving"),
    [
        (["created", "promoted", "bob leaves", "carol leaves"], True, False),
        (["created", "promoted", "bob leaves", "alice leaves"], False, True),
        (["created", "promoted", "alice leaves"], False, True),
        (["created", "bob leaves", "carol leaves"], False, False),
        (["created", "bob leaves", "alice leaves"], False, True),
        (["promoted", "bob leaves"], False, False),
        (["created", "promoted"], False, False),
    ],
)
def test_the_marks_depend_on_what_happened_and_not_on_its_order(
    events: list[str], marked: bool, leaving: bool, engine: Engine
) -> None:
    """A group is marked when somebody else is pending, and this client a super-admin and not itself leaving."""
    for number, order in enumerate(itertools.permutations(events)):
        group = engine.group(b"group %d" % number)
        for event in order:
            EVENTS[event](group)
        state = state_of(group)
        assert (state.has_pending_leave_request, state.is_leaving) == (marked, leaving), order


def test_demotion_clears_the_mark_and_promotion_sets_it_again(group: GroupHandle) -> None:
    group.created("alice", members=["bob"], super_admins=["alice"])
    group.leave_requested("bob", b"message")

    group.membership_changed(demoted=["alice"])
    assert not state_of(group).has_pending_leave_request
    group.membership_changed(promoted=["alice"])
    assert state_of(group).has_pending_leave_request


def test_a_client_that_takes_its_own_request_back_evicts_again(group: GroupHandle) -> None:
    group.created("alice", members=["bob"], super_admins=["alice"])
    group.leave_requested("bob", b"message 1")
    group.leave_requested("alice", b"message 2")
    assert (state_of(group).is_leaving, state_of(group).has_pending_leave_request) == (True, False)

    group.leave_settled(["alice"])

    assert (state_of(group).is_leaving, state_of(group).has_pending_leave_request) == (False, True)


INBOXES = ["alice", "bob", "carol"]
WHO = st.lists(st.sampled_from(INBOXES), unique=True)
STEPS = st.one_of(
    st.tuples(st.just("created"), st.sampled_from(INBOXES), WHO, WHO),
    st.tuples(st.just("changed"), WHO, WHO, WHO, WHO),
    st.tuples(st.just("leaves"), st.sampled_from(INBOXES)),
    st.tuples(st.just("settled"), WHO),
)


class Model:
    """What the rows of a group mean, as plain sets."""

    def __init__(self) -> None:
        self.own: str | None = None
        self.members: set[str] = set()
        self.admins: set[str] = set()
        self.pending: set[str] = set()

    def tell(self, group: GroupHandle, step: tuple[Any, ...]) -> None:
        match step:
            case ("created", own, members, admins):
                group.created(own, members, admins)
                self.own = own
                self.members |= {own, *members, *admins}
                self.admins |= set(admins)
            case ("changed", removed, added, promoted, demoted):
                group.membership_changed(removed, added, promoted, demoted)
                self.pending -= set(removed)
                self.members = (self.members - set(removed)) | {*added, *promoted}
                self.admins = ((self.admins - set(removed)) | set(promoted)) - set(demoted)
            case ("leaves", inbox):
                assert group.leave_requested(inbox, b"message") is (inbox not in self.pending)
                self.pending.add(inbox)
            case ("settled", inboxes):
                group.leave_settled(inboxes)
                self.pending -= set(inboxes)

    def assert_is(self, state: GroupState | None) -> None:
        assert state is not None
        assert state.own_inbox_id == self.own
        assert set(state.members) == self.members
        assert set(state.super_admins) == self.admins
        assert {pending.inbox_id for pending in state.pending_removes} == self.pending
        leaving = self.own in self.pending
        assert state.is_leaving is leaving
        assert state.has_pending_leave_request is (
            self.own in self.admins and not leaving and bool(self.pending - {self.own})
        )


def test_the_rows_follow_the_model_whatever_happens(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path / 'model.db'}", plugins=[], synchronous="NORMAL")
    numbers = itertools.count()

    @settings(max_examples=60)
    @given(steps=st.lists(STEPS, min_size=1, max_size=12))
    def follow(steps: list[tuple[Any, ...]]) -> None:
        group, model = engine.group(b"group %d" % next(numbers)), Model()
        with engine.transaction() as tx:
            for step in steps:
                model.tell(tx.group(group.group_id), step)
        state = group.state()
        if state is None:
            assert {step[0] for step in steps} == {"settled"}
        else:
            model.assert_is(state)

    follow()
    engine.stop()


# Bad input


@pytest.mark.parametrize("group_id", [b"", b"x" * 256, "text", None])
def test_an_id_that_cannot_name_a_group_is_refused(group_id: Any, engine: Engine) -> None:
    with pytest.raises(ValueError, match="group_id"):
        engine.group(group_id)
    with engine.transaction() as tx, pytest.raises(ValueError, match="group_id"):
        tx.group(group_id)


def test_an_id_of_255_bytes_names_a_group(engine: Engine) -> None:
    group = engine.group(b"x" * 255)
    group.active()
    assert state_of(group).group_id == b"x" * 255


@pytest.mark.parametrize(
    "tell",
    [
        lambda group: group.created(""),
        lambda group: group.created("alice", members=["bob", ""]),
        lambda group: group.created("alice", members="bob"),
        lambda group: group.created("alice", super_admins=[b"bob"]),
        lambda group: group.created("alice", consent="maybe"),
        lambda group: group.consent(""),
        lambda group: group.membership_changed(removed=[""]),
        lambda group: group.membership_changed(added=[None]),
        lambda group: group.membership_changed(promoted="bob"),
        lambda group: group.membership_changed(demoted=[""]),
        lambda group: group.leave_requested("", b"message"),
        lambda group: group.leave_settled([""]),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(
    tell: Callable[[GroupHandle], Any], group: GroupHandle
) -> None:
    with pytest.raises(ValueError, match=r"inbox|consent"):
        tell(group)

    assert group.state() is None


# Listing


@pytest.fixture
def listed(engine: Engine) -> Callable[..., list[bytes]]:
    """Four groups, and a lister of their ids."""
    engine.group(b"a").created("me", members=["bob"], super_admins=["me"], consent="allowed")
    engine.group(b"a").leave_requested("bob", b"message")
    engine.group(b"b").created("me", members=["carol"], consent="unknown")
    engine.group(b"b").leave_requested("carol", b"message")
    engine.group(b"c").created("me", members=["bob"], consent="denied")
    engine.group(b"d").active(at_ns=5)

    def list_ids(**conditions: Any) -> list[bytes]:
        return [state.group_id for state in engine.groups(**conditions)]

    return list_ids


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, [b"a", b"b", b"c", b"d"]),
        ({"pending": True}, [b"a", b"b"]),
        ({"pending": False}, [b"c", b"d"]),
        ({"member": "bob"}, [b"a", b"c"]),
        ({"member": "me"}, [b"a", b"b", b"c"]),
        ({"member": "nobody"}, []),
        ({"consent": ["allowed"]}, [b"a"]),
        ({"consent": ["allowed", "unknown"]}, [b"a", b"b", b"d"]),
        ({"consent": []}, []),
        ({"active_since_ns": 5}, [b"a", b"b", b"c", b"d"]),
        ({"active_since_ns": 6}, [b"a", b"b", b"c"]),
        ({"pending": True, "member": "bob", "consent": ["allowed", "denied"], "active_since_ns": 6}, [b"a"]),
        ({"pending": False, "member": "bob"}, [b"c"]),
    ],
)
def test_groups_that_meet_every_condition_are_listed_in_order(
    conditions: dict[str, Any], expected: list[bytes], listed: Callable[..., list[bytes]]
) -> None:
    assert listed(**conditions) == expected


def test_a_listing_goes_on_over_pages_while_groups_change(engine: Engine) -> None:
    ids = [b"%05d" % number for number in range(1_001)]
    with engine.transaction() as tx:
        for group_id in ids:
            tx.group(group_id).active()

    seen = []
    for state in engine.groups():
        seen.append(state.group_id)
        if len(seen) % 250 == 0:
            engine.group(state.group_id).consent("denied")

    assert seen == ids


# Events in the caller's transaction


class Witness:
    """A hook that keeps the events it is told of, and does something with each transaction."""

    def __init__(self, act: Callable[[Transaction], Any] = lambda tx: None) -> None:
        self._act = act
        self.events: list[object] = []

    def plugin(self, *kinds: Any, name: str = "witness") -> Plugin:
        def group_event(tx: Transaction, event: object) -> None:
            self.events.append(event)
            self._act(tx)

        return Plugin(*kinds, name=name, group_event=group_event)


def test_each_event_is_told_once_with_what_happened(make_engine: MakeEngine) -> None:
    witness = Witness()
    group = make_engine(witness.plugin()).group(GROUP)

    group.created("alice", members=["bob"])
    group.membership_changed(removed=["bob"], added=["carol"], promoted=["alice"], demoted=["dave"])
    group.leave_requested("carol", b"message")
    group.leave_requested("carol", b"message")
    group.consent("denied")
    group.active()
    group.leave_settled(["carol"])

    assert witness.events == [
        GroupCreated(GROUP),
        MembershipChanged(GROUP, removed=("bob",), added=("carol",), promoted=("alice",), demoted=("dave",)),
        LeaveRequested(GROUP, "carol", b"message"),
        ConsentChanged(GROUP, "denied"),
    ]


def test_a_hook_sees_the_engines_own_rows_written(make_engine: MakeEngine) -> None:
    seen: list[GroupState | None] = []
    witness = Witness(lambda tx: seen.append(tx.group(GROUP).state()))
    engine = make_engine(witness.plugin())
    engine.group(GROUP).created("alice", super_admins=["alice"])
    engine.group(GROUP).leave_requested("bob", b"message")

    assert [state and state.has_pending_leave_request for state in seen] == [False, True]


def test_what_a_hook_enqueues_commits_with_the_event(make_engine: MakeEngine) -> None:
    handler = Scripted()
    witness = Witness(lambda tx: tx.enqueue(receipt("hello")))
    engine = make_engine(witness.plugin(receipts(handler)))

    with engine.transaction() as tx:
        tx.group(GROUP).created("alice")
        assert tx.connection.in_transaction

    assert len(engine.tasks()) == 1
    engine.run_due()
    assert handler.played == ["hello"]


def test_what_a_hook_enqueues_is_rolled_back_with_the_event(make_engine: MakeEngine) -> None:
    witness = Witness(lambda tx: tx.enqueue(receipt("hello")))
    engine = make_engine(witness.plugin(receipts(Scripted())))

    with pytest.raises(LookupError), engine.transaction() as tx:
        tx.group(GROUP).created("alice")
        raise LookupError

    assert len(witness.events) == 1
    assert engine.tasks() == []
    assert engine.group(GROUP).state() is None


def test_the_wake_follows_the_commit(make_engine: MakeEngine) -> None:
    handler = Blocking()
    witness = Witness(lambda tx: tx.enqueue(receipt("hello")))
    engine = make_engine(witness.plugin(receipts(handler)))
    engine.start()

    engine.group(GROUP).created("alice")

    handler.wait_begun("hello")
    handler.let_go()


def failing_after(write: Callable[[Transaction], Any], error: BaseException) -> Callable[[Transaction], Any]:
    def act(tx: Transaction) -> None:
        write(tx)
        raise error

    return act


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(), GeneratorExit()], ids=repr)
def test_a_hook_that_raises_loses_its_own_writes_only(error: BaseException, make_engine: MakeEngine) -> None:
    reasons: list[str] = []
    before = Witness(lambda tx: tx.enqueue(receipt("before")))
    bad = Witness(failing_after(lambda tx: tx.enqueue(receipt("bad")), error))
    after = Witness(lambda tx: tx.enqueue(receipt("after")))
    reconciler = Plugin(name="reconciler", reconcile=lambda engine, reason: reasons.append(reason))
    engine = make_engine(
        before.plugin(receipts(Scripted()), name="before"),
        bad.plugin(name="bad"),
        after.plugin(name="after"),
        reconciler,
        execute=True,
    )
    engine.group(GROUP).created("alice")

    texts = sorted(str(task.data) for task in engine.tasks())
    assert len(texts) == 2
    assert "after" in texts[0] and "before" in texts[1]
    assert state_of(engine.group(GROUP)).own_inbox_id == "alice"
    assert list(engine.health().plugins[1].problems) == ["callboard_group_event"]


def test_a_hook_that_raised_is_made_up_for_by_a_reconcile_after_the_commit(make_engine: MakeEngine) -> None:
    reasons: list[str] = []

    def group_event(tx: Transaction, event: object) -> None:
        raise ValueError("no")

    def reconcile(engine: Engine, reason: str) -> None:
        reasons.append(reason)

    with make_engine(Plugin(group_event=group_event, reconcile=reconcile)) as engine:
        assert engine.wait_idle(WAIT_S)
        with engine.transaction() as tx:
            tx.group(GROUP).created("alice")
            assert engine.wait_idle(WAIT_S)
            assert reasons == ["start"]
        assert engine.wait_idle(WAIT_S)

        with pytest.raises(LookupError), engine.transaction() as tx:
            tx.group(GROUP).consent("denied")
            raise LookupError
        assert engine.wait_idle(WAIT_S)

    assert reasons == ["start", "hook"]


def test_a_hook_may_write_to_other_groups(make_engine: MakeEngine) -> None:
    def act(tx: Transaction) -> None:
        if len(witness.events) == 1:
            tx.group(b"other").created("alice")

    witness = Witness(act)
    engine = make_engine(witness.plugin())
    engine.group(GROUP).created("alice")

    assert witness.events == [GroupCreated(GROUP), GroupCreated(b"other")]
    assert engine.group(b"other").state() is not None


# Never behind an actor


def test_events_do_not_wait_behind_a_running_task_of_the_group(make_engine: MakeEngine) -> None:
    handler = Blocking()
    engine = make_engine(Plugin(receipts(handler)), workers=1)
    engine.start()
    engine.enqueue(receipt("hello", GROUP))
    handler.wait_begun("hello")

    engine.group(GROUP).created("alice", super_admins=["alice"])
    engine.group(GROUP).leave_requested("bob", b"message")

    assert state_of(engine.group(GROUP)).has_pending_leave_request
    seen = handler.contexts["hello"].group
    assert seen is not None and seen.has_pending_leave_request
    handler.let_go()


def test_events_are_safe_from_inside_a_handler_of_the_same_group(make_engine: MakeEngine) -> None:
    def handler(message: Any, ctx: Any) -> None:
        ctx.engine.group(GROUP).created("alice", super_admins=["alice"])
        with ctx.complete() as tx:
            tx.group(GROUP).leave_requested("bob", b"message")

    witness = Witness(lambda tx: tx.enqueue(thread("follow-up", GROUP)))
    followed = Scripted()
    with make_engine(witness.plugin(receipts(handler), threads(followed))) as engine:
        engine.enqueue(receipt("hello", GROUP))
        assert engine.wait_idle(WAIT_S)

        assert state_of(engine.group(GROUP)).has_pending_leave_request
        assert engine.health().counters["failed"] == 0

    assert set(followed.played) == {"follow-up"}


def test_group_rows_need_no_start_no_plugin_and_outlive_the_engine(make_engine: MakeEngine) -> None:
    def tell(states: Iterable[GroupState]) -> list[tuple[bytes, bool]]:
        return [(state.group_id, state.has_pending_leave_request) for state in states]

    first = make_engine()
    first.group(GROUP).created("alice", super_admins=["alice"])
    first.group(GROUP).leave_requested("bob", b"message")
    first.stop()

    assert tell(make_engine(execute=False).groups()) == [(GROUP, True)]
