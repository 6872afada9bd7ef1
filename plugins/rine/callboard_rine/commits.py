"""Publish a commit so that a crash between any two steps is repaired and none is ever published twice.

The order is what makes it safe: journalled, then saved, only then published. A crash before the save leaves
the old state, and the commit is forgotten; a crash after it leaves state and commit together, and the commit
is published from the journal, where the delivery service recognises it if it had arrived already.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from callboard_mls.backend import EpochRejectedError

from .delivery import DeliveryService
from .journal import Journal, PendingCommit

if TYPE_CHECKING:
    from rine_mls import MlsClient, MlsGroup

CRASH_POINTS = (
    "rine.commit.prepared",
    "rine.commit.journalled",
    "rine.commit.snapshotted",
    "rine.commit.saved",
    "rine.commit.published",
    "rine.commit.welcomed",
)
"""The instants between two steps, in order, at which `crash_point` is called with that name."""


class CommitPublisher:
    """Takes commits from memory to the network, and finishes what a crash interrupted.

    The caller holds the group's lock.
    """

    def __init__(
        self,
        client: "MlsClient",
        journal: Journal,
        delivery: DeliveryService,
        sender: bytes,
        crash_point: Callable[[str], None],
    ) -> None:
        """Publish for `client` as installation `sender`.

        Args:
            client: The MLS client that owns the store which `journal` copies.
            journal: The installation's journal.
            delivery: Where commits and Welcomes go.
            sender: The installation id.
            crash_point: Called with each of `CRASH_POINTS`.
        """
        self._client = client
        self._journal = journal
        self._delivery = delivery
        self._sender = sender
        self._crash_point = crash_point

    def publish(self, group: "MlsGroup", pending: PendingCommit) -> None:
        """Save and publish commits that `group` has merged in memory only.

        Raises:
            EpochRejectedError: Another commit won; the state on disk is as before, `group` must be dropped.
            ServiceUnavailable: The network is away; the next `recover` finds out and finishes.
        """
        self._crash_point("rine.commit.prepared")
        self._journal.write(pending)
        self._crash_point("rine.commit.journalled")
        self._journal.take_snapshot(pending.group_id)
        self._crash_point("rine.commit.snapshotted")
        group.save()
        self._crash_point("rine.commit.saved")
        self._finish(pending)

    def recover(self, group_id: bytes) -> PendingCommit | None:
        """Finish or undo the group's interrupted commit.

        Returns:
            The commit that this call finished; None if there was none or it was undone.

        Raises:
            ServiceUnavailable: The network is away; nothing has changed.
        """
        pending = self._journal.read(group_id)
        if pending is None:
            return None
        if self._client.load_group(group_id).epoch() != pending.next_epoch:
            self._journal.undo(group_id)
            return None
        try:
            self._finish(pending)
        except EpochRejectedError:
            return None
        return pending

    def _finish(self, pending: PendingCommit) -> None:
        group_id = pending.group_id
        if not self._delivery.publish_commits(group_id, pending.epoch, pending.commits, self._sender):
            self._journal.undo(group_id)
            raise EpochRejectedError(f"another commit took epoch {pending.epoch}")
        self._crash_point("rine.commit.published")
        if pending.welcomes:
            self._delivery.send_welcomes(group_id, pending.next_epoch, pending.welcomes)
        self._crash_point("rine.commit.welcomed")
        self._journal.clear(group_id)
