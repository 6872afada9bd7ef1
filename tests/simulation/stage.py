"""Threads of which one runs at a time, handing over only where they say so, so that a seed can choose who is next.

They are real threads, because the engine and the database driver keep things for each thread, and a handler has to
be left standing half-way while others go on: for a time, or for ever, as a killed process leaves it.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import ClassVar


class Unwound(BaseException):
    """Clear away a thread that was left standing, once nobody looks any more."""


class _Carrier:
    """A real thread that carries one actor after another, because starting one costs more than a whole run."""

    idle: ClassVar[list[_Carrier]] = []

    def __init__(self) -> None:
        self.go = _thread.allocate_lock()
        self.go.acquire()
        self.job: Callable[[], None] = lambda: None
        threading.Thread(target=self._carry, name="simulation", daemon=True).start()

    def _carry(self) -> None:
        while True:
            self.go.acquire()
            self.job()


class Act:
    """What one thread does.

    Attributes:
        owner: the node that it belongs to, or whoever else.
        until: blocks it until this holds; None: it is ready.
        wake_ns: blocks it until this time at the latest, on the stage's clock.
        ended: whether it has come to its end.
    """

    def __init__(self, stage: Stage, name: str, owner: object, call: Callable[[], None]) -> None:
        self._stage = stage
        self.name = name
        self.owner = owner
        self._call = call
        self.until: Callable[[], bool] | None = None
        self.wake_ns: int | None = None
        self.ended = False
        self.error: BaseException | None = None
        self.carrier = _Carrier.idle.pop() if _Carrier.idle else _Carrier()
        self.carrier.job = self._run

    def is_ready(self, now_ns: int) -> bool:
        """Return whether it can go on."""
        if self.wake_ns is not None and self.wake_ns <= now_ns:
            return True
        if self.until is not None:
            return self.until()
        return self.wake_ns is None

    def _run(self) -> None:
        try:
            self._call()
        except Unwound:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        _Carrier.idle.append(self.carrier)
        self._stage.hand_back()


class Stage:
    """Who is on, and who waits."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Tell the time by `now_ns`, a monotonic clock."""
        self._now_ns = now_ns
        self._main = _thread.allocate_lock()
        self._main.acquire()
        self.acts: list[Act] = []
        self._standing: list[Act] = []
        self.current: Act | None = None
        self.over = False

    def enter(self, name: str, owner: object, call: Callable[[], None]) -> Act:
        """Have `call` begin when it is chosen."""
        act = Act(self, name, owner, call)
        self.acts.append(act)
        return act

    def resume(self, act: Act) -> None:
        """Let one go on until it hands over.

        Raises:
            BaseException: whatever got out of it.
        """
        act.until = act.wake_ns = None
        self.current = act
        act.carrier.go.release()
        self._main.acquire()
        self.current = None
        if act.ended:
            if self.over:
                return
            self.acts.remove(act)
            if act.error is not None:
                raise act.error

    def hand_back(self) -> None:
        """Let whoever resumed this one go on; called by acts."""
        self._main.release()

    def pause(self, until: Callable[[], bool] | None = None, for_ns: int | None = None) -> None:
        """Hand over, and go on when chosen again: at once, or once `until` holds or the time is up."""
        act = self.current
        if act is None:
            raise AssertionError("only what is on the stage can pause")
        act.until, act.wake_ns = until, None if for_ns is None else self._now_ns() + for_ns
        self._main.release()
        act.carrier.go.acquire()
        if self.over:
            raise Unwound

    def leave_standing(self, owner: object) -> None:
        """Never let anything of `owner` go on; does not return to whoever calls it from there."""
        self._standing += [act for act in self.acts if act.owner is owner]
        self.acts = [act for act in self.acts if act.owner is not owner]
        if self.current is not None and self.current.owner is owner:
            self.pause(lambda: False)

    def clear(self) -> None:
        """Send all that is left away, when everything has been looked at."""
        self.over = True
        for act in [*self.acts, *self._standing]:
            while not act.ended:
                self.resume(act)
