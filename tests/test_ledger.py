"""The ledger can fail: each of its checks catches a made-up wrong, and none minds a history that is right."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.ledger import Came, DeadRow, Effect, Entry, LiveRow, What, violations


class Book:
    """A history that a test makes up, one step of time for each entry."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.live: list[LiveRow] = []
        self.dead: list[DeadRow] = []
        self.effects: list[Effect] = []
        self.options: dict[str, Any] = {}

    @property
    def now(self) -> int:
        return len(self.entries)

    def note(self, what: What, node: str = "n1", **fields: Any) -> None:
        self.entries.append(Entry(self.now, node, what, **fields))

    def ask(self, task: str, *, accepted: bool = True, **fields: Any) -> None:
        ref = f"q{self.now}"
        self.note(What.ASKED, "host", task=task, ref=ref, **fields)
        if accepted:
            self.note(What.ACCEPTED, "host", task=task, ref=ref)

    def pull(self, task: str, due_ns: int) -> None:
        ref = f"p{self.now}"
        self.note(What.PULLED, "host", task=task, ref=ref, due_ns=due_ns)
        self.note(What.ACCEPTED, "host", task=task, ref=ref)

    def begin(self, task: str, node: str = "n1", **fields: Any) -> str:
        ref = f"{node}/{self.now}"
        self.note(What.BEGUN, node, task=task, ref=ref, **fields)
        return ref

    def end(self, ref: str, came: Came = Came.DONE, **fields: Any) -> None:
        node, _, position = ref.partition("/")
        task = self.entries[int(position)].task
        self.note(What.ENDED, node, task=task, ref=ref, came=came, **fields)
        if fields.get("completed"):
            self.effects.append(Effect(task, ref))

    def buffer(self, ref: str, task: str) -> None:
        self.note(What.BUFFERED, ref.partition("/")[0], task=task, ref=ref)

    def run(self, task: str, came: Came = Came.DONE, node: str = "n1", attempts: int = 0, **fields: Any) -> None:
        self.end(self.begin(task, node, attempts=attempts), came, **fields)

    def violations(self) -> list[str]:
        return violations(self.entries, self.live, self.dead, self.effects, **self.options)


Story = Callable[[Book], None]


def clean_one_by_one(book: Book) -> None:
    book.ask("a")
    book.run("a")
    book.ask("a")
    book.run("a", completed=True)


def clean_never_answered(book: Book) -> None:
    book.ask("a", accepted=False)
    book.note(What.KILLED, "host")


def clean_never_answered_but_committed(book: Book) -> None:
    book.ask("a", accepted=False)
    book.note(What.KILLED, "host")
    book.run("a", completed=True)


def clean_failures(book: Book) -> None:
    book.ask("a", max_attempts=3)
    book.run("a", Came.FAILED)
    book.run("a", Came.OUTAGE, attempts=1)
    book.run("a", Came.FAILED, attempts=1, due_ns=book.now + 50)
    book.pull("a", due_ns=0)
    book.run("a", Came.FAILED, attempts=2)
    book.dead.append(DeadRow("a", "exhausted", 3, book.now))


def clean_kills(book: Book) -> None:
    book.ask("a")
    book.begin("a", group="g")
    book.note(What.KILLED)
    book.run("a", Came.FAILED, "n2", due_ns=100)
    book.note(What.KILLED, "n2")  # before the failure was committed
    book.run("a", node="n3", completed=True)
    book.note(What.KILLED, "n3")


def clean_killed_after_complete(book: Book) -> None:
    book.ask("a")
    book.effects.append(Effect("a", book.begin("a")))
    book.note(What.KILLED)


def clean_lapse(book: Book) -> None:
    """A stopped node's run goes on beside its successor, and is refused."""
    book.ask("a")
    stopped = book.begin("a", group="g")
    book.note(What.LAPSED)
    book.run("a", node="n2", completed=True)
    book.note(What.RESUMED)
    book.end(stopped, Came.STALE)


def clean_rerun(book: Book) -> None:
    """Asked for twice during one run, it runs once more, with a fresh life."""
    book.ask("a")
    book.run("a", Came.FAILED)
    ref = book.begin("a", attempts=1)
    book.ask("a")
    book.ask("a")
    book.end(ref, completed=True)
    book.run("a", completed=True)


def clean_recurring(book: Book) -> None:
    book.ask("a")
    for _ in range(3):
        book.run("a", Came.RESCHEDULED, completed=True, due_ns=book.now + 1)
    book.live.append(LiveRow("a", "pending", 1_000))
    book.options["converged_at_ns"] = book.now


def clean_followers(book: Book) -> None:
    book.ask("a")
    failing = book.begin("a")
    book.buffer(failing, "b")
    book.end(failing, Came.FAILED)
    ref = book.begin("a", attempts=1)
    book.buffer(ref, "b")
    book.end(ref)
    book.run("b", completed=True)


def clean_deaths(book: Book) -> None:
    book.ask("old", expires_ns=1)
    book.dead.append(DeadRow("old", "expired", 0, book.now))
    book.ask("old", expires_ns=50)
    book.run("old")
    book.ask("unwanted")
    book.run("unwanted", Came.DISCARDED)
    book.dead.append(DeadRow("unwanted", "discarded", 0, book.now))
    book.ask("stopped")
    book.note(What.CANCELLED, "host", task="stopped")
    book.dead.append(DeadRow("stopped", "cancelled", 0, book.now))


def clean_crashes(book: Book) -> None:
    book.options["max_crashes"] = 2
    book.ask("a")
    for node in ("n1", "n2"):
        book.begin("a", node)
        book.note(What.KILLED, node)
    book.dead.append(DeadRow("a", "crashed", 0, book.now))


def clean_group(book: Book) -> None:
    """Grouped runs one after the other; loose ones, and other groups', beside them."""
    for task in "abcd":
        book.ask(task)
    first = book.begin("a", group="g")
    beside = [book.begin("c", "n2", group="h"), book.begin("d", "n2")]
    book.end(first)
    book.end(book.begin("b", "n2", group="g"))
    for ref in beside:
        book.end(ref)


def clean_completed_before_it_returns(book: Book) -> None:
    """What commits with `ctx.complete` gives its group free, to other nodes, before its handler has returned."""
    book.ask("a")
    book.ask("b")
    first = book.begin("a", group="g")
    book.note(What.COMPLETING, task="a", ref=first)
    second = book.begin("b", "n2", group="g")
    book.end(first, completed=True)
    book.end(second)


@pytest.mark.parametrize(
    "story", [story for name, story in sorted(globals().items()) if name.startswith("clean_")]
)
def test_a_history_that_is_right_has_no_violations(story: Story) -> None:
    story(book := Book())
    assert book.violations() == []


def wrong_lost(book: Book) -> str:
    book.ask("a")
    return "a: is not done since [0 host asked q0][1 host accepted q0], nor live, nor dead: it never ran"


def wrong_lost_in_a_kill(book: Book) -> str:
    book.ask("a")
    book.begin("a")
    book.note(What.KILLED)
    return "nor dead: [2 n1 begun n1/2][no end]"


def wrong_failed_and_gone(book: Book) -> str:
    book.ask("a")
    book.run("a", Came.FAILED)
    return "a: is not done since"


def wrong_request_swallowed(book: Book) -> str:
    book.ask("a")
    ref = book.begin("a")
    book.ask("a")
    book.end(ref)
    return "a: is not done since [3 host asked q3]"


def wrong_request_swallowed_by_a_death(book: Book) -> str:
    book.ask("a", max_attempts=1)
    ref = book.begin("a")
    book.ask("a", max_attempts=1)
    book.end(ref, Came.FAILED)
    book.dead.append(DeadRow("a", "exhausted", 1, book.now))
    return "a: died as exhausted and no run has seen [3 host asked q3]"


def wrong_from_nowhere(book: Book) -> str:
    book.run("a")
    return "a: ran before anybody asked for it"


def wrong_row_from_nowhere(book: Book) -> str:
    book.live.append(LiveRow("a", "pending", 0))
    return "a: has a row, but nobody asked for it"


def wrong_follower_of_a_failure(book: Book) -> str:
    book.ask("a", max_attempts=1)
    ref = book.begin("a")
    book.buffer(ref, "b")
    book.end(ref, Came.FAILED)
    book.dead.append(DeadRow("a", "exhausted", 1, book.now))
    book.run("b")
    return "b: ran before anybody asked for it, or what asked for it was dropped"


def wrong_follower_lost(book: Book) -> str:
    book.ask("a")
    ref = book.begin("a")
    book.buffer(ref, "b")
    book.end(ref)
    return "b: never came to be, though a is done and asked for it"


def wrong_follower_twice(book: Book) -> str:
    """Two runs asked for it, but only one of them can have been committed."""
    book.ask("a")
    for node in ("n1", "n2"):
        ref = book.begin("a", node)
        book.buffer(ref, "b")
        book.end(ref)
        book.note(What.KILLED, node)
        book.run("b", node="n3", completed=True)
    return "b: was done 2 times for 1 requests"


def wrong_again(book: Book) -> str:
    book.ask("a")
    book.run("a")
    book.run("a")
    return "a: ran again though it was done and nobody asked"


def wrong_attempts_lost(book: Book) -> str:
    book.ask("a")
    book.run("a", Came.FAILED)
    book.run("a", attempts=0)
    return "a: has 0 attempts, not 1, in"


def wrong_attempts_counted(book: Book) -> str:
    book.ask("a")
    book.run("a", Came.OUTAGE)
    book.run("a", attempts=1)
    return "a: has 1 attempts, not 0, in"


def wrong_attempts_counted_in_a_kill(book: Book) -> str:
    book.ask("a")
    book.begin("a")
    book.note(What.KILLED)
    book.run("a", node="n2", attempts=1)
    return "a: has 1 attempts, not 0, in"


def wrong_attempts_kept(book: Book) -> str:
    book.ask("a")
    book.run("a", Came.FAILED)
    book.run("a", Came.RESCHEDULED, attempts=1)
    book.run("a", attempts=1)
    return "a: has 1 attempts, not 0, in"


def wrong_start_too_early(book: Book) -> str:
    book.ask("a", due_ns=50)
    book.run("a")
    return "a: began before 50, when it was due: [2 n1 begun n1/2]"


def wrong_backoff(book: Book) -> str:
    """A request cuts no backoff short."""
    book.ask("a")
    book.run("a", Came.FAILED, due_ns=50)
    book.ask("a")
    book.run("a", attempts=1)
    return "a: began before 50, when it was due after"


def wrong_pull_in(book: Book) -> str:
    book.ask("a", due_ns=50)
    book.pull("a", due_ns=20)
    book.run("a")
    return "a: began before 20"


def wrong_pull_in_before(book: Book) -> str:
    """It was answered before the run that set the deadline."""
    book.ask("a")
    book.pull("a", due_ns=0)
    book.run("a", Came.RESCHEDULED)
    book.run("a", Came.DEFERRED, due_ns=50)
    book.run("a")
    return "a: began before 50"


def wrong_exhausted(book: Book) -> str:
    book.ask("a", max_attempts=2)
    book.run("a", Came.FAILED)
    book.dead.append(DeadRow("a", "exhausted", 1, book.now))
    return "a: died as exhausted at 1 attempts, but failed 1 times"


def wrong_exhausted_by_kills(book: Book) -> str:
    book.ask("a", max_attempts=1)
    book.begin("a")
    book.note(What.KILLED)
    book.dead.append(DeadRow("a", "exhausted", 1, book.now))
    return "a: died as exhausted at 1 attempts, but failed 0 times"


def wrong_expired(book: Book) -> str:
    book.ask("a", expires_ns=50)
    book.dead.append(DeadRow("a", "expired", 0, book.now))
    return "a: died as expired at 2, but lives until [50]"


def wrong_expired_recurring(book: Book) -> str:
    book.ask("a")
    book.dead.append(DeadRow("a", "expired", 0, book.now))
    return "a: died as expired at 2, but lives until ever"


def wrong_discarded(book: Book) -> str:
    book.ask("a")
    book.run("a")
    book.dead.append(DeadRow("a", "discarded", 0, book.now))
    return "a: died as discarded, but no handler did that"


def wrong_cancelled(book: Book) -> str:
    book.ask("a")
    book.dead.append(DeadRow("a", "cancelled", 0, book.now))
    return "a: died as cancelled, but nobody did that"


def wrong_malformed(book: Book) -> str:
    book.ask("a")
    book.dead.append(DeadRow("a", "malformed", 0, book.now))
    return "a: died as malformed, which it cannot have deserved"


def wrong_crashed(book: Book) -> str:
    """At one of the two crashes another task ran beside it."""
    book.options["max_crashes"] = 2
    book.ask("a")
    book.ask("b")
    book.begin("a", "n1")
    book.note(What.KILLED, "n1")
    book.begin("a", "n2")
    book.begin("b", "n2")
    book.note(What.KILLED, "n2")
    book.run("b", node="n3")
    book.dead.append(DeadRow("a", "crashed", 0, book.now))
    return "a: died as crashed, but may have run alone in 1 crashes only"


def wrong_effect_twice(book: Book) -> str:
    book.ask("a")
    book.run("a", completed=True)
    book.note(What.KILLED)
    book.run("a", node="n2", completed=True)
    return "a: was done 2 times for 1 requests"


def wrong_effect_twice_in_one_run(book: Book) -> str:
    book.ask("a")
    book.run("a", completed=True)
    book.effects *= 2
    return "a: one run had 2 effects"


def wrong_effect_of_a_refused_run(book: Book) -> str:
    book.ask("a")
    ref = book.begin("a")
    book.effects.append(Effect("a", ref))
    book.note(What.LAPSED)
    book.note(What.RESUMED)
    book.end(ref, Came.STALE)
    book.run("a", node="n2", completed=True)
    return "a: a run had an effect, but not by ctx.complete"


def wrong_effect_missing(book: Book) -> str:
    book.ask("a")
    book.run("a", completed=True)
    book.effects.clear()
    return "a: the effect of a completed run is missing"


def wrong_effect_from_nowhere(book: Book) -> str:
    book.effects.append(Effect("a", "n9/9"))
    return "a: an effect of the run n9/9, which never began"


def wrong_overlap_of_a_group(book: Book) -> str:
    book.ask("a")
    book.ask("b")
    first = book.begin("a", group="g")
    second = book.begin("b", "n2", group="g")
    book.end(first)
    book.end(second)
    return "b: began while group g was occupied: [4 n1 begun n1/4][6 n1 ended done n1/4], then [5 n2 begun n2/5]"


def wrong_overlap_before_it_completes(book: Book) -> str:
    book.ask("a")
    book.ask("b")
    first = book.begin("a", group="g")
    second = book.begin("b", "n2", group="g")
    book.note(What.COMPLETING, task="a", ref=first)
    book.end(first, completed=True)
    book.end(second)
    return "b: began while group g was occupied"


def wrong_overlap_behind_a_short_run(book: Book) -> str:
    """The long one is not the one that began last."""
    for task in "abc":
        book.ask(task)
    long = book.begin("a", group="g")
    book.note(What.LAPSED, "n2")
    book.run("b", node="n2")
    book.note(What.RESUMED, "n2")
    third = book.begin("c", group="g")
    book.end(long)
    book.end(third)
    return "c: began while group g was occupied: [6 n1 begun n1/6]"


def wrong_overlap_with_a_killed_run(book: Book) -> str:
    book.ask("a")
    book.ask("b")
    book.begin("a", group="g")
    book.run("b", node="n2")
    book.entries[-2] = book.entries[-2]._replace(group="g")
    book.note(What.KILLED)
    book.run("a", node="n2")
    return "b: began while group g was occupied"


def wrong_overlap_of_a_loose_task(book: Book) -> str:
    book.ask("a")
    first = book.begin("a")
    second = book.begin("a", "n2")
    book.end(first)
    book.end(second)
    return "a: began while task a was occupied"


def wrong_overlap_after_a_lapse(book: Book) -> str:
    """A node that has resumed is as exclusive as before."""
    book.ask("a")
    book.ask("b")
    book.note(What.LAPSED)
    book.note(What.RESUMED)
    first = book.begin("a", group="g")
    second = book.begin("b", "n2", group="g")
    book.end(first)
    book.end(second)
    return "b: began while group g was occupied"


def wrong_not_converged(book: Book) -> str:
    book.ask("a")
    book.live.append(LiveRow("a", "running", 1))
    book.options["converged_at_ns"] = book.now
    return "a: is left running, though it was due at 1"


@pytest.mark.parametrize(
    "story", [story for name, story in sorted(globals().items()) if name.startswith("wrong_")]
)
def test_each_wrong_is_found_and_told(story: Callable[[Book], str]) -> None:
    sentence = story(book := Book())
    assert any(sentence in violation for violation in book.violations()), book.violations()
