"""Specific utility: does an analysis of the sets say what it says on the table? For inside use only."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.evaluate import SEED, resample
from pdips.evaluation.formula import Analysis
from pdips.evaluation.opened import Opened
from pdips.evaluation.regression import Fit, compare_fits
from pdips.inference import Rule, rule_for

RESAMPLES = 5
LEVEL = 0.95
SUMMARIES = {
    "overlap of intervals": "1 equal, 0 disjoint",
    "standardised difference": "0 equal; in standard errors of the table's",
    "same sign": "share of coefficients",
    "coverage": "share of the table's estimates inside the sets' intervals",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Specific:
    """An analysis on the table and on the sets.

    Attributes
    ----------
    analysis : Analysis
    rule : str
        How the sets were combined.
    note : str or None
        What to know of that rule.
    coefficients : DataFrame
        As :func:`pdips.evaluation.regression.compare_fits` gives them, with ``covered``.
    summary, reference : dict of str to float
        By the names of ``SUMMARIES``: for the combined sets, and the mean over resamples of the table, each with its
        own interval. NaN if the table tells no coefficient.
    """

    analysis: Analysis
    rule: str
    note: str | None
    coefficients: pd.DataFrame
    summary: dict[str, float]
    reference: dict[str, float]

    def describe(self) -> dict[str, Any]:
        """Return it as plain values, None for what isn't known."""
        rows = self.coefficients.astype(object).where(self.coefficients.notna(), None)
        return {
            "formula": self.analysis.formula,
            "family": self.analysis.family,
            "weighted": self.analysis.weighted,
            "level": LEVEL,
            "rule": self.rule,
            "note": self.note,
            "coefficients": [{"coefficient": name, **row} for name, row in rows.to_dict("index").items()],
            "summary": {name: _known(value) for name, value in self.summary.items()},
            "reference": {name: _known(value) for name, value in self.reference.items()},
        }


def specific_utility(table: Table, opened: Opened, analysis: Analysis) -> Specific:
    """Fit an analysis to the table and to the sets, and compare.

    Parameters
    ----------
    table : Table
        The confidential table.
    opened : Opened
        The release; its public settings say which rule combines its sets.
    analysis : Analysis
        Of the release's schema.

    Returns
    -------
    Specific
        Coefficients side by side; overlap of confidence intervals, absolute standardised differences, agreement of
        signs and coverage, each with what resamples of the table score.

    Raises
    ------
    InputError
        If the analysis doesn't fit the table.
    """
    original = analysis.fit(table.frame)
    if not original.converged:
        raise InputError(
            f"the analysis {analysis.formula!r} doesn't fit the table: too few records, one outcome only, or no maximum"
        )
    rule, note = rule_with_note(opened)
    coefficients = _compared(original, [analysis.fit(frame) for frame in opened.sets], rule)
    rng = np.random.default_rng(SEED)
    again = [_compared(original, [analysis.fit(resample(table, rng))], None) for _ in range(RESAMPLES)]
    each = [summarised(frame) for frame in again]
    return Specific(
        analysis=analysis,
        rule=rule,
        note=note,
        coefficients=coefficients,
        summary=summarised(coefficients),
        reference={name: float(np.mean([one[name] for one in each])) for name in SUMMARIES},
    )


def rule_with_note(opened: Opened) -> tuple[Rule, str | None]:
    """Return the rule that combines the sets of a release, and what is wrong with it."""
    if len(opened.sets) == 1:
        return "raab-nowok-dibben", "one set can't show the privacy noise: its interval is too short"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rule = rule_for(opened.content)
    return rule, str(caught[0].message) if caught else None


def summarised(coefficients: pd.DataFrame) -> dict[str, float]:
    """Return means over the coefficients that the table tells; one that a set can't tell counts as missed."""
    known = coefficients[coefficients["original"].notna()]
    if not len(known):
        return dict.fromkeys(SUMMARIES, float("nan"))
    values = (
        known["ci_overlap"].mean(),
        known["standardized_difference"].abs().mean(),
        known["same_sign"].mean(),
        known["covered"].mean(),
    )
    return dict(zip(SUMMARIES, map(float, values), strict=True))


def _compared(original: Fit, fits: Sequence[Fit], rule: Rule | None) -> pd.DataFrame:
    found = compare_fits(original, fits, level=LEVEL, rule=rule)
    inside = (found["combined_lower"] <= found["original"]) & (found["original"] <= found["combined_upper"])
    return found.assign(covered=inside)


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
