"""What the curator's report shows, section by section."""

import math
from pathlib import Path
from typing import Any

from pdips.release.documents import PaidDocument, PrivacyDocument, RunDocument
from pdips.report import checklist, diagnostics, price, utility


def context(
    confidential: Path, facts: PrivacyDocument, run: RunDocument, paid: PaidDocument | None = None
) -> dict[str, Any]:
    """Return all that ``report.html.j2`` is filled with.

    Parameters
    ----------
    confidential : path
        The folder that stays inside, with ``diagnostics`` and ``evaluation.json`` where there are any.
    facts : PrivacyDocument
        ``privacy.json``.
    run : RunDocument
        ``run.json``.
    paid : PaidDocument, optional
        A paid evaluation of the release.
    """
    sections = {
        "price": price.section(facts, run, paid),
        "diagnostics": diagnostics.section(confidential, facts, run),
        "utility": utility.section(confidential, facts, run, paid),
        "checklist": checklist.section(facts, run, paid),
    }
    return {
        "facts": facts,
        "schema": facts.table_schema,
        "run": run,
        "total_seconds": math.fsum(run.seconds.values()),
        "verdicts": {name: found["verdict"] for name, found in sections.items()},
        **sections,
    }
