"""Losses, exact noise, and the ledger."""
