"""Threads that enqueue at the same moment share a transaction; each gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.engine.acting import WAIT_S, eventually
from tests.engine.messages import SendReceipt
from tests.engine.test_statement_counts import MakeEngine, NoOps, Statements

from callboard._store.group_commit import GroupCommit
from callboard._task import NewTask
from callboard.errors import DatabaseUnavailableError, StoreError

THREADS = 8

Insert = Callable[[Sequence[NewTask]], list[int | None]]


def task(number: int) -> NewTask:
    name = b"%d" % number
    return NewTask("kind", None, name, name, name, 20, 0, 1, 0, None, None, None, None)


class Held:
    """Eight threads, of which the first writes until it is let go, and the others wait meanwhile."""

    def __init__(self, insert_all: Insert, insert_one: Callable[[NewTask], int | None] | None = None) -> None:
        self.let_go = threading.Event()
        self.batches: list[int] = []
        self._all = insert_all
        self._one = insert_one or (lambda new: insert_all([new])[0])
        self.commits = GroupCommit(self._insert_one, self._insert_all)

    def _insert_one(self, new: NewTask) -> int | None:
        self.batches.append(1)
        if new == task(0):
            assert self.let_go.wait(WAIT_S)
        return self._one(new)

    def _insert_all(self, new: Sequence[NewTask]) -> list[int | None]:
        self.batches.append(len(new))
        return self._all(new)

    def play(self) -> list[Future[int | None]]:
        with ThreadPoolExecutor(THREADS) as pool:
            first = pool.submit(self.commits.insert, task(0))
            eventually(lambda: self.batches)
            others = [pool.submit(self.commits.insert, task(number)) for number in range(1, THREADS)]
            eventually(lambda: len(self.commits._waiting) == THREADS)
            self.let_go.set()
        return [first, *others]


def ids(new: Sequence[NewTask]) -> list[int | None]:
    return [int(each.identity) for each in new]


def test_who_waits_is_written_together_and_gets_its_own_answer() -> None:
    held = Held(ids)

    assert [future.result() for future in held.play()] == list(range(THREADS))
    assert held.batches == [1, THREADS - 1]
    assert held.commits.insert(task(9)) == 9
    assert held.batches == [1, THREADS - 1, 1]


def test_what_one_of_them_is_refused_for_is_no_others() -> None:
    def insert(new: Sequence[NewTask]) -> list[int | None]:
        if task(3) in new:
            raise StoreError("too big")
        return ids(new)

    answers = Held(insert).play()

    assert [type(future.exception()) for future in answers] == [
        StoreError if number == 3 else type(None) for number in range(THREADS)
    ]


def test_a_database_out_of_reach_is_found_so_once_for_all_who_wait() -> None:
    def refuse(new: Sequence[NewTask]) -> list[int | None]:
        raise DatabaseUnavailableError("locked")

    held = Held(refuse)
    answers = held.play()

    assert held.batches == [1, THREADS - 1]
    errors = [future.exception() for future in answers]
    assert all(type(error) is DatabaseUnavailableError and str(error) == "locked" for error in errors)
    assert len({id(error) for error in errors}) == THREADS


def test_a_thread_that_is_interrupted_leaves_the_others_their_turn() -> None:
    def interrupted(new: NewTask) -> int | None:
        raise KeyboardInterrupt

    first, *others = Held(ids, interrupted).play()

    assert isinstance(first.exception(), KeyboardInterrupt)
    assert [future.result() for future in others] == list(range(1, THREADS))


def test_a_signal_handler_may_enqueue_while_its_thread_does() -> None:
    inner: list[int | None] = []

    def insert(new: NewTask) -> int | None:
        if new == task(0) and not inner:
            inner.append(None)
            inner[0] = commits.insert(task(1))
        return int(new.identity)

    commits = GroupCommit(insert, ids)

    assert commits.insert(task(0)) == 0
    assert inner == [1]


def test_eight_threads_enqueue_in_few_transactions(make_engine: MakeEngine, tmp_path: Path) -> None:
    statements = Statements(tmp_path / "counted.db")
    engine = make_engine(NoOps(), database=statements.database)
    engine.enqueue(SendReceipt(text="first: it migrates"))
    statements.forget()
    store: Any = engine._core.store
    with ThreadPoolExecutor(THREADS) as pool, engine.transaction() as tx:
        tx.enqueue(SendReceipt(text="mine"))  # and now others wait
        answers = [pool.submit(engine.enqueue, SendReceipt(text=str(number))) for number in range(THREADS)]
        eventually(lambda: len(store._commits._waiting) == THREADS)
    counted = statements.counted()

    assert {future.result().status for future in answers} == {"inserted"}
    assert (counted["BEGIN"], counted["COMMIT"]) == (2, 2), "mine, and that of those who waited for the first"
