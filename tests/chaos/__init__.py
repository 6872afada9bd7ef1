"""Engines in processes that are killed at any instant, and the ledger's word on what came of it."""
