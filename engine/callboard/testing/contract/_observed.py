"""What a handler has around it while it is checked: services, clock and store that tell of each use."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from callboard._crash_points import reach
from callboard._store.session import SqliteSession
from callboard._store.sqlite import SqliteStore, own_database
from callboard._task import NewTask
from callboard.testing._clock import FakeClock

_SPECIAL = ("__call__", "__getitem__", "__setitem__", "__delitem__", "__len__", "__iter__", "__contains__")


class Observer(ABC):
    """Told of what a handler uses."""

    @property
    @abstractmethod
    def is_watching(self) -> bool:
        """Whether the handler that is checked is running."""

    @abstractmethod
    def calls_service(self, name: str) -> None:
        """Take note of a call that is about to be made; may raise in its place."""

    @abstractmethod
    def called_service(self, name: str) -> None:
        """Take note of a call that has been made; may raise in place of its answer."""

    @abstractmethod
    def reads_clock(self) -> None:
        """Take note that the clock is read; may set it first."""


class ObservedClock(FakeClock):
    """A clock that tells when a handler reads it."""

    observer: Observer | None = None

    def now_ns(self) -> int:
        """Return the wall clock."""
        if self.observer is not None and self.observer.is_watching:
            self.observer.reads_clock()
        return super().now_ns()


class ObservedStore(SqliteStore):
    """A file in which the moments before and after each commit of a handler's are crash points."""

    def __init__(self, path: Path, observer: Observer) -> None:
        """Keep the file at `path`."""
        # Processes are killed, the power stays on: nothing need wait for the disk.
        super().__init__(lambda: own_database(str(path), "NORMAL"), owned=True)
        self._observer = observer

    @contextmanager
    def transaction(self) -> Iterator[SqliteSession]:
        """Open a transaction."""
        outermost = self._observer.is_watching and not self.in_transaction()
        with super().transaction() as session:
            yield session
            if outermost:
                reach("contract.commit.written")
        if outermost:
            reach("contract.commit.committed")

    def insert_now(self, new: NewTask) -> int | None:
        """Write and commit a task."""
        if not self._observer.is_watching:
            return super().insert_now(new)
        reach("contract.commit.written")
        task_id = super().insert_now(new)
        reach("contract.commit.committed")
        return task_id


def observed(service: Any, observer: Observer) -> Any:
    """Return an object that is used like `service`, and tells of each call of a method."""
    has = {name for base in type(service).__mro__ for name in vars(base)}
    specials = {name: _special(service, name, observer) for name in _SPECIAL if name in has}
    return type("Observed", (_Observed,), specials)(service, observer)


class _Observed:
    """A service behind an observer; passes for one of the service's class."""

    def __init__(self, service: Any, observer: Observer) -> None:
        self.__dict__["_service"] = service
        self.__dict__["_observer"] = observer

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.__dict__["_service"])

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_service"], name)
        if not callable(found) or inspect.isclass(found):
            return found
        return _told(found, name, self.__dict__["_observer"])

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_service"], name, value)


def _special(service: Any, name: str, observer: Observer) -> Callable[..., Any]:
    told = _told(getattr(service, name), name, observer)
    return lambda _self, *args, **options: told(*args, **options)


def _told(call: Callable[..., Any], name: str, observer: Observer) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(call):

        @wraps(call)
        async def awaited(*args: Any, **options: Any) -> Any:
            if not observer.is_watching:
                return await call(*args, **options)
            observer.calls_service(name)
            answer = await call(*args, **options)
            observer.called_service(name)
            return answer

        return awaited

    def told(*args: Any, **options: Any) -> Any:
        if not observer.is_watching:
            return call(*args, **options)
        observer.calls_service(name)
        answer = call(*args, **options)
        observer.called_service(name)
        return answer

    return told
