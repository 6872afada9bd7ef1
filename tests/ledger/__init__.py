"""Keep account of what happened to tasks, and say what must not have: for chaos runs and simulations alike."""

from tests.ledger.audit import violations
from tests.ledger.entries import Came, DeadRow, Effect, Entry, LiveRow, What

__all__ = ["Came", "DeadRow", "Effect", "Entry", "LiveRow", "What", "violations"]
