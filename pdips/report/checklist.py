"""The checklist after NIST SP 800-226, for the person who decides whether to publish."""

from typing import Any

from pdips.report.facts import PublicFacts, Run
from pdips.report.verdicts import Verdict


def section(facts: PublicFacts, run: Run) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it."""
    return {"verdict": Verdict(level="open", line="Questions that a person has to answer.")}
