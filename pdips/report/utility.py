"""The section on what the synthetic sets kept of the table: margins as the run found them, and an evaluation."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from pdips.report import evaluated, pictures
from pdips.report.facts import PaidFacts, PublicFacts, Run, mean


def section(confidential: Path, facts: PublicFacts, run: Run, paid: PaidFacts | None = None) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it: see :func:`pdips.report.evaluated.verdict`.

    Raises
    ------
    InputError
        If the inside ``evaluation.json`` is damaged.
    """
    comparison = run.comparison
    margins, pairs = comparison.margins(), comparison.two_way.pairs()
    return {
        **evaluated.section(confidential, facts, paid),
        "l1": comparison.l1,
        "two_way": comparison.two_way,
        "margins": margins,
        "pairs": pairs,
        "one_way_mean": mean(margin.distance for margin in margins),
        "two_way_mean": mean(distance for distance, _, _ in pairs),
        "two_way_reference": comparison.two_way.reference_mean(),
        "panels": [Markup(pictures.one_way(margin, f"margin {i}")) for i, margin in enumerate(margins)],
        "heat": Markup(pictures.two_way(comparison.two_way, "pairs")) if pairs else None,
        "most_rows": pictures.MOST_ROWS,
    }
