"""Callboard: an embeddable, durable task engine on an actor model.

What is named here is the public API; modules whose names begin with an underscore are not. Where to begin:

* A host makes an `Engine` (`help(Engine.__init__)` tells its arguments) and calls `Engine.enqueue`.
* A plugin returns `TaskKind`s. A handler gets a `TaskContext` and returns `Done`, `RescheduleAt`, `Defer` or
  `Discard`, or raises. The hooks are in `callboard.hookspec`, their reference.
* Tests move a `callboard.testing.FakeClock`.
* For another database somebody writes a store: `callboard.stores`.
* `Engine.health`, `Engine.tasks` and `Engine.dead_tasks` tell what goes on; the log (loguru's) is silent until
  `logger.enable("callboard")`.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callboard._public import *  # noqa: F403 - its `__all__` names them
    from callboard._public import __all__ as __all__

_MODULES = frozenset({"cli", "errors", "events", "hookspec", "stores", "testing", "wire"})

if not TYPE_CHECKING:  # a type checker that sees it would take any name for one of ours

    def __getattr__(name):
        """Import what is public when somebody asks: `callboard --help` need not wait for an engine."""
        if name in _MODULES:  # before `_public`, which may be what is being imported
            return _import_module(f"callboard.{name}")
        if name == "__all__" or not name.startswith("_"):
            public = _import_module("callboard._public")
            if name == "__all__" or name in public.__all__:
                return globals().setdefault(name, getattr(public, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        """Return what there is, asked for or not."""
        return sorted({*globals(), *_MODULES, *__getattr__("__all__")})
