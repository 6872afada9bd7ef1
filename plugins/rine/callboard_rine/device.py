"""One installation: its keys, its groups and its mail, on disk and on the network."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from callboard_mls.backend import GroupNotFoundError, MalformedGroupIdError

from . import journal, keyring, mailbox, rine
from .commits import CommitPublisher
from .credentials import Credentials
from .database import Database
from .delivery import Welcome
from .journal import Journal, PendingCommit
from .keyring import GRACE_PERIOD, ROTATION_INTERVAL, KeyRing
from .mailbox import LEAVE_REQUEST, Mailbox, Message, message_id
from .network import LocalNetwork
from .store_lock import StoreLock

if TYPE_CHECKING:
    from rine_mls import CommitBundle, MlsGroup

_MAX_GROUP_ID_SIZE = 127
"""rine-mls names a directory by the id in hex, and file names end at 255 bytes."""


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that is repaired, up to date and held by this thread.

    Attributes:
        mls: The group, saved as it is.
        repaired: The commit of an earlier attempt that opening the group finished, if there was one.
    """

    mls: "MlsGroup"
    repaired: PendingCommit | None

    def installation_ids(self) -> frozenset[bytes]:
        """Return the installations in the group."""
        return frozenset(member.identity for member in self.mls.member_identities())


class Device:
    """An installation on a network. Any thread may call it; calls for one group wait for each other.

    Every method that needs the network raises `callboard.ServiceUnavailable` when it is away. Every method
    that takes a group id raises `MalformedGroupIdError`, and `GroupNotFoundError` unless this installation
    is in that group.

    Attributes:
        network: The network that it is on.
        store: The directory that it lives in.
        credentials: Who it is.
        installation_id: Its Ed25519 public key.
    """

    def __init__(
        self,
        store: str | Path,
        network: LocalNetwork,
        *,
        inbox_id: str | None = None,
        clock: Callable[[], int] = time_ns,
        crash_point: Callable[[str], None] = lambda name: None,
        rotation_interval: timedelta = ROTATION_INTERVAL,
        grace_period: timedelta = GRACE_PERIOD,
    ) -> None:
        """Open the installation that lives in `store`, or make one.

        Args:
            store: The directory that it lives in.
            network: The network that it is on.
            inbox_id: The inbox of the installation to make where there is none; `enroll` makes it known.
            clock: The time, ns since the epoch, by which key packages are judged.
            crash_point: Called with each of `CRASH_POINTS` as a commit passes it.
            rotation_interval: How long a key package is handed out.
            grace_period: How long a superseded key package's private part is kept.

        Raises:
            NoInstallationError: `store` holds none and no `inbox_id` says whose to make, or it holds
                another inbox's.
            StoreLockedError: Another client has it open.
            MlsLibraryMissingError: rine-mls cannot be imported here.
        """
        rine.require()
        self.network = network
        self.store = Path(store)
        client_store, kept, snapshots = (self.store / name for name in ("mls", "key_packages", "snapshots"))
        for directory in (client_store, kept, snapshots):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.callback(StoreLock(self.store).release)
            self.credentials = Credentials.open(self.store, inbox_id)
            self._client = rine.open_client(client_store, self.credentials.signing_seed)
            self.installation_id = self._client.public_key()
            database = Database(self.store / "state.db", journal.SCHEMA, keyring.SCHEMA, mailbox.SCHEMA)
            stack.callback(database.close)
            self._closing = stack.pop_all()
        self._groups = client_store / "groups"
        self._group_locks: WeakValueDictionary[bytes, threading.Lock] = WeakValueDictionary()
        self._locks_lock = threading.Lock()
        self._mailbox = Mailbox(database, network.delivery, self.installation_id)
        self._publisher = CommitPublisher(
            self._client,
            Journal(database, self._groups, snapshots),
            network.delivery,
            self.installation_id,
            crash_point,
        )
        self.keys = KeyRing(
            self._client,
            database,
            network.directory,
            private_parts=client_store / "key_packages",
            kept=kept,
            clock=clock,
            rotation_interval=rotation_interval,
            grace_period=grace_period,
        )

    def __enter__(self) -> "Device":
        """Return the device, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the device."""
        self.close()

    def close(self) -> None:
        """Give the store back; the network stays open. Closing twice does no harm."""
        self._closing.close()

    def enroll(self) -> None:
        """Publish a key package unless that is done, and enter the directory; idempotent."""
        if self.keys.next_rotation_ns() <= self.keys.clock():
            self.keys.rotate()
        self.network.directory.register(self.credentials.inbox_id, self.installation_id)

    def create_group(self, group_id: bytes) -> None:
        """Found a group of this installation alone, its inbox as super-admin; idempotent."""
        with self._held(group_id):
            if not self._exists(group_id):
                self._client.create_group(group_id).save()
        self.network.directory.promote(group_id, self.credentials.inbox_id)

    def join_groups(self) -> list[bytes]:
        """Accept the Welcomes that have come, and return the ids of the groups joined."""
        joined = []
        for welcome in self.network.delivery.welcomes(self.installation_id, self._mailbox.welcome_cursor()):
            with self._held(welcome.group_id):
                if self._join(welcome):
                    joined.append(welcome.group_id)
                self._mailbox.set_welcome_cursor(welcome.seq)
        return joined

    @contextmanager
    def group(self, group_id: bytes) -> Iterator[OpenGroup]:
        """Hold a group, with an interrupted commit repaired and everything from the network applied.

        Changes to it in the block are lost unless `commit` publishes them.
        """
        with self._held(group_id) as repaired:
            if not self._exists(group_id):
                raise GroupNotFoundError("this installation is not in the group")
            mls = self._client.load_group(group_id)
            self._mailbox.catch_up(mls)
            if not mls.is_active():
                # rine-mls would not remember the eviction after a reload.
                self._client.delete_group_state(group_id)
                raise GroupNotFoundError("this installation was removed from the group")
            yield OpenGroup(mls, repaired)

    def commit(
        self,
        group: OpenGroup,
        bundles: "Sequence[CommitBundle]",
        *,
        added: Sequence[bytes] = (),
        removed: frozenset[str] = frozenset(),
    ) -> None:
        """Publish commits just made on a held group, all or none.

        Args:
            group: The group that merged them, in memory only.
            bundles: What rine-mls returned for them, in order; at least one.
            added: The installations that they add, in the order of their Welcomes.
            removed: The inboxes that they evict.

        Raises:
            EpochRejectedError: Another commit won; the group is as it was before.
        """
        welcomes = [welcome for bundle in bundles for welcome in bundle.welcomes]
        pending = PendingCommit(
            group_id=group.mls.group_id(),
            epoch=bundles[0].epoch - 1,
            commits=tuple(bundle.commit for bundle in bundles),
            welcomes=tuple(zip(added, welcomes, strict=True)),
            removed=removed,
        )
        self._publisher.publish(group.mls, pending)

    def send(self, group_id: bytes, body: bytes) -> bytes:
        """Send a message to a group and return its id."""
        with self.group(group_id) as group:
            payload = group.mls.encrypt_application_message(body)
            # Saved first: a message key that was used and forgotten would be used again.
            group.mls.save()
            self.network.delivery.send_message(group_id, payload, self.installation_id)
        return message_id(payload)

    def request_leave(self, group_id: bytes) -> bytes:
        """Ask to be evicted from a group and return the request's message id."""
        return self.send(group_id, LEAVE_REQUEST)

    def receive(self, group_id: bytes, handle: Callable[[Message], None]) -> int:
        """Call `handle` with each message that others sent, in order, and return how many there were.

        A message whose call raises, or is cut off by a crash, comes again.

        Raises:
            GroupNotFoundError: After handing over what came before this installation was evicted.
        """
        try:
            with self.group(group_id):
                pass
        finally:
            count = self._mailbox.hand_over(group_id, handle)
        return count

    def can_read(self, group_id: bytes, payload: bytes) -> bool:
        """Tell whether this installation's keys, as they lie on disk, decrypt a message. Changes nothing."""
        if not self._exists(group_id):
            return False
        try:
            self._client.load_group(group_id).decrypt_application_message(payload)
        except rine.unreadable_errors():
            return False
        return True

    def _exists(self, group_id: bytes) -> bool:
        return (self._groups / group_id.hex()).exists()

    @contextmanager
    def _held(self, group_id: bytes) -> Iterator[PendingCommit | None]:
        """Hold a group's lock, and give the interrupted commit that was finished first, if there was one.

        An interrupted undo may have left no group at all, so nothing is asked of the store before this.
        """
        if not 0 < len(group_id) <= _MAX_GROUP_ID_SIZE:
            raise MalformedGroupIdError(f"a group id has 1 to {_MAX_GROUP_ID_SIZE} bytes, not {len(group_id)}")
        with self._locks_lock:
            lock = self._group_locks.setdefault(group_id, threading.Lock())
        with lock:
            yield self._publisher.recover(group_id)

    def _join(self, welcome: Welcome) -> bool:
        group_id = welcome.group_id
        if self._exists(group_id) and self._client.load_group(group_id).epoch() >= welcome.epoch:
            # Accepted before a crash; joining again would set the group back.
            return False
        with self.keys.private_parts():
            try:
                group = self._client.join_from_welcome(welcome.payload)
            except rine.unreadable_errors():
                # Made with a key package whose grace period is over: it must not hold up the others.
                return False
            group.save()
        self._mailbox.set_cursor(group_id, welcome.log_seq)
        return True
