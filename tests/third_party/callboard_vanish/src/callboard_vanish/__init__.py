"""Disappearing messages: each is deleted when its time has come.

A host gives the engine a `MessageStore`, and says of each message when it is to vanish: with `schedule`, or by
publishing a `Vanishing`.
"""

from callboard_vanish.messages import MessageStore, Vanishing
from callboard_vanish.plugin import schedule
from callboard_vanish.vanish_pb2 import DeleteMessage

__all__ = ["DeleteMessage", "MessageStore", "Vanishing", "schedule"]
