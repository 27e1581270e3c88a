"""One plugin of each kind. Nothing is imported here: reading a ledger must not need torch."""
