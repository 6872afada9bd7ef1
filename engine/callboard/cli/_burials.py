"""`callboard dead retry` and `callboard dead purge`: what becomes of dead tasks, one or very many."""

from __future__ import annotations

from collections.abc import Sequence

import click

from callboard._store.interface import Store
from callboard._task import EnqueueStatus
from callboard.cli._arguments import ROW_ID, kind_option
from callboard.cli._database import database_argument, open_for_reading, opened_for_changes, opened_store
from callboard.cli._output import json_option, print_json
from callboard.cli._progress import Show, shown
from callboard.cli._show import no_dead_task
from callboard.cli._times import ago

_BATCH = 500  # rows deleted in one transaction, so that an engine at work waits for little
_PAGE = 1_000  # rows read at once, payloads and errors among them
_MANY = 1_000  # below, it is done before anybody could read how far it is


@click.command("retry")
@database_argument
@click.argument("dead_ids", type=ROW_ID, metavar="[ID]...", nargs=-1)
@kind_option
@json_option
def retry_dead(database: str, dead_ids: tuple[int, ...], kind: str | None, as_json: bool) -> None:
    """Give dead tasks of DATABASE a new life: those with these IDs, or all of one kind.

    Attempts and expiry start afresh. Where a task of the same identity lives, the dead one merges into it; where
    that has another payload, it stays dead and the status is 1. If one of the IDs is wrong, none is retried. Each
    task is retried in a transaction of its own, so after Ctrl-C the same command does the rest.

    Example: callboard dead retry service.db --kind acme.receipts.SendReceipt
    """
    if not dead_ids and kind is None:
        raise click.UsageError(
            "say which: the IDs of dead tasks, as `callboard dead list` shows them, or --kind for all of one kind"
        )
    if dead_ids and kind is not None:
        raise click.UsageError("give IDs or --kind, not both")
    store = open_for_reading(database)
    chosen = _known(store, dead_ids) if kind is None else _of_kind(store, kind, None)
    retried: list[dict[str, object]] = []
    conflicts: list[int] = []
    with opened_for_changes(database, plugins=None) as engine, shown() as show:
        for number, dead_id in enumerate(chosen, 1):
            answer = engine.retry_dead(dead_id)
            if answer is None:  # somebody else was quicker
                continue
            if answer.status == EnqueueStatus.CONFLICT:
                conflicts.append(dead_id)
            else:
                retried.append({"id": dead_id, "task": answer.task_id, "status": str(answer.status)})
            _say(show, "retrying", number, len(chosen))
    if as_json:
        print_json({"retried": retried, "conflicts": conflicts})
    elif len(retried) == 1:
        click.echo(f"dead task {retried[0]['id']} lives as task {retried[0]['task']} ({retried[0]['status']})")
    else:
        click.echo(f"retried {_counted(len(retried))}")
    if conflicts:
        raise click.ClickException(
            f"{_listed(conflicts)} dead still: a task of the same key lives with another payload; cancel that one"
            " first, or leave it at that"
        )


@click.command("purge")
@database_argument
@click.option(
    "--before",
    "before_ns",
    metavar="WHEN",
    callback=ago,
    help="Only those that died longer ago than this, such as 30d, or before a date in UTC.",
)
@kind_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def purge_dead(database: str, before_ns: int | None, kind: str | None, yes: bool, as_json: bool) -> None:
    """Delete dead tasks of DATABASE for good.

    It says how many they are, and asks. Without options they are all those that are dead now. They are deleted in
    small transactions, so an engine at work is not held up; after Ctrl-C the same command does the rest.

    Example: callboard dead purge service.db --before 30d --yes
    """
    reading = open_for_reading(database)
    chosen = _of_kind(reading, kind, before_ns)
    if chosen and not yes:
        _confirm(f"Delete {_counted(len(chosen))} of {reading.where} for good?")
    with opened_store(database) as store, shown() as show:
        for start in range(0, len(chosen), _BATCH):
            batch = chosen[start : start + _BATCH]
            with store.transaction() as session:
                for dead_id in batch:
                    store.tasks.forget_dead(session, dead_id)
            _say(show, "deleting", start + len(batch), len(chosen))
    if as_json:
        print_json({"deleted": len(chosen)})
    else:
        click.echo(f"deleted {_counted(len(chosen))}")


def _known(store: Store, dead_ids: Sequence[int]) -> list[int]:
    """Return the ids, each once.

    Raises:
        ClickException: one of them is no dead task's.
    """
    ids = list(dict.fromkeys(dead_ids))
    with store.reading() as session:
        missing = [each for each in ids if store.tasks.dead_by_id(session, each) is None]
    if missing:
        raise no_dead_task(store.where, missing)
    return ids


def _of_kind(store: Store, kind: str | None, before_ns: int | None) -> list[int]:
    """Return the ids of the dead tasks that meet every condition given."""
    # All of them before the first is changed: one that is retried and dies again must not be met again.
    ids: list[int] = []
    after_id = 0
    while page := store.list_dead(kind, None, _PAGE, after_id):
        ids += [row.id for row in page if before_ns is None or row.died_at_ns < before_ns]
        after_id = page[-1].id
    return ids


def _confirm(question: str) -> None:
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C, or nobody there to answer
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise click.ClickException("nothing was deleted; --yes deletes without asking")


def _say(show: Show, text: str, rows: int, total: int) -> None:
    if total > _MANY:
        show(text, rows, total)


def _counted(number: int) -> str:
    return f"{number} dead task{'' if number == 1 else 's'}"


def _listed(ids: Sequence[int]) -> str:
    named = ", ".join(map(str, ids[:5]))
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return f"{named}{more} {'is' if len(ids) == 1 else 'are'}"
