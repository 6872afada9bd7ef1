"""Errors as text are what Python itself writes, however often one place fails."""

import traceback
from collections.abc import Callable
from functools import partial

import pytest

from callboard import _error_text
from callboard._error_text import trace_of


def raises(text: str = "it failed") -> None:
    raise ValueError(text)


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raises()


def from_another() -> None:
    try:
        raises()
    except ValueError as error:
        raise KeyError("caused") from error


def while_another() -> None:
    try:
        raises()
    except ValueError:
        raise KeyError("meanwhile")  # noqa: B904


def from_none() -> None:
    try:
        raises()
    except ValueError:
        raise KeyError("alone") from None


def with_a_note() -> None:
    error = ValueError("two\nlines")
    error.add_note("and a note")
    raise error


def of_a_misspelled_name() -> None:
    raisez()  # type: ignore[name-defined]  # noqa: F821


def of_bad_syntax() -> None:
    compile("1 +", "given.py", "exec")


def of_a_group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def of_generated_code() -> None:
    exec("\n\n1 / 0", {})


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    "fails",
    [
        raises,
        lambda: deep(20),
        from_another,
        while_another,
        from_none,
        with_a_note,
        of_a_misspelled_name,
        of_bad_syntax,
        of_a_group,
        of_generated_code,
    ],
)
def test_the_text_is_the_one_that_python_writes(fails: Callable[[], object]) -> None:
    for _ in range(2):
        error = caught(fails)
        assert trace_of(error) == "".join(traceback.format_exception(error))


def test_an_error_that_was_never_raised_has_a_text() -> None:
    assert trace_of(ValueError("here")) == "ValueError: here\n"


def test_one_place_that_is_reached_in_two_ways_has_two_stacks() -> None:
    assert trace_of(caught(lambda: deep(1))) != trace_of(caught(lambda: deep(2)))


def test_equal_code_in_two_files_has_two_stacks() -> None:
    for name in ("one.py", "two.py"):
        assert f'File "{name}", line 1' in trace_of(caught(partial(exec, compile("1 / 0", name, "exec"))))


def test_each_error_of_one_place_has_its_own_message() -> None:
    first, second = (trace_of(caught(partial(raises, text))) for text in ("one", "two"))

    assert first.endswith("ValueError: one\n")
    assert second == first.replace("one\n", "two\n")


def test_so_many_stacks_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_error_text, "_stacks", {})

    for number in range(3 * _error_text._MOST_STACKS):
        assert f"line {number + 1}, in" in trace_of(caught(partial(exec, "\n" * number + "1 / 0", {})))
    assert 0 < len(_error_text._stacks) <= _error_text._MOST_STACKS
