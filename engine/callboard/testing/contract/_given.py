"""What a plugin's author tells the contract suite: on what to run the handlers, and where their effects are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from callboard._engine import Engine
from callboard.events import InstallationAdded
from callboard.testing._clock import FakeClock

BEGINS_AT_NS = FakeClock().now_ns()


class Given:
    """The surroundings in which a plugin is checked. Everything has a default; a subclass overrides what it needs.

    Methods are called in processes of their own, which are killed: what is to outlive one must be in the engine's
    database or in `folder`. Each case begins with a copy of the folder as `prepare` left it.

    Attributes:
        plugin: the name of the plugin's entry point; or a module or object, if it has none yet.
        pins: the file that `callboard pins write` wrote; `pins/NAME.json` in pytest's root directory by default.
        begins_at_ns: where the clock stands at first, in nanoseconds since the epoch.
        volatile: columns of tables of the plugin's or the host's, as `table.column`, that need not be the same
            after each run, such as times.
        waived: promises that this plugin does not make, each with the reason; `promise` for all kinds, or
            `promise:kind`. The suite skips them with that reason.
    """

    plugin: Any = ""
    pins: Path | str | None = None
    begins_at_ns: int = BEGINS_AT_NS
    volatile: Collection[str] = ()
    waived: Mapping[str, str] = MappingProxyType({})

    def samples(self) -> Sequence[Message]:
        """Return messages whose tasks can be done in these surroundings, at best one for each way of a handler.

        For a kind without one the suite makes a message with each field set, on which the handler may do little.
        """
        return ()

    def services(self, folder: Path, clock: FakeClock) -> Mapping[type[Any], Any]:
        """Return what the handlers need, as `Engine(services=...)` takes it; called once in each process.

        Args:
            folder: where to keep what a crash must not take, such as a server's state.
            clock: the engine's clock.
        """
        return {}

    def prepare(self, engine: Engine, folder: Path) -> None:
        """Make what the samples are about: tables, groups, accounts. Called once, on a new database."""

    def effects(self, engine: Engine, folder: Path) -> Any:
        """Return what handlers did outside of the database, as values that can be compared and pickled.

        Tables, groups, live and dead tasks are compared anyway.
        """
        return None

    def events(self, engine: Engine, folder: Path) -> None:
        """Have happen what the plugin's event hooks react to: call `engine.group(...)`, `engine.publish(...)`.

        By default one group is created, changed and left, and an installation is announced.
        """
        group = engine.group(b"contract")
        group.created("ann", members=["ann", "bob"], super_admins=["ann"], consent="allowed")
        group.active()
        group.leave_requested("bob", b"\x01")
        group.membership_changed(added=["cem"], promoted=["cem"])
        engine.publish(InstallationAdded("bob", b"\x02"))

    def lose_group(self, engine: Engine, folder: Path, group_id: bytes) -> None:
        """Have the services know nothing of a group; the engine's rows of it are gone already."""
