"""What an idle engine does first when it hears of something: claim, where the last task could begin at once."""

from collections.abc import Callable
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

    def watch(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in STEPS:
            monkeypatch.setattr(engine._core.store.tasks, name, self._noting(engine, name))

    def _noting(self, engine: Engine, name: str) -> Callable[..., Any]:
        step: Callable[..., Any] = getattr(engine._core.store.tasks, name)

        def noting(*args: Any, **options: Any) -> Any:
            self.append(name)
            return step(*args, **options)

        return noting

    def first_of(self, enqueue: Callable[[], object]) -> str:
        """Return the first step after `enqueue`, once the task has ended and nothing else is left to do."""
        self.clear()
        enqueue()
        eventually(lambda: self[-1:] == ["settle"])
        return self[0]


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_a_task_is_claimed_unseen_where_the_last_one_could_begin_at_once(
    make_engine: MakeEngine, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(Plugin(receipts(lambda message, ctx: None)))
    steps.watch(engine, monkeypatch)
    with engine:
        assert engine.wait_idle(20)

        assert steps.first_of(lambda: engine.enqueue(receipt("first"))) == "heads"
        assert steps.first_of(lambda: engine.enqueue(receipt("second"))) == "due"
        assert steps.first_of(lambda: engine.enqueue(receipt("third", b"group"))) == "due"


def test_a_wrong_guess_is_made_good_at_once_and_not_made_again(
    make_engine: MakeEngine, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(Plugin(receipts(lambda message, ctx: None)))
    steps.watch(engine, monkeypatch)
    with engine:
        assert engine.wait_idle(20)
        steps.first_of(lambda: engine.enqueue(receipt("first")))

        steps.clear()
        engine.enqueue(receipt("later"), not_before=timedelta(hours=1))
        eventually(lambda: steps == ["due", "heads"])
        assert steps.first_of(lambda: engine.enqueue(receipt("second"))) == "heads"


def test_a_task_of_a_limited_kind_is_not_guessed(
    make_engine: MakeEngine, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(Plugin(receipts(lambda message, ctx: None, concurrency=1)))
    steps.watch(engine, monkeypatch)
    with engine:
        assert engine.wait_idle(20)
        steps.first_of(lambda: engine.enqueue(receipt("first")))

        assert steps.first_of(lambda: engine.enqueue(receipt("second"))) == "heads"


def test_what_a_host_commits_is_merged_before_anything_is_claimed(
    make_engine: MakeEngine, postgres_url: str, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(Plugin(receipts(lambda message, ctx: None)), database=postgres_url)
    steps.watch(engine, monkeypatch)

    def commit() -> None:
        with psycopg.connect(postgres_url) as connection:
            engine.enqueue(receipt("a host's"), connection=connection)

    with engine:
        assert engine.wait_idle(20)
        steps.first_of(commit)

        assert steps.first_of(commit) == "heads"
        assert steps[1] == "merge_accepted"
