"""The section on what was spent and what is left."""

from typing import Any

from pdips.report.facts import PublicFacts, Run
from pdips.report.verdicts import Verdict


def section(facts: PublicFacts, run: Run) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it."""
    return {"verdict": _verdict(facts, run)}


def _verdict(facts: PublicFacts, run: Run) -> Verdict:
    if facts.privacy.kind in ("none", "asymptotic"):
        return Verdict(level="bad", line="No bound holds: nothing is paid for, and the sets stay inside.")
    if run.ledger is None:
        return Verdict(level="watch", line="No ledger was named: nobody adds up what this table has spent.")
    return Verdict(level="good", line="The price is bounded and the ledger was charged before any noise was drawn.")
