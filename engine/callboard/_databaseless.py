"""An engine without a database, for whoever only asks what plugins bring."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from callboard._engine import Engine

_NOWHERE = f"sqlite:///{os.devnull}"  # which can be neither made nor opened


def databaseless(plugins: Sequence[Any] | None = None) -> Engine:
    """Return an engine that has loaded these plugins, or all that are installed, and can do nothing else.

    Raises:
        PluginError: a plugin asked for by name is not installed.
    """
    engine = Engine(_NOWHERE, execute=False, plugins=plugins)
    engine.load_plugins()
    return engine
