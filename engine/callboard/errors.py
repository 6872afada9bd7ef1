"""Every exception Callboard raises on purpose, under one root, so that a host can catch them all at once."""

from __future__ import annotations

__all__ = [
    "CallboardError",
    "CompletionError",
    "ConfigurationError",
    "DatabaseGoneError",
    "DatabaseUnavailableError",
    "EngineStateError",
    "KindError",
    "MalformedPayloadError",
    "NotADatabaseError",
    "PayloadError",
    "PluginError",
    "SchemaError",
    "ServiceMissingError",
    "ServiceUnavailable",
    "StaleRunError",
    "StoreError",
    "UnknownKindError",
    "UnknownPayloadError",
]


class CallboardError(Exception):
    """Be the root of every error that Callboard raises on purpose."""


class ConfigurationError(CallboardError, ValueError):
    """Say that an argument given to the engine cannot work, and what would."""


class EngineStateError(CallboardError, RuntimeError):
    """Say that a call came at the wrong time, such as after `Engine.stop`."""


class KindError(CallboardError, ValueError):
    """Say that a `TaskKind` was refused at registration; names the kind, and the plugin where it is known."""


class UnknownKindError(CallboardError, LookupError):
    """Say that no plugin here registered the enqueued message's kind."""


class PluginError(CallboardError):
    """Say that a plugin asked for by name is missing or cannot be used."""


class ServiceMissingError(CallboardError, LookupError):
    """Say that a handler asked for a service that the host did not give in `services=`."""


class ServiceUnavailable(CallboardError):
    """Say that the network or the host's backend is away.

    A handler raises it (or a subclass) to be run again with backoff, without the run counting as an
    attempt: the default twenty attempts are over in twelve minutes, and an outage must not kill a task.
    """


class PayloadError(CallboardError, ValueError):
    """Be the root of what can be wrong with a payload."""


class MalformedPayloadError(PayloadError):
    """Say that a payload does not decode, is empty, or disagrees with its row's kind."""


class UnknownPayloadError(PayloadError):
    """Say that a payload carries a field of a newer build, which this one may not do without."""


class StaleRunError(CallboardError):
    """Say that a run no longer holds its row: it was cancelled, rescued or claimed anew.

    Nothing of the run is committed; a handler lets it pass through.
    """


class CompletionError(CallboardError, RuntimeError):
    """Say that a transaction was misused.

    `TaskContext.complete` was called twice or inside another transaction, or somebody awaits inside of it; or
    another coroutine on this thread awaits inside `Engine.transaction`, and nobody else may write into that.
    """


class StoreError(CallboardError):
    """Be the root of what can go wrong between the engine and its database; names the database."""


class DatabaseUnavailableError(StoreError):
    """Say that the database cannot be reached or written just now: locked, full, read-only or gone.

    A handler that lets it pass through is run again with backoff, without the run counting as an attempt.
    """


class DatabaseGoneError(DatabaseUnavailableError):
    """Say that the file was removed while it was in use, or that another one took its place.

    Nothing was made in its stead. The engine goes on if the same file comes back.
    """


class NotADatabaseError(StoreError):
    """Say that the file is not a database, or is damaged. It has not been touched.

    An engine that meets damage while it runs uses the file no more.
    """


class SchemaError(StoreError):
    """Say that the tables are missing or were written by a newer engine. Nothing has been touched."""
