"""The section on what the sampler did: chains, posteriors, bounds of records, noise on margins."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from pdips.release.documents import PrivacyDocument, RunDocument
from pdips.report import noise, posterior
from pdips.report.chains import BAND
from pdips.report.judging import EDGE, judge

PICTURES = ("parameters", "ranks", "energy", "predicted", "bounds")


def section(confidential: Path, facts: PrivacyDocument, run: RunDocument) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it.

    Parameters
    ----------
    confidential : path
        The folder that stays inside, with ``diagnostics`` where a posterior was looked at.
    facts, run
        ``privacy.json`` and ``run.json``.

    Raises
    ------
    InputError
        If a file of ``diagnostics`` is damaged.
    """
    public = confidential.parent / "public"
    looked = posterior.look(confidential / "diagnostics", run.diagnostics.posterior, facts.table_schema)
    compared = noise.compare(public if run.published and public.is_dir() else confidential, facts, run)
    verdict, checks = judge(facts, run, looked.bfmi, compared)
    return {
        "verdict": verdict,
        "checks": checks,
        "posterior": run.diagnostics.posterior,
        "stored": looked.stored,
        "bfmi": looked.bfmi,
        "edge": EDGE,
        "band": BAND,
        "most_dots": posterior.MOST_DOTS,
        "noise": compared,
        "noisy": facts.noise,
        "pictures": {kind: [(title, Markup(picture)) for title, picture in getattr(looked, kind)] for kind in PICTURES},
    }
