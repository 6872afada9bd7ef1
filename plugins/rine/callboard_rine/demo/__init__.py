"""`callboard demo`: one person sees in seconds what the engine is for, on real MLS groups."""

from .command import demo

__all__ = ["demo"]
