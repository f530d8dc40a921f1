"""Audits: lower confidence bounds on epsilon that catch a mechanism which spends more
than it says.

An audit can only accuse. A bound below the claim is no proof that the claim holds; the
proofs are in ``docs/proofs/``.
"""

from pdips.registry import public_names

_homes, __getattr__ = public_names(__name__, __file__)
__all__ = sorted(_homes)
