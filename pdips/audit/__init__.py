"""Audits: lower confidence bounds on epsilon that catch a mechanism which spends more than it says.

An audit can only accuse. A bound below the claim is no proof that the claim holds; the proofs are in ``docs/proofs/``.
"""

from pdips.audit.findings import Finding, audit, audit_cases, overspending, registered_cases, worst_by_pair
from pdips.audit.neighbour_pairs import Case, Pair
from pdips.registry import AUDITS

__all__ = [
    "AUDITS",
    "Case",
    "Finding",
    "Pair",
    "audit",
    "audit_cases",
    "overspending",
    "registered_cases",
    "worst_by_pair",
]
