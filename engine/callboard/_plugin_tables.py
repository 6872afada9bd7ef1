"""The tables that an engine's plugins have of their own: migrated after the engine's, each plugin for itself.

A plugin whose tables are not what it needs is disabled in this engine: its hooks are not called, and its tasks are
left to nodes that can run them. Everything else goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from callboard import _hook_checks
from callboard._migration import Migration, series_of
from callboard._plugins import PluginHost
from callboard._store.interface import PluginTables, Store
from callboard._store.migrating import ENGINE, lacking
from callboard.errors import DatabaseUnavailableError, NotADatabaseError, PluginError, SchemaError

if TYPE_CHECKING:
    from callboard._engine import Engine

_HOOK = "callboard_migrations"


class PluginMigrator:
    """The migrations of one engine's plugins."""

    def __init__(self, host: PluginHost, store: Store) -> None:
        """Know of no migrations until `collect`."""
        self._host = host
        self._where = store.where
        self._tables = store if isinstance(store, PluginTables) else None
        self._series: dict[str, list[Migration]] = {}

    def collect(self, engine: Engine) -> None:
        """Ask each plugin for its migrations; touches no database."""
        for hook in self._host.hooks(_HOOK):
            succeeded, given = self._host.call(hook, engine=engine)
            if not succeeded:
                self._host.disable(hook.plugin)
                continue
            try:
                if migrations := list(_hook_checks.items_of(given, Migration)):
                    self._series[hook.plugin] = self._checked(hook.plugin, migrations)
            except Exception as error:
                self._host.refuse(hook.plugin, _HOOK, error)

    def _checked(self, plugin: str, migrations: list[Migration]) -> list[Migration]:
        if plugin == ENGINE:
            raise PluginError(f"a plugin named {ENGINE} can have no migrations, which are the engine's; rename it")
        if self._host.is_namesake(plugin):
            raise PluginError("migrations are recorded under the plugin's name, and another has it; rename one")
        if self._tables is None:
            raise PluginError(
                f"the store of {self._where} takes no tables of plugins (callboard.stores.PluginTables)"
            )
        return series_of(migrations, self._tables.dialect)

    def migrate(self, now_ns: int) -> list[str]:
        """Run what the database lacks; return what was done.

        Raises:
            StoreError: the database cannot be read, or not written just now, or the file is damaged.
        """
        return [done for plugin, lacks in self._lacking().items() for done in self._run(plugin, lacks, now_ns)]

    def leave(self) -> None:
        """Leave the plugins' tables as they are."""
        self._series.clear()

    def check(self) -> None:
        """Disable each plugin whose tables a newer version of it has made unusable for this one."""
        self._lacking()

    def _lacking(self) -> dict[str, Sequence[Migration]]:
        """Return what the database lacks of each plugin that can use it; one statement for all of them."""
        if self._tables is None or not self._series:
            return {}
        found, lacks = self._tables.recorded(), {}
        for plugin, series in list(self._series.items()):
            try:
                lacks[plugin] = lacking(found, plugin, series, self._where)
            except SchemaError as error:
                self._refuse(plugin, _HOOK, error)
        return lacks

    def _run(self, plugin: str, lacks: Sequence[Migration], now_ns: int) -> Iterator[str]:
        assert self._tables is not None
        for migration in lacks:
            try:
                ran = self._tables.migrate_plugin(plugin, migration, now_ns)
            except (DatabaseUnavailableError, NotADatabaseError):
                raise
            except Exception as error:
                self._refuse(plugin, f"migration {migration.number:04}", error)
                return
            if ran:
                yield f"{plugin} {migration.number:04} {migration.title}"

    def _refuse(self, plugin: str, where: str, error: Exception) -> None:
        if self._series.pop(plugin, None) is not None:  # or another thread has just found it out
            self._host.refuse(plugin, where, error)
