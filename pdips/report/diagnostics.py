"""The section on what the sampler did: chains, posteriors, bounds of records, noise on margins."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from pdips.report import posterior
from pdips.report.facts import PublicFacts, Run
from pdips.report.verdicts import Verdict


def section(confidential: Path, facts: PublicFacts, run: Run) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it."""
    found = posterior.pictures(confidential / "diagnostics", run.diagnostics.posterior, facts.table_schema)
    marked = {kind: [(title, Markup(picture)) for title, picture in each] for kind, each in found.items()}
    return {
        "verdict": Verdict(level="good", line="Drawn exactly: there is no chain that could have failed."),
        "posterior": run.diagnostics.posterior,
        "parameter_pictures": marked["parameters"],
        "bound_pictures": marked["bounds"],
    }
