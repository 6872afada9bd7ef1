"""The ledger's checks: what must hold of every history, whatever was killed in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tests.ledger.entries import Came, DeadRow, Effect, Entry, LiveRow
from tests.ledger.history import COMMITTING, History, Run, TaskHistory


def violations(
    entries: Iterable[Entry],
    live: Sequence[LiveRow],
    dead: Sequence[DeadRow],
    effects: Sequence[Effect],
    *,
    converged_at_ns: int | None = None,
    max_crashes: int = 5,
) -> list[str]:
    """Return what must not have happened, one sentence each, which names the task and quotes the entries.

    Args:
        entries: What was written down, in any order.
        live: The task table at the end.
        dead: The dead-task table at the end.
        effects: The rows that runs wrote inside `ctx.complete`.
        converged_at_ns: When nodes had done all that was due, disturbed by nothing; no row may be left that was
            due then.
        max_crashes: The engines' own.
    """
    history = History(entries, live, dead, effects)
    found = list(history.strays)
    for task in history.tasks.values():
        found += _unasked(task)
        found += _unanswered(task)
        found += _uncaused(history, task)
        found += _too_early(history, task)
        found += _wrong_deaths(history, task, max_crashes)
        found += _wrong_effects(history, task)
        found += _torn_apart(history, task)
        if task.live is not None and converged_at_ns is not None and task.live.due_ns <= converged_at_ns:
            found.append(f"{task.name}: is left {task.live.state}, though it was due at {task.live.due_ns}")
    found += _overlaps(history)
    return found


def _unasked(task: TaskHistory) -> Iterator[str]:
    """Nothing comes from nowhere: a task that runs or has a row was asked for before."""
    first_ns = min((request.asked.at_ns for request in task.requests), default=None)
    for run in task.runs:
        if first_ns is None or run.begun.at_ns < first_ns:
            yield f"{task.name}: ran before anybody asked for it, or what asked for it was dropped: {run}"
            return
    if first_ns is None and (task.live or task.dead):
        yield f"{task.name}: has a row, but nobody asked for it, or what asked for it was dropped"


def _unanswered(task: TaskHistory) -> Iterator[str]:
    """Every request that was accepted is done by a run that began after it, or the task is live, or died since."""
    if task.live is not None:
        return
    last_done_ns = max((run.begun.at_ns for run in task.runs if run.may_be_done), default=-1)
    last_begun_ns = max((run.begun.at_ns for run in task.runs), default=-1)
    for request in task.requests:
        asked_ns = request.asked.at_ns
        if request.accepted is None or last_done_ns >= asked_ns:
            continue
        deaths = {row.reason for row in task.dead if row.died_at_ns >= asked_ns}
        if not deaths:
            runs = "".join(map(str, task.runs)) or "it never ran"
            yield f"{task.name}: is not done since {request.asked}{request.accepted}, nor live, nor dead: {runs}"
        elif deaths <= {"exhausted", "discarded"} and last_begun_ns < asked_ns:
            yield f"{task.name}: died as {min(deaths)} and no run has seen {request.asked}{request.accepted}"


def _uncaused(history: History, task: TaskHistory) -> Iterator[str]:
    """A task runs again only for a reason, and its attempts are those that the rules give for it."""
    previous_ns = -1
    for position, run in enumerate(task.runs):
        if position == 0:
            allowed = {0}
        else:
            before = task.runs[position - 1]
            requests = task.requests_within(previous_ns, run.begun.at_ns)
            requested = requests > (1 if position == 1 else 0)
            allowed = _next_attempts(history, before, run, requested)
            previous_ns = before.begun.at_ns
        if not allowed:
            before = task.runs[position - 1]
            yield f"{task.name}: ran again though it was done and nobody asked: {before}, then {run}"
        elif run.begun.attempts not in allowed and run.sure:
            after = f" after {task.runs[position - 1]}" if position else ""
            yield f"{task.name}: has {run.begun.attempts} attempts, not {_either(allowed)}, in {run}{after}"


def _next_attempts(history: History, before: Run, run: Run, requested: bool) -> set[int]:
    """Return the attempts that a run may have after the one before it; none: it should not be."""
    attempts = before.begun.attempts
    allowed = {0} if requested else set()
    if before.came is None or history.may_be_lost(before, run.begun.at_ns):
        allowed.add(attempts)
    match before.came:
        case Came.FAILED:
            allowed.add(attempts + 1)
        case Came.OUTAGE | Came.DEFERRED | Came.STALE:
            allowed.add(attempts)
        case Came.RESCHEDULED:
            allowed.add(0)
    return allowed


def _too_early(history: History, task: TaskHistory) -> Iterator[str]:
    """No run begins before it is due: not before, backoff, and what pull-ins made of them."""
    previous_ns = -1
    for position, run in enumerate(task.runs):
        begun_ns = run.begun.at_ns
        pulled = [each.asked.due_ns or 0 for each in task.pulled if each.may_be_within(previous_ns, begun_ns)]
        if position == 0:
            dues = [request.asked.due_ns or 0 for request in task.requests if request.asked.at_ns <= begun_ns]
            because = ""
        else:
            before = task.runs[position - 1]
            renewed = before.came in COMMITTING and task.requests_within(previous_ns, begun_ns) > (position == 1)
            died = task.died_within(before.begun.at_ns, begun_ns)
            excused = renewed or died or history.may_be_lost(before, begun_ns)
            known = before.ended is not None and before.ended.due_ns is not None
            dues = [before.ended.due_ns or 0] if known and before.ended is not None and not excused else []
            because = f" after {before}"
            previous_ns = before.begun.at_ns
        if dues and begun_ns < min(dues + pulled) and run.sure:
            yield f"{task.name}: began before {min(dues + pulled)}, when it was due{because}: {run}"


def _wrong_deaths(history: History, task: TaskHistory, max_crashes: int) -> Iterator[str]:
    """A task is dead only for a reason that is true."""
    asked = [request.asked for request in task.requests]
    limits = [entry.max_attempts for entry in asked if entry.max_attempts is not None]
    expiries = [entry.expires_ns for entry in asked if entry.expires_ns is not None]
    for row in task.dead:
        match row.reason:
            case "exhausted":
                failures = sum(run.came == Came.FAILED for run in task.runs)
                if row.attempts not in limits or failures < row.attempts:
                    yield f"{task.name}: died as exhausted at {row.attempts} attempts, but failed {failures} times"
            case "expired":
                if not expiries or row.died_at_ns < min(expiries):
                    yield f"{task.name}: died as expired at {row.died_at_ns}, but lives until {expiries or 'ever'}"
            case "discarded":
                if not any(run.came == Came.DISCARDED for run in task.runs):
                    yield f"{task.name}: died as discarded, but no handler did that"
            case "cancelled":
                if not task.cancelled:
                    yield f"{task.name}: died as cancelled, but nobody did that"
            case "crashed":
                alone = sum(
                    _may_have_crashed_alone(history, task, node) for node in {*history.killed, *history.lapses}
                )
                if alone < max_crashes:
                    yield f"{task.name}: died as crashed, but may have run alone in {alone} crashes only"
            case _:
                yield f"{task.name}: died as {row.reason}, which it cannot have deserved"


def _may_have_crashed_alone(history: History, task: TaskHistory, node: str) -> bool:
    """Return whether a node that is gone may have run this task and no other when it went."""
    ends = [since_ns for since_ns, _ in history.lapses.get(node, ())]
    if node in history.killed:
        ends.append(history.killed[node].at_ns)
    others = [run for run in history.runs if run.begun.node == node and run.begun.task != task.name]
    return any(
        not any(run.begun.at_ns <= end_ns and (run.ended is None or run.ended.at_ns > end_ns) for run in others)
        for end_ns in ends
    )


def _wrong_effects(history: History, task: TaskHistory) -> Iterator[str]:
    """What is committed with `ctx.complete` is committed once: never twice, never by a run that was refused."""
    for run in task.runs:
        if run.effects > 1:
            yield f"{task.name}: one run had {run.effects} effects: {run}"
        if run.effects and run.ended is not None and not run.ended.completed:
            yield f"{task.name}: a run had an effect, but not by ctx.complete: {run}"
        if not run.effects and run.ended is not None and run.ended.completed:
            yield f"{task.name}: the effect of a completed run is missing: {run}"
    done = [run for run in task.runs if run.effects and run.may_be_done]
    most = _most_lives(history, task)
    if len(done) > most:
        yield f"{task.name}: was done {len(done)} times for {most} requests: {'; '.join(map(str, done))}"


def _most_lives(history: History, task: TaskHistory, above: frozenset[str] = frozenset()) -> int:
    """Return how often the task may have been done: once for each request, and for what its parents committed."""
    lives = 0
    wished: dict[str, int] = defaultdict(int)
    for request in task.requests:
        if request.parent is None:
            lives += 1
        else:
            wished[request.parent.begun.task] += 1
    for name, count in wished.items():
        parent = history.tasks[name]
        endless = parent.repeats or name in above
        lives += count if endless else min(count, _most_lives(history, parent, above | {task.name}))
    return lives


def _torn_apart(history: History, task: TaskHistory) -> Iterator[str]:
    """A task that is done has committed what its runs asked for with their outcomes."""
    done = [run for run in task.runs if run.may_be_done]
    if task.live or task.dead or not done:
        return
    for name in set.intersection(*({entry.task for entry in run.buffered} for run in done)):
        follower = history.tasks[name]
        if not (follower.runs or follower.live or follower.dead):
            yield f"{name}: never came to be, though {task.name} is done and asked for it: {done[-1]}"


def _overlaps(history: History) -> Iterator[str]:
    """Runs of one task, and of tasks of one group, never overlap, on one node or many."""
    occupied: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in history.runs:
        occupied["task", run.begun.task].append(run)
        if run.begun.group:
            occupied["group", run.begun.group].append(run)
    told: set[tuple[str, str]] = set()
    for (of, name), runs in occupied.items():
        longest = runs[0]
        for before, run in pairwise(runs):
            longest = max(longest, before, key=lambda each: each.held_until_ns)
            pair = (longest.begun.ref, run.begun.ref)
            if run.sure and longest.held_until_ns > run.begun.at_ns and pair not in told:
                told.add(pair)
                yield f"{run.begun.task}: began while {of} {name} was occupied: {longest}, then {run}"


def _either(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))
