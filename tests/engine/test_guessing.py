"""What an idle engine does first when it hears of something: claim, where the last task could begin at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.acting import MakeEngine, Plugin, eventually, receipt, receipts
from tests.postgres import postgres_url, psycopg

from callboard import Engine

__all__ = ["postgres_url"]

STEPS = ("heads", "due", "due_beside", "merge_accepted", "settle")


class Steps(list[str]):
    """The store's steps that an engine takes, in their order."""

    def __init__(self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._make_engine = make_engine
        self._monkeypatch = monkeypatch

    @contextmanager
    def of_idle(self, *, concurrency: int | None = None, **options: Any) -> Iterator[Engine]:
        """Watch an engine that has started and has nothing to do."""
        kind = receipts(lambda message, ctx: None, concurrency=concurrency)
        engine = self._make_engine(Plugin(kind), **options)
        for name in STEPS:
            self._monkeypatch.setattr(engine._core.store.tasks, name, self._noting(engine, name))
        with engine:
            assert engine.wait_idle(20)
            yield engine

    def _noting(self, engine: Engine, name: str) -> Callable[..., Any]:
        step: Callable[..., Any] = getattr(engine._core.store.tasks, name)

        def noting(*args: Any, **options: Any) -> Any:
            self.append(name)
            return step(*args, **options)

        return noting

    def first_of(self, enqueue: Callable[[], object]) -> str:
        """Return the first step after `enqueue`, once the task has ended; a notification may yet follow."""
        self.clear()
        enqueue()
        eventually(lambda: "settle" in self)
        return self[0]


@pytest.fixture
def steps(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(make_engine, monkeypatch)


def test_a_task_is_claimed_unseen_where_the_last_one_could_begin_at_once(steps: Steps) -> None:
    with steps.of_idle() as engine:
        assert steps.first_of(lambda: engine.enqueue(receipt("first"))) == "heads"
        assert steps.first_of(lambda: engine.enqueue(receipt("second"))) == "due"
        assert steps.first_of(lambda: engine.enqueue(receipt("third", b"group"))) == "due"


def test_a_wrong_guess_is_made_good_at_once_and_not_made_again(steps: Steps) -> None:
    with steps.of_idle() as engine:
        steps.first_of(lambda: engine.enqueue(receipt("first")))

        steps.clear()
        engine.enqueue(receipt("later"), not_before=timedelta(hours=1))
        eventually(lambda: steps == ["due", "heads"])
        assert steps.first_of(lambda: engine.enqueue(receipt("second"))) == "heads"


def test_a_task_of_a_limited_kind_is_not_guessed(steps: Steps) -> None:
    with steps.of_idle(concurrency=1) as engine:
        steps.first_of(lambda: engine.enqueue(receipt("first")))

        assert steps.first_of(lambda: engine.enqueue(receipt("second"))) == "heads"


def test_what_a_host_commits_is_merged_before_anything_is_claimed(steps: Steps, postgres_url: str) -> None:
    with steps.of_idle(database=postgres_url) as engine:

        def commit() -> None:
            with psycopg.connect(postgres_url) as connection:
                engine.enqueue(receipt("a host's"), connection=connection)

        steps.first_of(commit)

        assert steps.first_of(commit) == "heads"
        assert next(step for step in steps if step != "heads") == "merge_accepted"
