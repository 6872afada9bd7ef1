"""Errors as text: for the log, and for a column."""

from __future__ import annotations

import traceback


def trace_of(error: BaseException) -> str:
    """Return an error's traceback. Loguru's own shows the values in it, group ids and payloads among them."""
    return "".join(traceback.format_exception(error))


def storable(text: str) -> str:
    """Return text in which what no database takes, such as half a surrogate pair, is written out."""
    return text.encode(errors="backslashreplace").decode()
