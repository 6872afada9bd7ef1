"""One set of tests that every store passes: subclass `StoreContract` in a test module, and give it `make_store`.

It needs pytest and Hypothesis, which `pip install 'callboard[testing]'` brings.
"""

from __future__ import annotations

try:
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
except ImportError as error:
    raise ImportError(
        "the store contract needs pytest and Hypothesis: pip install 'callboard[testing]'"
    ) from error

from callboard.testing.store_contract._accepting import AcceptingTests
from callboard.testing.store_contract._claiming import ClaimingTests
from callboard.testing.store_contract._deferring import DeferringTests
from callboard.testing.store_contract._ending import EndingTests
from callboard.testing.store_contract._enqueueing import EnqueueingTests
from callboard.testing.store_contract._groups import GroupsTests
from callboard.testing.store_contract._machine import MachineTests
from callboard.testing.store_contract._nodes import NodesTests
from callboard.testing.store_contract._opening import OpeningTests
from callboard.testing.store_contract._plugin_tables import PluginTablesTests
from callboard.testing.store_contract._steps import MakeStore

__all__ = ["MakeStore", "StoreContract"]


class StoreContract(
    OpeningTests,
    EnqueueingTests,
    AcceptingTests,
    ClaimingTests,
    EndingTests,
    DeferringTests,
    NodesTests,
    GroupsTests,
    PluginTablesTests,
    MachineTests,
):
    """Whatever the engine relies on. A subclass overrides the fixture `make_store`.

    Attributes:
        mark: how the store's driver writes a parameter into a statement, such as `?` or `%s`.
        examples: how many sequences of steps its property test makes up; the same ones in each run.
        tells_ended_processes: whether the store can tell, before the lease is over, that a process has ended.
        gives_hints: whether the store's `watching` tells of others' commits.
    """
