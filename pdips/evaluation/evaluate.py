"""A release compared with its table: general utility, and the utility of an analysis. For inside use only."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.coding import numbers
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.distribution import ecdf_distances, wasserstein_randomization
from pdips.evaluation.document import (
    AnalysisComparison,
    EvaluationDocument,
    Measure,
    MeasureDetail,
    PropensitySpread,
    ReleaseFolder,
    ReleaseIdentity,
    open_release,
    open_table,
)
from pdips.evaluation.encoding import with_decile_bins
from pdips.evaluation.formula import Analysis, read_analysis
from pdips.evaluation.margins import k_marginal, k_way
from pdips.evaluation.pictures import pictures
from pdips.evaluation.propensity import Scores, specks, standardised_pmse
from pdips.evaluation.regression import Family, Fit, compare_fits
from pdips.inference import Rule, rule_for
from pdips.privacy.curator import Clock
from pdips.release.release import software

SEED = 0
"""Of resamples and re-splits: a second run gives the same figures."""
SPLITS = 100
"""Random re-splits of the Wasserstein randomization."""
MARGINAL = 3
MOST_MARGINS = 1_000
"""Sets of columns that are looked at, drawn at random where there are more: the same for every set."""
WORST = 5
"""Margins furthest apart that are named."""
BEST = {f"{MARGINAL}-marginal score": 1000.0}
"""What equal tables score, where it isn't 0."""
RESAMPLES = 5
"""Of the table, for the reference of an analysis."""
LEVEL = 0.95
SUMMARIES = {
    "overlap of intervals": "1 equal, 0 disjoint",
    "standardised difference": "0 equal; in standard errors of the table's",
    "same sign": "share of coefficients",
    "coverage": "share of the table's estimates inside the sets' intervals",
}
NOTE = (
    "Inside only: computed from the confidential table, and no epsilon pays for it. Publishing a figure leaks; so does "
    "choosing a mechanism, a setting, an epsilon or one of several releases by it."
)


def evaluate(
    table: str | Path,
    directory: str | Path,
    *,
    formula: str | None = None,
    family: Family | None = None,
    clock: Clock | None = None,
) -> EvaluationDocument:
    """Compare a release with the table that it came from.

    Parameters
    ----------
    table : path
        The confidential table.
    directory : path
        The folder of the release.
    formula, family : str, optional
        An analysis; see :func:`pdips.evaluation.formula.read_analysis`.
    clock : Clock, optional
        Times the steps.

    Returns
    -------
    EvaluationDocument
        ``general``: a list of measures. ``specific``: the analysis, or None. ``pictures``: what pictures of them show.

    Raises
    ------
    InputError
        If the folder holds no release, sets or table don't fit its schema, or the analysis doesn't.
    """
    clock = clock or Clock()
    if family is not None and formula is None:
        raise InputError("--family belongs to an --analysis; name one")
    with clock.step("reading the release"):
        release = open_release(directory)
    analysis = None if formula is None else read_analysis(formula, release.schema, family)
    with clock.step("reading the table"):
        confidential = open_table(table, release)
    specific = None
    if analysis is not None:
        with clock.step("analysis"):
            specific = specific_utility(confidential, release, analysis)
    measures = general_utility(confidential, release.sets, clock)
    with clock.step("pictures"):
        found = pictures(confidential, release.sets, measures)
    return EvaluationDocument(
        inside_only=NOTE,
        release=ReleaseIdentity.of(release.document),
        weight=release.schema.records.weight,
        seed_of_references=SEED,
        general=measures,
        specific=specific,
        pictures=found,
        seconds=dict(clock.seconds),
        software=software(),
    )


# ---- general utility ----

Figures = dict[str, float]
Job = tuple[Mapping[str, str], bool, Callable[[], tuple[list[Figures], Mapping[str, Any]]]]


def resample(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Return as many records drawn with replacement: about as good as synthesis can get."""
    rows = rng.integers(table.n_records, size=table.n_records)
    return table.frame.iloc[rows].reset_index(drop=True)


def general_utility(table: Table, sets: Sequence[pd.DataFrame], clock: Clock | None = None) -> list[Measure]:
    """Measure synthetic sets against the table that they were made from.

    Parameters
    ----------
    table : Table
        The confidential table, not counted.
    sets : sequence of DataFrame
        Synthetic sets of its schema.
    clock : Clock, optional
        Times the measures.

    Returns
    -------
    list of Measure
        SPECKS, pMSE and its ratio to the null, the 3-marginal score, max-ECDF and avg-ECDF (means over columns), total
        variation of one-, two- and three-way margins (means and largest), Wasserstein randomization. One that can't be
        worked out on this schema says why.

    Raises
    ------
    InputError
        If there is no set, or the table is counted.

    Notes
    -----
    Margins and ECDF are weighted where the schema names weights. The resample and the re-splits have a fixed seed, so
    that a second run gives the same figures.
    """
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    if table.counts is not None:
        raise InputError("an evaluation reads records one by one: read the table with counted=False")
    clock = clock or Clock()
    found = []
    for name, (readings, weighted, job) in _jobs(table, sets).items():
        with clock.step(name):
            found += _measures(readings, weighted, job)
    return found


def _jobs(table: Table, sets: Sequence[pd.DataFrame]) -> dict[str, Job]:
    """Return the groups of measures that are worked out together; the last of each one's figures is the reference."""
    weighted = table.schema.records.weight is not None
    every = [*sets, resample(table, np.random.default_rng(SEED))]
    whole = with_decile_bins(table)
    plain = _Plain(table, every)
    jobs: dict[str, Job] = {
        "SPECKS": ({"SPECKS": "0 can't be told apart, 1 wholly apart"}, False, lambda: _specks(whole, every)),
        "pMSE": (
            {"pMSE": "0 can't be told apart", "pMSE over its null": "about 1 for a right model"},
            False,
            lambda: ([_pmse(*pair) for pair in plain.pairs()], {}),
        ),
        f"{MARGINAL}-marginals": (
            {f"{MARGINAL}-marginal score": "1000 equal, 0 disjoint"},
            False,
            lambda: ([_marginal(*pair) for pair in plain.pairs()], {}),
        ),
        "ECDF": (
            {"max-ECDF": "0 equal, 1 disjoint", "avg-ECDF": "0 equal, 1 disjoint"},
            weighted,
            lambda: _ecdf(table, every, weighted),
        ),
        "Wasserstein randomization": (
            {"Wasserstein ratio": "0 equal, about 1 two samples of one population"},
            False,
            lambda: ([_wasserstein(*pair) for pair in plain.pairs()], {"re-splits": SPLITS}),
        ),
    }
    for k in (1, 2, 3):
        readings = {f"TVD of {k}-way margins": "0 equal, 1 disjoint", f"TVD of {k}-way margins, largest": "0 equal"}
        jobs[f"{k}-way margins"] = (readings, weighted, lambda k=k: _margins(whole, every, k, weighted))  # type: ignore[misc]
    return jobs


def _measures(readings: Mapping[str, str], weighted: bool, job: Callable[[], Any]) -> list[Measure]:
    """Return one measure a reading; the same reason for all where the job can't be done."""
    figures, detail, reason = [], {}, None
    try:
        figures, detail = job()
    except InputError as error:
        reason = str(error)
    picture = detail.get("picture")
    return [
        Measure(
            name=name,
            reading=reading,
            by_set=tuple(_finite(one[name]) for one in figures[:-1]),
            mean=_finite(np.mean([one[name] for one in figures[:-1]])) if figures else None,
            reference=_finite(figures[-1][name]) if figures else None,
            weighted=weighted and reason is None,
            reason=reason,
            detail=MeasureDetail(**{key: value for key, value in detail.items() if key != "picture"}),
            best=BEST.get(name, 0.0),
            picture=picture,
        )
        for name, reading in readings.items()
    ]


def _finite(value: float | np.floating[Any]) -> float | None:
    return float(value) if np.isfinite(value) else None


class _Plain:
    """The table and the sets as frames without codes for missing: numbers, and names of levels."""

    def __init__(self, table: Table, every: Sequence[pd.DataFrame]) -> None:
        self._table, self._every = table, every
        self._framed: list[pd.DataFrame] | None = None

    def pairs(self) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
        if self._framed is None:
            self._framed = [self._frame(frame) for frame in (self._table.frame, *self._every)]
        first, *others = self._framed
        return [(first, other) for other in others]

    def _frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        if not len(frame):
            raise InputError("a set has no records")
        schema = self._table.schema
        plain = schema.without_person().model_copy(update={"impossible": ()})
        codes = Table(frame[list(schema.columns)], plain).codes
        return pd.DataFrame(
            {
                name: numbers(name, frame[name], column)
                if column.levels is None
                else np.array(column.names(), dtype=object)[codes[name]]
                for name, column in schema.columns.items()
            }
        )


def _specks(table: Table, every: Sequence[pd.DataFrame]) -> tuple[list[Figures], Mapping[str, Any]]:
    rng = np.random.default_rng(SEED)
    classifier = "logistic"
    try:
        found = specks(table, every, classifier=classifier, rng=rng)
    except InputError:  # too many coefficients
        classifier = "main-effects"
        found = specks(table, every, classifier=classifier, rng=rng)
    figures = [{"SPECKS": value} for value in found.by_set]
    return figures, {"classifier": classifier, "picture": _spread(found.scores[:-1], classifier)}


def _spread(scores: Sequence[Scores], classifier: str) -> PropensitySpread | None:
    """Return the scores of the sets, averaged cell by cell; those of the resample are left out."""
    if not scores:
        return None
    return PropensitySpread(
        classifier=classifier,
        table=np.mean([one.table for one in scores], axis=0).tolist(),
        sets=np.mean([one.synthetic for one in scores], axis=0).tolist(),
        distance=[one.distance for one in scores],
        at=[one.at for one in scores],
    )


def _pmse(original: pd.DataFrame, other: pd.DataFrame) -> Figures:
    found = standardised_pmse(original, other)
    return {"pMSE": found.pmse, "pMSE over its null": found.ratio}


def _marginal(original: pd.DataFrame, other: pd.DataFrame) -> Figures:
    k = min(MARGINAL, original.shape[1])
    found = k_marginal(original, other, k, n_draws=MOST_MARGINS, rng=np.random.default_rng(SEED))
    return {f"{MARGINAL}-marginal score": found.score}


def _wasserstein(original: pd.DataFrame, other: pd.DataFrame) -> Figures:
    rng = np.random.default_rng(SEED)
    found = wasserstein_randomization(original, other, distance="columns", n_permutations=SPLITS, rng=rng)
    return {"Wasserstein ratio": found.ratio}


def _ecdf(table: Table, every: Sequence[pd.DataFrame], weighted: bool) -> tuple[list[Figures], Mapping[str, Any]]:
    found = [ecdf_distances(table, frame, weighted=weighted) for frame in every]
    figures = [
        {"max-ECDF": float(np.mean([*one.largest.values()])), "avg-ECDF": float(np.mean([*one.average.values()]))}
        for one in found
    ]
    by_column = {
        name: {
            "largest": float(np.mean([one.largest[name] for one in found[:-1]])),
            "average": float(np.mean([one.average[name] for one in found[:-1]])),
        }
        for name in table.schema.columns
    }
    return figures, {"by_column": by_column}


def _margins(
    table: Table, every: Sequence[pd.DataFrame], k: int, weighted: bool
) -> tuple[list[Figures], Mapping[str, Any]]:
    found = [
        k_way(table, [frame], k, weighted=weighted, n_draws=MOST_MARGINS, rng=np.random.default_rng(SEED))
        for frame in every
    ]
    name = f"TVD of {k}-way margins"
    figures = [{name: one["mean"], f"{name}, largest": one["max"]} for one in found]
    apart = {
        columns: float(np.mean([one["by_margin"][columns] for one in found[:-1]])) for columns in found[0]["by_margin"]
    }
    worst = sorted(apart, key=lambda columns: -apart[columns])[:WORST]
    return figures, {"furthest": [{"columns": list(columns), "distance": apart[columns]} for columns in worst]}


# ---- the utility of an analysis ----


def specific_utility(table: Table, release: ReleaseFolder, analysis: Analysis) -> AnalysisComparison:
    """Fit an analysis to the table and to the sets, and compare.

    Parameters
    ----------
    table : Table
        The confidential table.
    release : ReleaseFolder
        The release; its public settings say which rule combines its sets.
    analysis : Analysis
        Of the release's schema.

    Returns
    -------
    AnalysisComparison
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
    rule, note = rule_with_note(release)
    coefficients = _coverage(original, [analysis.fit(frame) for frame in release.sets], rule)
    rng = np.random.default_rng(SEED)
    again = [summary(_coverage(original, [analysis.fit(resample(table, rng))], None)) for _ in range(RESAMPLES)]
    return AnalysisComparison.model_validate(
        {
            "formula": analysis.formula,
            "family": analysis.family,
            "weighted": analysis.weighted,
            "level": LEVEL,
            "rule": rule,
            "note": note,
            "coefficients": coefficients.reset_index().to_dict("records"),
            "summary": summary(coefficients),
            "reference": {name: float(np.mean([one[name] for one in again])) for name in SUMMARIES},
        }
    )


def rule_with_note(release: ReleaseFolder) -> tuple[Rule, str | None]:
    """Return the rule that combines the sets of a release, and what is wrong with it."""
    if len(release.sets) == 1:
        return "raab-nowok-dibben", "one set can't show the privacy noise: its interval is too short"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rule = rule_for(release.document.contents())
    return rule, str(caught[0].message) if caught else None


def summary(coefficients: pd.DataFrame) -> dict[str, float]:
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


def _coverage(original: Fit, fits: Sequence[Fit], rule: Rule | None) -> pd.DataFrame:
    """Return the comparison of fits, and which of the original's estimates lie inside the interval of the sets."""
    found = compare_fits(original, fits, level=LEVEL, rule=rule)
    inside = (found["combined_lower"] <= found["original"]) & (found["original"] <= found["combined_upper"])
    return found.assign(covered=inside)
