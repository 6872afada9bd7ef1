"""The one place that imports rine-mls, which is not to be had on every platform."""

from pathlib import Path
from typing import TYPE_CHECKING

from callboard import CallboardError

if TYPE_CHECKING:
    from rine_mls import MlsClient

_EPOCHS_KEPT = 8
"""Past epochs whose messages stay readable; the library's default of 4500 keeps old secrets for months."""


class MlsLibraryMissingError(CallboardError):
    """The package rine-mls cannot be imported here."""


def require() -> None:
    """Make sure that rine-mls is there.

    Raises:
        MlsLibraryMissingError: It is not installed, or has no build for this platform.
    """
    try:
        import rine_mls  # noqa: F401
    except ImportError as error:
        raise MlsLibraryMissingError(
            "the package rine-mls cannot be imported: install it with `pip install 'rine-mls>=0.1.1,<0.2'`;"
            " it has wheels for Linux and macOS only, on Windows use WSL or another callboard_mls.Backend"
        ) from error


def open_client(store: Path, signing_seed: bytes) -> "MlsClient":
    """Return the MLS client of one installation.

    Args:
        store: Where it keeps groups and key packages. No other client may have it open.
        signing_seed: The installation's Ed25519 seed, 32 bytes.
    """
    import rine_mls

    return rine_mls.MlsClient(
        str(store), signing_seed, rine_mls.CIPHER_SUITE_CLASSICAL, epoch_retention_limit=_EPOCHS_KEPT
    )


def unreadable_errors() -> tuple[type[Exception], ...]:
    """Return what rine-mls raises for bytes that this client cannot read; a panic is not among it."""
    import rine_mls

    return (
        rine_mls.EmptyFrameError,
        rine_mls.MlsProtocolError,
        rine_mls.UnexpectedBlobError,
        rine_mls.UnexpectedMessageError,
        rine_mls.UnexpectedVersionTagError,
    )
