"""A release compared with its table: general utility, and the utility of an analysis.
For inside use only.
"""

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
from pdips.evaluation.distribution import ecdf_distances
from pdips.evaluation.document import (
    SUMMARIES,
    AnalysisComparison,
    BasicFigure,
    EvaluationDocument,
    Measure,
    MeasureDetail,
    ReleaseFolder,
    open_release,
    open_table,
)
from pdips.evaluation.encoding import weights_of, with_decile_bins
from pdips.evaluation.formula import Analysis, read_analysis
from pdips.evaluation.margins import k_way, mean_sd, some
from pdips.evaluation.pictures import pictures
from pdips.evaluation.propensity import specks, standardised_pmse
from pdips.evaluation.regression import Family, Fit, compare_fits
from pdips.extras import require
from pdips.inference.rules import Rule, nearest_rule
from pdips.privacy.curator import Clock
from pdips.release.documents import ReleaseIdentity, mean
from pdips.release.release import Release, software

SEED = 0  # Of resamples and re-splits: a second run gives the same figures
# Sets of columns that are looked at, drawn at random where there are more: the same for
# every set
MOST_MARGINS = 1_000
WORST = 5  # Margins furthest apart that are named
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
# Numeric columns, the first ones, of which all correlations are compared
MOST_CORRELATED = 10
# Resamples for basic figures' scale, fewer for more numbers
DRAWS = 200
LEAST_DRAWS = 20
DRAWN_CELLS = 5_000_000
READINGS = {
    "SPECKS": {"SPECKS": "0 can't be told apart, 1 wholly apart"},
    "pMSE": {
        "pMSE": "0 can't be told apart",
        "pMSE over its null": "about 1 for a right model",
    },
    "ECDF": {"max-ECDF": "0 equal, 1 disjoint", "avg-ECDF": "0 equal, 1 disjoint"},
    **{
        f"{k}-way margins": {
            f"TVD of {k}-way margins": "0 equal, 1 disjoint",
            f"TVD of {k}-way margins, largest": "0 equal",
        }
        for k in (1, 2, 3)
    },
}
"""Measures, and what their ends mean, by the group that is worked out together."""
RESAMPLES = 5  # Of the table, for the reference of an analysis
LEVEL = 0.95
NOTE = (
    "Inside only: computed from the confidential table, and no epsilon pays for it. "
    "Publishing a figure leaks; so does "
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
        The confidential table, or those of households and of members, and the folder of
        the release.
    formula, family : str, optional
        An analysis; see :func:`pdips.evaluation.formula.read_analysis`.
    clock : Clock, optional
        Times the steps.

    Raises
    ------
    InputError
        If the folder holds no release, sets or table don't fit its schema, or the
        analysis doesn't.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> table = Table(
    ...     pd.DataFrame({"ill": ["no"] * 40 + ["yes"] * 20, "sex": ["f", "m"] * 30}),
    ...     schema,
    ... )
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> release.write("demo/public")
    >>> table.frame.to_parquet("table.parquet")
    >>> 0 <= evaluate("table.parquet", "demo").measure("SPECKS").mean <= 1
    True
    """
    clock = clock or Clock()
    with clock.step("reading the release"):
        release = open_release(directory)
    return _evaluated(
        release, lambda: open_table(table, release), formula, family, clock
    )


def evaluate_held(
    table: Any, release: Release, formula: str | None, family: Family | None
) -> EvaluationDocument:
    """Compare a release in memory with its table: see :func:`evaluate`."""
    held = ReleaseFolder(
        folder=Path(),
        home=Path("confidential"),
        document=release.document(),
        sets=release.sets,
    )

    def opened() -> Table:
        if isinstance(table, Table):
            return table
        if are_two(table, release.schema):
            return Table.of_households(table[0], table[1], release.schema)
        return Table(table, release.schema)

    return _evaluated(held, opened, formula, family, Clock())


def _evaluated(
    release: ReleaseFolder,
    reading: Callable[[], Table],
    formula: str | None,
    family: Family | None,
    clock: Clock,
) -> EvaluationDocument:
    if family is not None and formula is None:
        raise InputError("--family belongs to an --analysis; name one")
    require("report", "an evaluation needs")
    analysis = None
    if formula is not None:
        analysis = read_analysis(formula, release.schema, family)
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
        drawn = pictures(confidential, release.sets, measures)
    return EvaluationDocument(
        inside_only=NOTE,
        release=ReleaseIdentity.of(release.document),
        weight=release.schema.records.weight,
        seed_of_references=SEED,
        basics=first,
        general=measures,
        specific=specific,
        pictures=drawn,
        seconds=dict(clock.seconds),
        software=software(),
    )


def basics(table: Table, sets: Sequence[pd.DataFrame]) -> list[BasicFigure]:
    """Compare numbers of records, and means, standard deviations, quantiles and
    correlations of numeric columns.

    The confidential table is not counted; sets are of its schema. Figures are weighted,
    with the total of the weights, where the schema names weights; None for what a table
    can't tell. Quantiles are the least values that so many records (so much of the
    weight) don't exceed.
    """
    rng = np.random.default_rng(SEED)
    n = table.n_records
    schema = table.schema
    own = _numeric(table.frame, schema)
    ours = _basic_figures(own, schema)
    theirs = [_basic_figures(_numeric(frame, schema), schema) for frame in sets]
    n_draws = min(DRAWS, max(LEAST_DRAWS, DRAWN_CELLS // own.size))
    resamples = []
    for _ in range(n_draws):
        drawn = _basic_figures(own[rng.integers(n, size=n)], schema)
        resamples.append([*drawn.values()])
    ends = np.quantile(resamples, [0.025, 0.975], axis=0).T
    figures = []
    for (name, figure), (low, high) in zip(ours.items(), ends, strict=True):
        by_set = tuple(finite(one[name]) for one in theirs)
        figures.append(
            BasicFigure(
                name=name,
                table=finite(figure),
                by_set=by_set,
                resamples=(finite(low), finite(high)),
                mean=mean(by_set),
            )
        )
    return figures


def _numeric(frame: pd.DataFrame, schema: Schema) -> FloatArray:
    """Return weights, 1 without, and the numeric columns, NaN where missing, shape
    (records, 1 + columns).
    """
    weights = np.ones(len(frame))
    if schema.records.weight is not None:
        weights = weights_of(frame, schema)
    columns = [
        numbers(name, frame[name], each)
        for name, each in schema.columns.items()
        if not each.is_categorical
    ]
    return np.column_stack([weights, *columns])


def _basic_figures(rows: FloatArray, schema: Schema) -> dict[str, float]:
    """Return the figures by name; ``rows`` as :func:`_numeric` gives them."""
    is_weighted = schema.records.weight is not None
    weights = rows[:, 0]
    figures: dict[str, float] = {"records": len(rows)}
    if is_weighted:
        figures["total of the weights"] = weights.sum()
    names = _shown_names(schema)
    for name, values in zip(names, rows[:, 1:].T, strict=True):
        known = ~np.isnan(values) & (weights > 0)
        of_column = _figures_of(values[known], weights[known], weighted=is_weighted)
        figures |= {f"{kind} of {name}": each for kind, each in of_column.items()}
    correlated = zip(names[:MOST_CORRELATED], rows[:, 1:].T, strict=False)
    for (first, x), (second, y) in combinations(correlated, 2):
        known = ~np.isnan(x + y)
        figures[f"correlation of {first} and {second}"] = _correlation(
            x[known], y[known], weights[known]
        )
    return figures


def _shown_names(schema: Schema) -> list[str]:
    """Return the names of the numeric columns, of dates with their unit."""
    names = []
    for name, column in schema.columns.items():
        if column.is_categorical:
            continue
        if column.type == "date" and column.unit != "year":
            names.append(f"{name} ({column.unit}s since 1970)")
        else:
            names.append(name)
    return names


def _figures_of(
    values: FloatArray, weights: FloatArray, *, weighted: bool
) -> dict[str, float]:
    """Return mean, standard deviation and quantiles; NaN without values."""
    quantiles = [f"{level:.0%} quantile" for level in QUANTILES]
    if not len(values):
        kinds = ("mean", "standard deviation", *quantiles)
        return dict.fromkeys(kinds, float("nan"))
    centre, deviation = mean_sd((values, weights))
    levels = np.quantile(
        values,
        QUANTILES,
        weights=weights if weighted else None,
        method="inverted_cdf",
    )
    figures = {"mean": centre, "standard deviation": deviation}
    return figures | dict(zip(quantiles, levels.tolist(), strict=True))


def _correlation(x: FloatArray, y: FloatArray, weights: FloatArray) -> float:
    if not weights.sum() > 0:
        return float("nan")
    covariance = np.cov(x, y, aweights=weights, ddof=0)
    scale = float(np.sqrt(covariance[0, 0] * covariance[1, 1]))
    return float(covariance[0, 1]) / scale if scale > 0 else float("nan")


# A row a set, and last the reference; a number for each measure of a group
Figures = Sequence[tuple[float, ...]]
# With what more there is to say of them
Worked = tuple[Figures, dict[str, Any]]


def resample(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Return as many records drawn with replacement: about as good as synthesis can
    get.
    """
    rows = rng.integers(table.n_records, size=table.n_records)
    return table.frame.iloc[rows].reset_index(drop=True)


def general_utility(
    table: Table, sets: Sequence[pd.DataFrame], clock: Clock | None = None
) -> list[Measure]:
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
        SPECKS, pMSE and its ratio to the null, max-ECDF and avg-ECDF (means over
        columns), total variation of one-, two- and three-way margins (means and
        largest). One that can't be worked out on this schema says why.

    Raises
    ------
    InputError
        If there is no set, or the table is counted.

    Notes
    -----
    Margins and ECDF are weighted where the schema names weights. The resample has a
    fixed seed, so that a second run gives the same figures.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> table = Table(
    ...     pd.DataFrame({"ill": ["no"] * 40 + ["yes"] * 20, "sex": ["f", "m"] * 30}),
    ...     schema,
    ... )
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> [measure.name for measure in general_utility(table, release.sets)][:2]
    ['SPECKS', 'pMSE']
    """
    if table.counts is not None:
        raise InputError(
            "an evaluation reads records one by one: read the table with counted=False"
        )
    require("report", "an evaluation needs")
    clock = clock or Clock()
    weighted = table.schema.records.weight is not None
    every = [*some(sets), resample(table, np.random.default_rng(SEED))]
    whole = with_decile_bins(table)
    groups: dict[str, Callable[[], Worked]] = {
        "SPECKS": lambda: _specks(whole, sets),
        "pMSE": lambda: _pmse(table, every),
        "ECDF": lambda: _ecdf(table, every, weighted),
    }
    for k in (1, 2, 3):
        groups[f"{k}-way margins"] = partial(_margins, whole, every, k, weighted)
    measures = []
    for name, work_out in groups.items():
        by_weight = weighted and name.endswith(("ECDF", "way margins"))
        with clock.step(name):
            measures += _measures(READINGS[name], by_weight, work_out)
    return measures


def _measures(
    readings: Mapping[str, str], weighted: bool, work_out: Callable[[], Worked]
) -> list[Measure]:
    """Return one measure a reading; the same reason for all where they can't be worked
    out.
    """
    try:
        figures, more = work_out()
    except InputError as error:
        return [
            Measure(
                name=name,
                reading=reading,
                by_set=(),
                mean=None,
                reference=None,
                weighted=False,
                reason=str(error),
            )
            for name, reading in readings.items()
        ]
    detail = MeasureDetail(**more)
    by_measure = np.array(figures, dtype=np.float64).T
    measures = []
    for (name, reading), (*own, reference) in zip(
        readings.items(), by_measure.tolist(), strict=True
    ):
        by_set = tuple(map(finite, own))
        average = finite(np.mean(own))
        measures.append(
            Measure(
                name=name,
                reading=reading,
                by_set=by_set,
                mean=average,
                reference=finite(reference),
                weighted=weighted,
                reason=None,
                detail=detail,
            )
        )
    return measures


def _pmse(table: Table, every: Sequence[pd.DataFrame]) -> Worked:
    original = _plain(table.frame, table.schema)
    figures = []
    for frame in every:
        score = standardised_pmse(original, _plain(frame, table.schema))
        figures.append((score.pmse, score.ratio))
    return figures, {}


def _plain(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return records without codes for missing: numbers, and names of levels."""
    if not len(frame):
        raise InputError("a set has no records")
    codes = Table(frame[list(schema.columns)], schema.plain()).codes
    plain = {}
    for name, column in schema.columns.items():
        if column.levels is None:
            plain[name] = numbers(name, frame[name], column)
        else:
            plain[name] = np.array(column.names(), dtype=object)[codes[name]]
    return pd.DataFrame(plain)


def _specks(table: Table, sets: Sequence[pd.DataFrame]) -> Worked:
    """Its own reference is the resample that the other measures have, drawn from the
    same seed.
    """
    rng = np.random.default_rng(SEED)
    classifier = "logistic"
    try:
        distances = specks(table, sets, classifier=classifier, rng=rng)
    except InputError:  # too many coefficients
        classifier = "main-effects"
        distances = specks(table, sets, classifier=classifier, rng=rng)
    figures = [(value,) for value in (*distances.by_set, distances.reference)]
    return figures, {"classifier": classifier}


def _ecdf(table: Table, every: Sequence[pd.DataFrame], weighted: bool) -> Worked:
    distances = [ecdf_distances(table, frame, weighted=weighted) for frame in every]
    figures = []
    for one in distances:
        largest = float(np.mean([*one.largest.values()]))
        figures.append((largest, float(np.mean([*one.average.values()]))))
    of_sets = distances[:-1]
    by_column = {}
    for name in table.schema.columns:
        largest = np.mean([one.largest[name] for one in of_sets])
        average = np.mean([one.average[name] for one in of_sets])
        by_column[name] = {"largest": float(largest), "average": float(average)}
    return figures, {"by_column": by_column}


def _margins(
    table: Table, every: Sequence[pd.DataFrame], k: int, weighted: bool
) -> Worked:
    distances = []
    for frame in every:
        rng = np.random.default_rng(SEED)
        distances.append(
            k_way(table, [frame], k, weighted=weighted, n_draws=MOST_MARGINS, rng=rng)
        )
    apart = {}
    for columns in distances[0]["by_margin"]:
        of_sets = [one["by_margin"][columns] for one in distances[:-1]]
        apart[columns] = float(np.mean(of_sets))
    worst = sorted(apart, key=lambda columns: -apart[columns])[:WORST]
    furthest = [
        {"columns": list(columns), "distance": apart[columns]} for columns in worst
    ]
    return [(one["mean"], one["max"]) for one in distances], {"furthest": furthest}


def specific_utility(
    table: Table, release: ReleaseFolder, analysis: Analysis
) -> AnalysisComparison:
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
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> release.write("demo/public")
    >>> analysis = read_analysis("enrolled ~ sex", table.schema)
    >>> [
    ...     each.coefficient
    ...     for each in specific_utility(
    ...         table, open_release("demo"), analysis
    ...     ).coefficients
    ... ]
    ['Intercept', 'sex[male]']
    """
    original = analysis.fit(table.frame)
    if not original.converged:
        raise InputError(
            f"the analysis {analysis.formula!r} doesn't fit the table: too few "
            f"records, one outcome only, or no maximum"
        )
    rule: Rule = "raab-nowok-dibben"
    note: str | None = "one set can't show the privacy noise: its interval is too short"
    if len(release.sets) > 1:
        rule, note = nearest_rule(release.document.contents())
    coefficients = compare_fits(
        original,
        [analysis.fit(frame) for frame in release.sets],
        level=LEVEL,
        rule=rule,
    )
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
            "reference": _reference_summary(table, analysis, original),
        }
    )


def _reference_summary(
    table: Table, analysis: Analysis, original: Fit
) -> dict[str, float]:
    """Return the mean summary of resamples of the table, each with its own interval."""
    rng = np.random.default_rng(SEED)
    summaries = []
    for _ in range(RESAMPLES):
        fit = analysis.fit(resample(table, rng))
        summaries.append(summary(compare_fits(original, [fit], level=LEVEL)))
    means = pd.DataFrame(summaries).mean(skipna=False)
    return {name: float(means[name]) for name in SUMMARIES}


def summary(coefficients: pd.DataFrame) -> dict[str, float]:
    """Return means over the coefficients that the table tells; one that a set can't
    tell counts as missed.
    """
    known = coefficients[coefficients["original"].notna()].abs()
    columns = ("ci_overlap", "standardized_difference", "same_sign", "covered")
    return {
        name: float(known[column].mean())
        for name, column in zip(SUMMARIES, columns, strict=True)
    }
