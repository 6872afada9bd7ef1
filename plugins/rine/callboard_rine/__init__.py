"""A real MLS backend for Callboard: rine-mls, and a small network in one SQLite file to use it on."""

from .backend import RineBackend
from .commits import CRASH_POINTS
from .credentials import NoInstallationError
from .device import Device, OpenGroup
from .keypackages import KeyPackageError
from .mailbox import LEAVE_REQUEST, Message
from .membership import create_group
from .network import LocalNetwork
from .rine import MlsLibraryMissingError
from .store_lock import StoreLockedError

__all__ = [
    "CRASH_POINTS",
    "LEAVE_REQUEST",
    "Device",
    "KeyPackageError",
    "LocalNetwork",
    "Message",
    "MlsLibraryMissingError",
    "NoInstallationError",
    "OpenGroup",
    "RineBackend",
    "StoreLockedError",
    "create_group",
]
