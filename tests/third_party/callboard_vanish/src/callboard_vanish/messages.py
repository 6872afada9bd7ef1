"""What the plugin knows of messages, and what it asks of the host that keeps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Vanishing:
    """A message that is to vanish; a host that stores one publishes it: `engine.publish(Vanishing(...))`.

    Attributes:
        vanishes_at_ns: nanoseconds since the epoch.
    """

    group_id: bytes
    message_id: bytes
    vanishes_at_ns: int


class MessageStore(ABC):
    """Where the host keeps messages. A method that cannot reach them raises `ConnectionError`."""

    @abstractmethod
    def vanishes_at_ns(self, group_id: bytes, message_id: bytes) -> int | None:
        """Return when a message is to vanish; `None` for one that stays, or that is gone."""

    @abstractmethod
    def vanishing(self) -> Iterable[Vanishing]:
        """Return every message that is to vanish and has not."""

    @abstractmethod
    def delete(self, group_id: bytes, message_id: bytes) -> None:
        """Delete a message, if it is there."""
