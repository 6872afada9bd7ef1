"""Show where a thread is, for whoever asks why something does not return."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from types import FrameType

_frame_lock = threading.Lock()


def _forked() -> None:
    global _frame_lock
    _frame_lock = threading.Lock()  # a thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def stack_of(thread_id: int | None) -> str:
    """Return the stack of a thread; empty where there is none."""
    frame = None if thread_id is None else _frame(thread_id)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def _frame(thread_id: int) -> FrameType | None:
    """Return where a thread is. The collector rests meanwhile: Python 3.11 deadlocks otherwise (gh-106883)."""
    with _frame_lock:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread_id)
        finally:
            if collecting:
                gc.enable()
