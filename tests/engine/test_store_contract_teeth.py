"""The contract tells when a store breaks it: with a single fault, ours fails the test that is there for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import count, product
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

from callboard import _lifecycle
from callboard._migration import Migration
from callboard._store import groups, migrating, nodes, sql_tasks, sqlite, sqlite_tasks
from callboard._store.nodes import SqlNodes
from callboard._store.policy import TaskPolicy
from callboard._store.session import SqliteSession
from callboard._store.sqlite import SqliteStore, open_sqlite
from callboard.errors import StoreError
from callboard.stores import Store
from callboard.testing.store_contract import StoreContract, _machine, _steps
from callboard.testing.store_contract._steps import NOW_NS, Steps


class Fault(NamedTuple):
    """What is wrong with the store, and the contract's test that is there to tell."""

    name: str
    make: Callable[[pytest.MonkeyPatch], None]
    caught_by: str


def reworded(module: ModuleType, statement: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Change one statement."""

    def make(patch: pytest.MonkeyPatch) -> None:
        sql = getattr(module, statement)
        assert old in sql
        patch.setattr(module, statement, sql.replace(old, new))

    return make


def replaced(owner: Any, name: str, instead: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Change one method or function."""
    return lambda patch: patch.setattr(owner, name, instead)


def called_at_once(session: SqliteSession, call: Callable[[], None]) -> bool:
    call()
    return True


open_transaction = SqliteStore.transaction


@contextmanager
def called_after_a_rollback(store: SqliteStore) -> Iterator[Any]:
    calls: list[Callable[[], None]] = []
    try:
        with open_transaction(store) as session:
            session.after_commit = calls.append  # type: ignore[assignment, method-assign]
            yield session
    finally:
        for call in calls:
            call()


@contextmanager
def commits_in_spite_of_an_error(store: SqliteStore) -> Iterator[Any]:
    raised = []
    with open_transaction(store) as session:
        try:
            yield session
        except ZeroDivisionError as error:
            raised.append(error)
    if raised:
        raise raised[0]


def untranslated(session: SqliteSession, sql: str, params: Any = ()) -> int:
    return session.connection.execute(sql, params).rowcount


def never_revived(policy: TaskPolicy, session: Any, tasks: Any, now_ns: int, recurring: Any) -> list[Any]:
    policy.bury(session, [(task.id, _lifecycle.cancelled(task)) for task, _ in tasks], now_ns)
    return []


def never_recorded(session: Any, plugin: str, migration: Migration, now_ns: int) -> bool:
    session.script(migration.sql)
    return True


apply_of_plugin = migrating.apply_of_plugin


def recorded_in_spite_of_an_error(session: Any, plugin: str, migration: Migration, now_ns: int) -> bool:
    with suppress(StoreError):
        session.script(migration.sql)
    return apply_of_plugin(session, plugin, replace(migration, sql=""), now_ns)


versions = count()

pytestmark = pytest.mark.campaign

FAULTS = [
    Fault(
        "requests are dropped",
        reworded(sql_tasks, "_REQUEST", " + 1 WHERE", " WHERE"),
        "a_live_identity_merges_and_keeps_its_row",
    ),
    Fault(
        "rows that sleep are overlooked",
        reworded(sqlite_tasks, "_INSERT_IF_NEW", "AND dormant = 1", "AND dormant = 2"),
        "a_live_identity_merges_and_keeps_its_row",
    ),
    Fault(
        "overdue rows are in the way",
        replaced(_lifecycle, "overdue", lambda *args, **options: None),
        "an_overdue_row_is_no_obstacle",
    ),
    Fault(
        "a pull-in raises a deadline",
        reworded(sqlite_tasks, "_PULL_IN", "ELSE min(next_attempt_at_ns, ?1) END", "ELSE ?1 END"),
        "a_pull_in_lowers_the_deadline_and_never_raises_it",
    ),
    Fault(
        "a pull-in lowers the deadline of a run",
        reworded(sqlite_tasks, "_PULL_IN", "'running' THEN next_attempt_at_ns", "'running' THEN ?1"),
        "a_pull_in_during_a_run_is_kept_apart_and_merged_at_its_end",
    ),
    Fault(
        "a pull-in is merged into each run's end",
        reworded(sqlite_tasks, "_KEEP", "pulled_in_ns = NULL", "pulled_in_ns = pulled_in_ns"),
        "a_pull_in_during_a_run_is_kept_apart_and_merged_at_its_end",
    ),
    Fault(
        "a start keeps the token",
        reworded(sqlite_tasks, "_START", f"token = {sqlite_tasks._NEXT_TOKEN}, ", ""),
        "each_start_gives_another_token",
    ),
    Fault(
        "a claim ignores the groups of other nodes",
        reworded(sqlite_tasks, "_DUE_ARM", sqlite_tasks._NOT_ELSEWHERE, "? > 0 AND ? > 0"),
        "a_group_that_another_node_runs_is_left_out",
    ),
    Fault(
        "a claim gives what is not due",
        reworded(sqlite_tasks, "_DUE_ARM", "next_attempt_at_ns <= ?", "? IS NOT NULL"),
        "what_is_due_comes_in_the_order_of_deadlines_whatever_its_kind",
    ),
    Fault(
        "a limited kind's claim gives rows of groups that are left out",
        reworded(sqlite_tasks, "_DUE_BESIDE", "hex(group_id) NOT IN", "id NOT IN"),
        "rows_of_groups_that_are_left_out_are_stepped_over",
    ),
    Fault(
        "a limited kind's claim looks at a few rows only",
        replaced(sqlite_tasks, "LOOK", 100),
        "a_backlog_of_groups_that_are_left_out_is_stepped_over_as_far_as_promised",
    ),
    Fault(
        "a claim is from a few kinds only",
        replaced(sqlite_tasks, "_MOST_ARMS", 2_000),
        "a_claim_may_be_from_any_number_of_kinds",
    ),
    Fault(
        "parked rows stay in the way",
        reworded(sqlite_tasks, "_PARK", "parked = 1", "parked = 0"),
        "parked_rows_are_out_of_the_way_until_they_are_unparked",
    ),
    Fault(
        "a row that does not run is handed back",
        reworded(sqlite_tasks, "_HAND_BACK", " AND state = 'running'", ""),
        "handing_back_what_does_not_run_changes_nothing",
    ),
    Fault(
        "a burial loses the payload",
        reworded(
            sqlite_tasks,
            "_BURY",
            "SELECT id, kind, group_id, identity, data,",
            "SELECT id, kind, group_id, identity, x'00',",
        ),
        "bury_keeps_the_whole_task_with_reason_and_error",
    ),
    Fault(
        "a burial loses the error",
        reworded(sqlite_tasks, "_BURY", "origin, ?, ?, ?", "origin, substr(?, 9), ?, ?"),
        "bury_keeps_the_whole_task_with_reason_and_error",
    ),
    Fault(
        "a cancelled run still holds its row",
        reworded(sqlite_tasks, "_CANCEL", " + 1 WHERE", " WHERE"),
        "a_running_task_is_marked_and_occupies_its_group_until_it_is_buried",
    ),
    Fault(
        "a task is cancelled twice",
        reworded(sqlite_tasks, "_CANCEL", " AND cancelled = 0", ""),
        "a_running_task_is_marked_and_occupies_its_group_until_it_is_buried",
    ),
    Fault(
        "a request after a cancel is lost",
        replaced(TaskPolicy, "bury_cancelled", never_revived),
        "a_request_after_the_cancel_starts_a_new_life",
    ),
    Fault(
        "the youngest dead are pruned",
        reworded(sqlite_tasks, "_PRUNE_DEAD", "ORDER BY died_at_ns", "ORDER BY died_at_ns DESC"),
        "the_oldest_dead_are_pruned_a_bounded_number_at_once",
    ),
    Fault(
        "every long wait is taken for a backoff",
        reworded(sql_tasks, "_SHORTEN_BACKOFF", "last_error IS NOT NULL AND ", ""),
        "only_backoffs_beyond_their_cap_are_shortened",
    ),
    Fault(
        "rows without a payload are set aside",
        reworded(sqlite_tasks, "_SET_ASIDE", " AND length(data) > 0", ""),
        "rows_that_are_to_be_buried_are_not_set_aside",
    ),
    Fault(
        "rows that are taken up wait on",
        reworded(sqlite_tasks, "_TAKE_UP", "min(next_attempt_at_ns, ?1)", "next_attempt_at_ns"),
        "deferred_rows_are_taken_up_and_due",
    ),
    Fault(
        "a rescue keeps the token",
        reworded(sqlite_tasks, "_RUN_AGAIN", f"token = {sqlite_tasks._NEXT_TOKEN}, ", ""),
        "rows_of_a_node_that_is_gone_run_again_one_at_a_time",
    ),
    Fault(
        "a rescue takes what others run",
        reworded(sqlite_tasks, "_ORPHANS", "owner NOT IN (SELECT id FROM callboard_node)", "1"),
        "rows_of_nodes_that_are_there_are_left_alone",
    ),
    Fault(
        "a crash has no backoff",
        replaced(_lifecycle, "after_crash_ns", lambda *args: 0),
        "only_crashes_alone_count_and_too_many_in_a_row_are_its_death",
    ),
    Fault(
        "crashes are never forgotten",
        reworded(sqlite_tasks, "_KEEP", ", crashes = 0", ""),
        "a_run_that_ends_makes_up_for_the_crashes",
    ),
    Fault(
        "a group stays parked when its node is gone",
        reworded(sqlite_tasks, "_UNPARK_FREE", "parked = 1 AND group_id IN", "parked = 2 AND group_id IN"),
        "groups_that_nobody_runs_any_more_are_unparked",
    ),
    Fault(
        "a heartbeat is the time",
        reworded(nodes, "_RENEW", "CASE WHEN heartbeat_at_ns < ?1 THEN ?1 ELSE heartbeat_at_ns + 1 END", "?1"),
        "each_heartbeat_is_another_one_wherever_the_clock_stands",
    ),
    Fault(
        "a node is buried alive",
        reworded(nodes, "_RENEW", "SET heartbeat_at_ns =", "SET started_at_ns ="),
        "a_node_that_gave_a_sign_of_life_is_not_buried",
    ),
    Fault(
        "no process ever ends",
        replaced(SqlNodes, "has_ended", lambda nodes, node: False),
        "a_process_that_ended_is_told_from_one_that_has_not",
    ),
    Fault(
        "a leave request that comes again is another one",
        reworded(groups, "_LEAVE", "DO NOTHING", "DO UPDATE SET message_id = excluded.message_id"),
        "the_version_grows_with_each_change_and_only_then",
    ),
    Fault(
        "a turn is taken by everybody",
        reworded(sqlite, "_STAMP", " WHERE at_ns <= ?3 OR at_ns > ?2", " WHERE ?3 IS NOT NULL"),
        "a_turn_is_taken_once_in_an_interval",
    ),
    Fault(
        "nobody learns of others' commits",
        replaced(SqliteStore, "data_version", lambda store: 1),
        "the_data_version_changes_with_others_commits_only",
    ),
    Fault(
        "each look at the version makes another one",
        replaced(SqliteStore, "data_version", lambda store: next(versions)),
        "the_data_version_changes_with_others_commits_only",
    ),
    Fault(
        "calls after the commit are made before it",
        replaced(SqliteSession, "after_commit", called_at_once),
        "calls_after_the_commit_are_made_after_it",
    ),
    Fault(
        "calls after the commit are made after a rollback",
        replaced(SqliteStore, "transaction", called_after_a_rollback),
        "calls_after_the_commit_are_not_made_after_a_rollback",
    ),
    Fault(
        "a transaction that raises is committed",
        replaced(SqliteStore, "transaction", commits_in_spite_of_an_error),
        "a_transaction_that_raises_is_rolled_back_whole",
    ),
    Fault(
        "what the driver raises gets out",
        replaced(SqliteSession, "run", untranslated),
        "what_the_driver_raises_is_a_store_error",
    ),
    Fault(
        "a plugin's migration is not recorded",
        replaced(migrating, "apply_of_plugin", never_recorded),
        "a_plugins_migration_is_run_once_and_recorded",
    ),
    Fault(
        "a plugin's migration that fails counts as run",
        replaced(migrating, "apply_of_plugin", recorded_in_spite_of_an_error),
        "of_a_plugins_migration_that_fails_nothing_is_left",
    ),
    Fault(
        "the latest compatible_with is taken for the greatest",
        reworded(migrating, "_RECORDED", "max(compatible_with)", "compatible_with"),
        "of_each_series_the_latest_number_and_the_greatest_compatible_with_are_recorded",
    ),
]


def failures_of(name: str, database: str) -> list[BaseException]:
    """Run a test of the contract with all its parameters; return what it raised."""
    stores: list[Store] = []

    def make_store() -> Store:
        stores.append(open_sqlite(f"{database}{len(raised)}", "NORMAL"))
        return stores[-1]

    test = getattr(StoreContract(), name)
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    raised: list[BaseException | None] = []
    for values in product(*(mark.args[1] for mark in marks)):
        given: dict[str, Any] = {"make_store": make_store}
        given.update(zip((mark.args[0] for mark in marks), values, strict=True))
        try:
            if "steps" in signature(test).parameters:
                make_store().prepare(NOW_NS)
                given.update(steps=Steps(make_store()), other=Steps(make_store()))
            test(**{wanted: given[wanted] for wanted in signature(test).parameters})
            raised.append(None)
        except (Exception, pytest.fail.Exception) as error:
            raised.append(error)
    for store in stores:
        store.close()
    return [error for error in raised if error is not None]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_contract_tells_of(fault: Fault, callboard_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_steps, "PATIENCE_S", 0.2)
    assert failures_of(f"test_{fault.caught_by}", callboard_database + "-sound") == []

    fault.make(monkeypatch)

    assert failures_of(f"test_{fault.caught_by}", callboard_database) != []


@pytest.mark.parametrize(
    "name",
    [
        "requests are dropped",
        "a pull-in raises a deadline",
        "a start keeps the token",
        "a claim gives what is not due",
        "a burial loses the payload",
    ],
)
def test_so_does_its_property(name: str, callboard_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [fault] = [fault for fault in FAULTS if fault.name == name]
    monkeypatch.setattr(
        _machine, "settings", partial(settings, phases=[Phase.generate])
    )  # a smaller one is no use
    fault.make(monkeypatch)

    assert failures_of("test_the_rows_follow_the_model_whatever_happens", callboard_database) != []
