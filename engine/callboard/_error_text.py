"""Errors as text: for the log, and for a column."""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

_HEADER = "Traceback (most recent call last):\n"
_MOST_STACKS = 256

_Place = tuple[str, CodeType, int, int]
_stacks: dict[tuple[_Place, ...], str] = {}
"""The text of each stack that was seen lately: when a service is away, thousands fail in one place.

To write it anew each time was two thirds of what a failed attempt costs.
"""


def trace_of(error: BaseException) -> str:
    """Return an error's traceback. Loguru's own shows the values in it, group ids and payloads among them."""
    trace = error.__traceback__
    has_context = error.__context__ is not None and not error.__suppress_context__
    if trace is None or has_context or error.__cause__ is not None or isinstance(error, BaseExceptionGroup):
        return "".join(traceback.format_exception(error))
    told = traceback.TracebackException(type(error), error, trace, limit=0)  # `trace` is for "Did you mean"
    return "".join((_HEADER, _stack(trace), *told.format_exception_only()))


def _stack(trace: TracebackType) -> str:
    places: list[_Place] = []
    frame: TracebackType | None = trace
    while frame is not None:
        code = frame.tb_frame.f_code
        places.append((code.co_filename, code, frame.tb_lasti, frame.tb_lineno))  # equal code may be in two files
        frame = frame.tb_next
    key = tuple(places)
    text = _stacks.get(key)
    if text is None:
        if len(_stacks) >= _MOST_STACKS:
            _stacks.clear()
        text = _stacks[key] = "".join(traceback.format_tb(trace))
    return text


def storable(text: str) -> str:
    """Return text in which what no database takes, such as half a surrogate pair, is written out."""
    return text.encode(errors="backslashreplace").decode()
