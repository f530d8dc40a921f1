"""Losses, exact noise, and the ledger."""

from pdips.moved import names_of

__getattr__ = names_of("pdips.privacy", "pdips.privacy.loss")
