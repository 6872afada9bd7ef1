"""The MLS plugins on rine, killed likewise; there the ledger is the groups themselves."""
