"""A release compared with its table: general utility, and the utility of an analysis. For inside use only."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, finite
from pdips.data.coding import numbers
from pdips.data.schema import Schema
from pdips.data.table import Table, are_two
from pdips.errors import InputError
from pdips.evaluation.distribution import ecdf_distances, wasserstein_randomization
from pdips.evaluation.document import (
    SUMMARIES,
    AnalysisComparison,
    BasicFigure,
    EvaluationDocument,
    Measure,
    MeasureDetail,
    PropensitySpread,
    ReleaseFolder,
    open_release,
    open_table,
)
from pdips.evaluation.encoding import weights_of, with_decile_bins
from pdips.evaluation.formula import Analysis, read_analysis
from pdips.evaluation.margins import k_marginal, k_way, mean_sd, some
from pdips.evaluation.pictures import pictures
from pdips.evaluation.propensity import specks, standardised_pmse
from pdips.evaluation.regression import Family, compare_fits
from pdips.inference.rules import Rule, nearest_rule
from pdips.privacy.curator import Clock
from pdips.release.documents import ReleaseIdentity, mean
from pdips.release.release import Release, software

SEED = 0  # Of resamples and re-splits: a second run gives the same figures
SPLITS = 100  # Random re-splits of the Wasserstein randomization
MARGINAL = 3
MOST_MARGINS = 1_000  # Sets of columns that are looked at, drawn at random where there are more: the same for every set
WORST = 5  # Margins furthest apart that are named
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
MOST_CORRELATED = 10  # Numeric columns, the first ones, of which all correlations are compared
DRAWS, LEAST_DRAWS, DRAWN_CELLS = 200, 20, 5_000_000  # Resamples for basic figures' scale, fewer for more numbers
READINGS = {
    "SPECKS": {"SPECKS": "0 can't be told apart, 1 wholly apart"},
    "pMSE": {"pMSE": "0 can't be told apart", "pMSE over its null": "about 1 for a right model"},
    f"{MARGINAL}-marginals": {f"{MARGINAL}-marginal score": "1000 equal, 0 disjoint"},
    "ECDF": {"max-ECDF": "0 equal, 1 disjoint", "avg-ECDF": "0 equal, 1 disjoint"},
    "Wasserstein randomization": {"Wasserstein ratio": "0 equal, about 1 two samples of one population"},
    **{
        f"{k}-way margins": {
            f"TVD of {k}-way margins": "0 equal, 1 disjoint",
            f"TVD of {k}-way margins, largest": "0 equal",
        }
        for k in (1, 2, 3)
    },
}
"""Measures, and what their ends mean, by the group that is worked out together."""
BEST = {f"{MARGINAL}-marginal score": 1000.0}  # What equal tables score, where it isn't 0
RESAMPLES = 5  # Of the table, for the reference of an analysis
LEVEL = 0.95
NOTE = (
    "Inside only: computed from the confidential table, and no epsilon pays for it. Publishing a figure leaks; so does "
    "choosing a mechanism, a setting, an epsilon or one of several releases by it."
)


def evaluate(
    table: str | Path | tuple[str | Path, str | Path],
    directory: str | Path,
    *,
    formula: str | None = None,
    family: Family | None = None,
    clock: Clock | None = None,
) -> EvaluationDocument:
    """Compare a release with the table that it came from.

    Parameters
    ----------
    table, directory : path
        The confidential table, or those of households and of members, and the folder of the release.
    formula, family : str, optional
        An analysis; see :func:`pdips.evaluation.formula.read_analysis`.
    clock : Clock, optional
        Times the steps.

    Raises
    ------
    InputError
        If the folder holds no release, sets or table don't fit its schema, or the analysis doesn't.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "sex": Column(levels=["f", "m"])})
    >>> table = Table(pd.DataFrame({"ill": ["no"] * 40 + ["yes"] * 20, "sex": ["f", "m"] * 30}), schema)
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> release.write("demo/public")
    >>> table.frame.to_parquet("table.parquet")
    >>> 0 <= evaluate("table.parquet", "demo").measure("SPECKS").mean <= 1
    True
    """
    clock = clock or Clock()
    with clock.step("reading the release"):
        release = open_release(directory)
    return _evaluated(release, lambda: open_table(table, release), formula, family, clock)


def evaluate_held(table: Any, release: Release, formula: str | None, family: Family | None) -> EvaluationDocument:
    """Compare a release in memory with its table: see :func:`evaluate`."""
    held = ReleaseFolder(folder=Path(), home=Path("confidential"), document=release.document(), sets=release.sets)

    def opened() -> Table:
        if isinstance(table, Table):
            return table
        schema = release.schema
        return Table.of_households(table[0], table[1], schema) if are_two(table, schema) else Table(table, schema)

    return _evaluated(held, opened, formula, family, Clock())


def _evaluated(
    release: ReleaseFolder, reading: Callable[[], Table], formula: str | None, family: Family | None, clock: Clock
) -> EvaluationDocument:
    if family is not None and formula is None:
        raise InputError("--family belongs to an --analysis; name one")
    analysis = None if formula is None else read_analysis(formula, release.schema, family)
    with clock.step("reading the table"):
        confidential = reading()
    specific = None
    if analysis is not None:
        with clock.step("analysis"):
            specific = specific_utility(confidential, release, analysis)
    with clock.step("sums, means and correlations"):
        first = basics(confidential, release.sets)
    measures = general_utility(confidential, release.sets, clock)
    with clock.step("pictures"):
        found = pictures(confidential, release.sets, measures)
    return EvaluationDocument(
        inside_only=NOTE,
        release=ReleaseIdentity.of(release.document),
        weight=release.schema.records.weight,
        seed_of_references=SEED,
        basics=first,
        general=measures,
        specific=specific,
        pictures=found,
        seconds=dict(clock.seconds),
        software=software(),
    )


def basics(table: Table, sets: Sequence[pd.DataFrame]) -> list[BasicFigure]:
    """Compare numbers of records, and means, standard deviations, quantiles and correlations of numeric columns.

    The confidential table is not counted; sets are of its schema. Figures are weighted, with the total of the weights,
    where the schema names weights; None for what a table can't tell. Quantiles are the least values that so many
    records (so much of the weight) don't exceed.
    """
    rng, n = np.random.default_rng(SEED), table.n_records
    own, *others = [_numeric(frame, table.schema) for frame in (table.frame, *sets)]
    names, ours = _basic_figures(own, table.schema)
    theirs = [_basic_figures(rows, table.schema)[1] for rows in others]
    draws = [
        _basic_figures(own[rng.integers(n, size=n)], table.schema)[1]
        for _ in range(min(DRAWS, max(LEAST_DRAWS, DRAWN_CELLS // own.size)))
    ]
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return [
        BasicFigure(
            name=name,
            table=finite(ours[i]),
            by_set=(by_set := tuple(finite(one[i]) for one in theirs)),
            resamples=(finite(low[i]), finite(high[i])),
            mean=mean(by_set),
        )
        for i, name in enumerate(names)
    ]


def _numeric(frame: pd.DataFrame, schema: Schema) -> FloatArray:
    """Return weights, 1 without, and the numeric columns, NaN where missing, shape (records, 1 + columns)."""
    weights = np.ones(len(frame)) if schema.records.weight is None else weights_of(frame, schema)
    columns = [numbers(name, frame[name], each) for name, each in schema.columns.items() if not each.is_categorical]
    return np.column_stack([weights, *columns])


def _basic_figures(rows: FloatArray, schema: Schema) -> tuple[list[str], list[float]]:
    found: dict[str, float] = {"records": len(rows)}
    if schema.records.weight is not None:
        found["total of the weights"] = rows[:, 0].sum()
    names = [
        f"{name} ({column.unit}s since 1970)" if column.type == "date" and column.unit != "year" else name
        for name, column in schema.columns.items()
        if not column.is_categorical
    ]
    kinds = ("mean", "standard deviation", *(f"{level:.0%} quantile" for level in QUANTILES))
    for i, name in enumerate(names, start=1):
        values, weights = rows[~np.isnan(rows[:, i]) & (rows[:, 0] > 0)][:, [i, 0]].T
        figures = np.full(len(kinds), np.nan)
        if len(values):
            figures[:2] = mean_sd((values, weights))
            weighted = None if schema.records.weight is None else weights
            figures[2:] = np.quantile(values, QUANTILES, weights=weighted, method="inverted_cdf")
        found |= {f"{kind} of {name}": figure for kind, figure in zip(kinds, figures, strict=True)}
    for i, j in combinations(range(len(names[:MOST_CORRELATED])), 2):
        weights, x, y = rows[~np.isnan(rows[:, i + 1] + rows[:, j + 1])][:, [0, i + 1, j + 1]].T
        covariance = np.cov(x, y, aweights=weights, ddof=0) if weights.sum() > 0 else np.zeros((2, 2))
        scale = float(np.sqrt(covariance[0, 0] * covariance[1, 1]))
        found[f"correlation of {names[i]} and {names[j]}"] = covariance[0, 1] / scale if scale > 0 else np.nan
    return [*found], [*found.values()]


Figures = Sequence[tuple[float, ...]]  # A row a set, and last the reference; a number for each measure of a group


def resample(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Return as many records drawn with replacement: about as good as synthesis can get."""
    return table.frame.iloc[rng.integers(table.n_records, size=table.n_records)].reset_index(drop=True)


def general_utility(table: Table, sets: Sequence[pd.DataFrame], clock: Clock | None = None) -> list[Measure]:
    """Measure synthetic sets against the table that they were made from.

    Parameters
    ----------
    table, sets : Table and sequence of DataFrame
        The confidential table, not counted, and synthetic sets of its schema.
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

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "sex": Column(levels=["f", "m"])})
    >>> table = Table(pd.DataFrame({"ill": ["no"] * 40 + ["yes"] * 20, "sex": ["f", "m"] * 30}), schema)
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> [measure.name for measure in general_utility(table, release.sets)][:2]
    ['SPECKS', 'pMSE']
    """
    if table.counts is not None:
        raise InputError("an evaluation reads records one by one: read the table with counted=False")
    clock = clock or Clock()
    weighted = table.schema.records.weight is not None
    every = [*some(sets), resample(table, np.random.default_rng(SEED))]
    whole = with_decile_bins(table)
    framed: list[pd.DataFrame] = []

    def of_pairs(measure: Callable[..., Any], *names: str, **settings: Any) -> Figures:
        if not framed:
            framed.extend([_plain(frame, table.schema) for frame in (table.frame, *every)])
        found = [measure(framed[0], other, rng=np.random.default_rng(SEED), **settings) for other in framed[1:]]
        return [tuple(getattr(one, name) for name in names) for one in found]

    at_once = min(MARGINAL, len(table.schema.columns))
    groups: dict[str, Callable[[], tuple[Figures, dict[str, Any]]]] = {
        "SPECKS": lambda: _specks(whole, sets),
        "pMSE": lambda: (of_pairs(standardised_pmse, "pmse", "ratio"), {}),
        f"{MARGINAL}-marginals": lambda: (of_pairs(k_marginal, "score", k=at_once, n_draws=MOST_MARGINS), {}),
        "ECDF": lambda: _ecdf(table, every, weighted),
        "Wasserstein randomization": lambda: (
            of_pairs(wasserstein_randomization, "ratio", distance="columns", n_permutations=SPLITS),
            {"re-splits": SPLITS},
        ),
        **{f"{k}-way margins": partial(_margins, whole, every, k, weighted) for k in (1, 2, 3)},
    }
    found = []
    for name, work_out in groups.items():
        with clock.step(name):
            found += _measures(READINGS[name], weighted and name.endswith(("ECDF", "way margins")), work_out)
    return found


def _measures(readings: Mapping[str, str], weighted: bool, work_out: Callable[[], Any]) -> list[Measure]:
    """Return one measure a reading; the same reason for all where they can't be worked out."""
    figures, detail, reason = [], {}, None
    try:
        figures, detail = work_out()
    except InputError as error:
        reason = str(error)
    values = np.array(figures, dtype=np.float64).reshape(-1, len(readings)).T
    return [
        Measure(
            name=name,
            reading=reading,
            by_set=tuple(map(finite, own[:-1])),
            mean=finite(np.mean(own[:-1])) if len(own) else None,
            reference=finite(own[-1]) if len(own) else None,
            weighted=weighted and reason is None,
            reason=reason,
            detail=MeasureDetail(**{key: value for key, value in detail.items() if key != "picture"}),
            best=BEST.get(name, 0.0),
            picture=detail.get("picture"),
        )
        for (name, reading), own in zip(readings.items(), values, strict=True)
    ]


def _plain(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return records without codes for missing: numbers, and names of levels."""
    if not len(frame):
        raise InputError("a set has no records")
    codes = Table(frame[list(schema.columns)], schema.plain()).codes
    return pd.DataFrame(
        {
            name: numbers(name, frame[name], column)
            if column.levels is None
            else np.array(column.names(), dtype=object)[codes[name]]
            for name, column in schema.columns.items()
        }
    )


def _specks(table: Table, sets: Sequence[pd.DataFrame]) -> tuple[Figures, dict[str, Any]]:
    """Its own reference is the resample that the other measures have, drawn from the same seed."""
    rng, classifier = np.random.default_rng(SEED), "logistic"
    try:
        found = specks(table, sets, classifier=classifier, rng=rng)
    except InputError:  # too many coefficients
        classifier = "main-effects"
        found = specks(table, sets, classifier=classifier, rng=rng)
    figures, scores = [(value,) for value in (*found.by_set, found.reference)], found.scores
    if not scores:
        return figures, {"classifier": classifier}
    spread = PropensitySpread(
        classifier=classifier,
        table=np.mean([one.table for one in scores], axis=0).tolist(),
        sets=np.mean([one.synthetic for one in scores], axis=0).tolist(),
        distance=[one.distance for one in scores],
        at=[one.at for one in scores],
    )
    return figures, {"classifier": classifier, "picture": spread}


def _ecdf(table: Table, every: Sequence[pd.DataFrame], weighted: bool) -> tuple[Figures, dict[str, Any]]:
    found = [ecdf_distances(table, frame, weighted=weighted) for frame in every]
    figures = [tuple(float(np.mean([*one.values()])) for one in (each.largest, each.average)) for each in found]
    by_column = {
        name: {of: float(np.mean([getattr(one, of)[name] for one in found[:-1]])) for of in ("largest", "average")}
        for name in table.schema.columns
    }
    return figures, {"by_column": by_column}


def _margins(table: Table, every: Sequence[pd.DataFrame], k: int, weighted: bool) -> tuple[Figures, dict[str, Any]]:
    options: dict[str, Any] = {"weighted": weighted, "n_draws": MOST_MARGINS}
    found = [k_way(table, [frame], k, **options, rng=np.random.default_rng(SEED)) for frame in every]
    apart = {of: float(np.mean([one["by_margin"][of] for one in found[:-1]])) for of in found[0]["by_margin"]}
    worst = sorted(apart, key=lambda columns: -apart[columns])[:WORST]
    furthest = [{"columns": list(columns), "distance": apart[columns]} for columns in worst]
    return [(one["mean"], one["max"]) for one in found], {"furthest": furthest}


def specific_utility(table: Table, release: ReleaseFolder, analysis: Analysis) -> AnalysisComparison:
    """Fit an analysis to the table and to the sets, and compare.

    Parameters
    ----------
    table, release, analysis : Table, ReleaseFolder and Analysis
        Of one schema. The release's public settings say which rule combines its sets.

    Raises
    ------
    InputError
        If the analysis doesn't fit the table.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> release.write("demo/public")
    >>> analysis = read_analysis("enrolled ~ sex", table.schema)
    >>> [each.coefficient for each in specific_utility(table, open_release("demo"), analysis).coefficients]
    ['Intercept', 'sex[T.male]']
    """
    original = analysis.fit(table.frame)
    if not original.converged:
        raise InputError(
            f"the analysis {analysis.formula!r} doesn't fit the table: too few records, one outcome only, or no maximum"
        )
    rule: Rule = "raab-nowok-dibben"
    note: str | None = "one set can't show the privacy noise: its interval is too short"
    if len(release.sets) > 1:
        rule, note = nearest_rule(release.document.contents())
    coefficients = compare_fits(original, [analysis.fit(frame) for frame in release.sets], level=LEVEL, rule=rule)
    rng = np.random.default_rng(SEED)
    fits = [analysis.fit(resample(table, rng)) for _ in range(RESAMPLES)]
    again = [summary(compare_fits(original, [fit], level=LEVEL)) for fit in fits]
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


def summary(coefficients: pd.DataFrame) -> dict[str, float]:
    """Return means over the coefficients that the table tells; one that a set can't tell counts as missed."""
    known = coefficients[coefficients["original"].notna()].abs()
    columns = ("ci_overlap", "standardized_difference", "same_sign", "covered")
    return {name: float(known[column].mean()) for name, column in zip(SUMMARIES, columns, strict=True)}
