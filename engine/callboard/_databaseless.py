"""An engine without a database, for whoever only asks what plugins bring."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from callboard._engine import Engine
from callboard._kinds import TaskKind
from callboard._plugins import BLOCK_VARIABLE, PluginHealth
from callboard.errors import PluginError

_NOWHERE = f"sqlite:///{os.devnull}"  # which can be neither made nor opened


def databaseless(plugins: Sequence[Any] | None = None) -> Engine:
    """Return an engine that has loaded these plugins, or all that are installed, and can do nothing else.

    Raises:
        PluginError: a plugin asked for by name is not installed.
    """
    engine = Engine(_NOWHERE, execute=False, plugins=plugins)
    engine.load_plugins()
    return engine


def brought_by(plugin: Any) -> tuple[dict[str, TaskKind[Any]], PluginHealth]:
    """Return the kinds that one plugin brings, by name, and what became of it.

    Raises:
        PluginError: it is asked for by name and not installed, or it is blocked.
    """
    engine = databaseless([plugin])
    [health] = engine.health().plugins
    if health.blocked:
        raise PluginError(f"plugin {health.name!r} is blocked by {BLOCK_VARIABLE}; take it out of that variable")
    return {kind.name: kind for kind, _ in engine._core.registry}, health
