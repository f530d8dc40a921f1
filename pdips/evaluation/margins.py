"""One-way to k-way margins and the full table, synthetic against confidential. For inside use only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import pi, prod, sqrt
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import chdtrc, chdtri, fdtrc
from scipy.stats import chi2_contingency

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Schema
from pdips.data.table import Table, tally
from pdips.errors import InputError
from pdips.evaluation.encoding import (
    CodedRecords,
    TableLike,
    cell_ids,
    coded_columns,
    codes_of,
    paired,
    resampled,
    sizes_of,
    subsets,
    table_codes,
    weights_of,
)
from pdips.release.documents import Comparison, FullTable, Margin, Moments, TwoWay
from pdips.release.documents import mean as mean_of
from pdips.release.large_set import LargeSet

SyntheticSet = pd.DataFrame | LargeSet  # Records, or counts of distinct records

N_BINS = 6  # Bins of a numeric column in the k-marginal score, missing not counted
LEVELS = (0.01, 0.05, 0.10)  # Levels of significance
CATEGORIES = ("<= 0.01", "0.01 - 0.05", "0.05 - 0.1", "> 0.1")  # Of p-values


def compare(table: Table, sets: Sequence[SyntheticSet], rng: np.random.Generator | None = None) -> Comparison:
    """Compare synthetic sets with the table they were made from, as ``run.json`` holds it.

    Parameters
    ----------
    table, sets : Table and sequence of DataFrame or LargeSet
        The confidential table, and synthetic sets of its schema.
    rng : numpy.random.Generator, optional
        For the resample that gives the reference values.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> [margin.column for margin in compare(table, release.sets).one_way][:2]
    ['age', 'sex']
    """
    schema = table.schema
    names, sizes = coded_columns(schema), sizes_of(schema)
    original = CodedRecords.of_table(table)
    synthetic = [CodedRecords.of_set(one, schema) for one in sets if len(one)]
    resample = original.resampled(np.random.default_rng(rng))
    by_set = [_full_distance(original, rows, sizes) for rows in synthetic]
    distance, reference = (_two_way(original, each, sizes) for each in (synthetic, [resample]))
    return Comparison(
        l1=FullTable(by_set=by_set, mean=mean_of(by_set), reference=_full_distance(original, resample, sizes)),
        one_way=[_one_way(schema, j, original, synthetic) for j in range(len(names))],
        two_way=TwoWay(columns=names, distance=distance, reference=reference),
        numeric=moments(table, sets),
    )


def no_comparison() -> Comparison:
    """Return what ``run.json`` holds of a table in many files, whose records are in no one place to compare."""
    nothing = TwoWay(columns=[], distance=[], reference=[])
    return Comparison(l1=FullTable(by_set=[], mean=None, reference=None), one_way=[], two_way=nothing, skipped=True)


def moments(table: Table, sets: Sequence[SyntheticSet]) -> list[Moments]:
    """Compare means and standard deviations of numeric columns that aren't public, with or without bins.

    Where the confidential table or a set is held as counts of distinct records, values are the middles of their bins.
    A column without known values is left out.
    """
    schema, some = table.schema, [one for one in sets if len(one)]
    frames = [table.frame, *(one for one in some if isinstance(one, pd.DataFrame))]
    binned = table.counts is not None or len(frames) <= len(some)
    coded = [CodedRecords.of_table(table), *(CodedRecords.of_set(one, schema) for one in some)] if binned else []
    found = []
    for name, column in schema.columns.items():
        if column.is_categorical or column.public or (binned and not column.is_binned):
            continue
        if binned:
            place = coded_columns(schema).index(name)
            middles, n_values = (column.edges[:-1] + column.edges[1:]) / 2, column.n_values
            held = [tally(one.codes[:, place], one.counts, column.n_levels)[:n_values].astype(float) for one in coded]
            every = [(middles[weights > 0], weights[weights > 0]) for weights in held]
        else:
            known = [pd.Series(numbers(name, frame[name], column)).dropna() for frame in frames]
            every = [(np.asarray(values, dtype=np.float64), np.ones(len(values))) for values in known]
        ours, *theirs = every
        if len(ours[0]):
            width = float(column.upper or 0) - float(column.lower or 0)
            found.append(_moments(name, ours, [one for one in theirs if len(one[0])], width))
    return found


WeightedValues = tuple[FloatArray, FloatArray]  # Values of a column, and how many records have each


def _moments(name: str, ours: WeightedValues, theirs: Sequence[WeightedValues], width: float) -> Moments:
    mean, sd = mean_sd(ours)
    synthetic = [mean_sd(each) for each in theirs]
    unit, n = sd or width / sqrt(12) or 1.0, min([ours[1].sum(), *(each[1].sum() for each in theirs)])
    kurtosis = float(np.average(((ours[0] - mean) / sd) ** 4, weights=ours[1])) if sd else 1.0
    synthetic_sd = mean_of([each[1] for each in synthetic])
    ends = np.quantile(ours[0], (0.01, 0.99), weights=ours[1], method="inverted_cdf").tolist()
    return Moments(
        column=name,
        mean=mean,
        sd=sd,
        synthetic_mean=mean_of([each[0] for each in synthetic]),
        synthetic_sd=synthetic_sd,
        shift=mean_of([abs(each[0] - mean) / unit for each in synthetic]),
        shift_error=sqrt(1 / n),
        ratio=synthetic_sd / sd if sd and synthetic_sd is not None else None,
        ratio_error=sqrt(max(kurtosis - 1, 0.0) / (4 * n)),
        span=(ends[1] - ends[0]) / sd if sd else None,
    )


def mean_sd(weighted: WeightedValues) -> tuple[float, float]:
    values, weights = weighted
    mean = float(np.average(values, weights=weights))
    return mean, sqrt(float(np.average((values - mean) ** 2, weights=weights)))


def k_way(
    table: Table,
    sets: Sequence[SyntheticSet],
    k: int,
    *,
    weighted: bool = False,
    n_draws: int | None = None,
    rng: np.random.Generator | None = None,
) -> dict[str, Any]:
    """Return total variation distances of all margins of ``k`` columns, averaged over synthetic sets.

    Parameters
    ----------
    table, sets, rng
        As in :func:`compare`; ``rng`` draws margins.
    k : int
        Columns of a margin, from 1 to all.
    weighted : bool
        Whether shares are of the weights that the schema names, in the table and in the sets; not for large sets.
    n_draws : int, optional
        How many margins to draw at random, without repetition; default: all, which may be 100,000 at most.

    Returns
    -------
    dict
        ``by_margin``: distance by tuple of column names, from 0 (equal) to 1 (disjoint, or a set without records): half
        the sum over cells of abs(share - share). ``mean`` and ``max`` over the margins.

    Raises
    ------
    InputError
        If there is no set, ``k`` or ``n_draws`` is out of its range, there are too many margins, or no weights.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> 0 <= k_way(table, release.sets, 2)["mean"] <= 1
    True
    """
    names, sizes = coded_columns(table.schema), sizes_of(table.schema)
    if not 1 <= k <= len(names):
        raise InputError(f"needs {k} columns with levels or bins of {len(names)}: k must be from 1 to their number")
    original = CodedRecords.of_table(table)
    synthetic = [CodedRecords.of_set(one, table.schema) for one in some(sets)]
    if weighted:
        sources: list[Any] = [table.frame, *sets]
        if any(isinstance(source, LargeSet) for source in sources):
            raise InputError("weights are not supported for sets too large to hold")
        original, *synthetic = [
            replace(rows, weights=weights_of(source, table.schema))
            for rows, source in zip((original, *synthetic), sources, strict=True)
        ]
    found = {}
    for chosen in subsets(len(names), k, n_draws, rng):
        columns, widths = list(chosen), [sizes[j] for j in chosen]
        apart = [_full_distance(original.of(columns), rows.of(columns), widths) / 2 for rows in synthetic]
        found[tuple(names[j] for j in chosen)] = float(np.mean(apart))
    return {"k": k, "mean": float(np.mean(list(found.values()))), "max": max(found.values()), "by_margin": found}


def some[T](sets: Sequence[T]) -> Sequence[T]:
    """Return sets, of which there must be one."""
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    return sets


def _full_distance(a: CodedRecords, b: CodedRecords, sizes: Sequence[int]) -> float:
    """Return the L1 distance of the full tables, laying out their cells only where they are few."""
    if not len(b.codes):
        return 2.0
    cells = cell_ids(np.vstack([a.codes, b.codes]), sizes)
    if prod(map(int, sizes)) > len(cells):
        _, cells = np.unique(cells, return_inverse=True)
    size, n_first = int(cells.max()) + 1, len(a.codes)
    return float(np.abs(a.shares(cells[:n_first], size) - b.shares(cells[n_first:], size)).sum())


def _one_way(schema: Schema, j: int, original: CodedRecords, synthetic: Sequence[CodedRecords]) -> Margin:
    name = coded_columns(schema)[j]
    column = schema.columns[name]
    ours, *theirs = [rows.shares(rows.codes[:, j], column.n_levels) for rows in (original, *synthetic)]
    size = min(rows.n_records for rows in (original, *synthetic))
    return Margin(
        column=name,
        label=column.label or name,
        unit=column.unit,
        levels=column.shown(),
        table=ours.tolist(),
        synthetic=np.mean(theirs, axis=0).tolist() if theirs else [],
        distance=mean_of([float(np.abs(ours - share).sum() / 2) for share in theirs]),
        # Half the sum over levels of the mean absolute value of a normal whose variance is that of a resampled share.
        reference=min(float(np.sqrt(ours * (1 - ours) / size).sum()) / sqrt(2 * pi), 1.0),
    )


def _two_way(original: CodedRecords, synthetic: Sequence[CodedRecords], sizes: Sequence[int]) -> Any:
    distance = np.zeros((len(sizes), len(sizes)))
    for i, j in combinations(range(len(sizes)), 2):
        ours, *theirs = [
            rows.shares(rows.codes[:, i] * sizes[j] + rows.codes[:, j], sizes[i] * sizes[j])
            for rows in (original, *synthetic)
        ]
        apart = [np.abs(ours - share).sum() / 2 for share in theirs]
        distance[i, j] = distance[j, i] = np.mean(apart) if apart else np.nan
    return distance.tolist()


@dataclass(frozen=True, kw_only=True, eq=False)
class KMarginal:
    """k-marginal scores, from 0 (disjoint) to 1000 (equal).

    ``score`` is the mean over all sets of ``k`` columns that were looked at, ``by_columns`` has the score of each.
    """

    score: float
    by_columns: dict[tuple[str, ...], float]


def k_marginal(
    original: TableLike,
    synthetic: TableLike,
    k: int = 3,
    columns: Sequence[str] | None = None,
    *,
    n_draws: int | None = None,
    rng: np.random.Generator | None = None,
) -> KMarginal:
    """Compare the joint distributions of ``k`` columns at a time, in bins.

    Parameters
    ----------
    original, synthetic : DataFrame or array_like, shape (records, columns)
        The confidential table and a synthetic set; see :func:`pdips.evaluation.encoding.paired`.
    k : int
        Columns of a margin, from 1 to all.
    columns : sequence of str, optional
        Which to use; default: all.
    n_draws : int, optional
        How many sets of ``k`` columns to draw at random, without repetition; default: all sets.
    rng : numpy.random.Generator, optional
        Draws them.

    Raises
    ------
    InputError
        If ``k`` or ``n_draws`` is out of its range, tables don't match or are empty, or there are more than 100,000
        sets of columns and ``n_draws`` doesn't choose among them.

    Notes
    -----
    Task, Bhagat and Howarth (2021); ``docs/utility.md#k-marginal-score``. A numeric column has six bins, by the
    quartiles (R's type 7) of the *original*, open on the left; a level is a bin of its own, and so is missing. The
    score is 1000 (2 - sum abs(share - share)) / 2 over all combinations of bins.

    Examples
    --------
    >>> original = pd.DataFrame({"ill": [0, 0, 1] * 30, "old": [0, 1] * 45})
    >>> k_marginal(original, original, 2).score
    1000.0
    """
    pairs = paired(original, synthetic, columns)
    if not 1 <= k <= len(pairs):
        raise InputError(f"k must be from 1 to the number of columns, {len(pairs)}, not {k}")
    names, n = [pair.name for pair in pairs], len(pairs[0].original)
    coded = [
        bins_of(pair.pooled, pair.original) if pair.levels is None else pair.pooled.astype(np.int64) for pair in pairs
    ]
    sizes = [int(codes.max()) + 1 for codes in coded]
    found = {}
    for chosen in subsets(len(pairs), k, n_draws, rng):
        codes = np.column_stack([coded[j] for j in chosen])
        apart = _full_distance(CodedRecords(codes[:n]), CodedRecords(codes[n:]), [sizes[j] for j in chosen])
        found[tuple(names[j] for j in chosen)] = 1000 * (2 - apart) / 2
    return KMarginal(score=float(np.mean(list(found.values()))), by_columns=found)


def bins_of(values: FloatArray, original: FloatArray) -> IntArray:
    """Return the bin of each value, 0 to 5, open on the left, by the quartiles of the original; 6 for missing."""
    known = original[~np.isnan(original)]
    edges = np.quantile(known, [0, 0.25, 0.5, 0.75, 1]) if len(known) else np.zeros(5)
    return np.where(np.isnan(values), N_BINS, np.searchsorted(edges, values, side="left"))


@dataclass(frozen=True, kw_only=True, eq=False)
class Association:
    """Conclusions of chi-square tests of every two columns on the table and, combined, on the synthetic sets.

    ``consistency`` is by level of significance the share of pairs on which both conclude alike, ``reference`` the same
    for a single set drawn with replacement from the table itself; ``crosstab`` counts pairs by category of the
    original (rows) and of the synthetic p-value (columns).
    """

    pairs: list[tuple[str, str]]
    p_original: FloatArray
    p_synthetic: FloatArray
    consistency: dict[float, float]
    crosstab: pd.DataFrame
    reference: dict[float, float]


def chi_square(table: Table, sets: Sequence[pd.DataFrame], *, rng: np.random.Generator | None = None) -> Association:
    """Compare the conclusions of Pearson's chi-square test on every pair of columns.

    Parameters
    ----------
    table, sets, rng
        As in :func:`compare`, at least one set, none of them large; binned columns count as categories of their bins.

    Notes
    -----
    Bowen, Liu and Su (2021), section 4.3, without corrections: ``docs/utility.md#chi-square-tests-of-association``. A
    test leaves out levels that its own table doesn't have; with no degrees of freedom left the p-value is 1. A set that
    lacks levels enters the combination with the statistic that has the same p-value at the largest number of degrees
    of freedom among the sets.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> 0 <= chi_square(table, release.sets).consistency[0.05] <= 1
    True
    """
    names, sizes = coded_columns(table.schema), sizes_of(table.schema)
    original = table_codes(table)
    ours = _p_values([original], sizes)
    theirs = _p_values([codes_of(frame, table.schema) for frame in some(sets)], sizes)
    crosstab = np.zeros((len(CATEGORIES), len(CATEGORIES)), dtype=np.int64)
    np.add.at(crosstab, (np.searchsorted(LEVELS, ours), np.searchsorted(LEVELS, theirs)), 1)
    return Association(
        pairs=list(combinations(names, 2)),
        p_original=ours,
        p_synthetic=theirs,
        consistency=_consistency(ours, theirs),
        crosstab=pd.DataFrame(crosstab, pd.Index(CATEGORIES, name="original"), pd.Index(CATEGORIES, name="synthetic")),
        reference=_consistency(ours, _p_values([resampled(original, rng)], sizes)),
    )


def combine_chi_square(statistics: ArrayLike, df: int) -> float:
    """Combine chi-square statistics of one hypothesis, with ``df`` degrees of freedom, into one p-value.

    Li, Meng, Raghunathan and Rubin (1991), *Significance levels from repeated p-values with multiply-imputed data*,
    Statistica Sinica 1, 65-92: with ``r = (1 + 1/m) var(sqrt d)``, variance with m - 1 below,

        D = (mean(d) / k - (m + 1) / (m - 1) r) / (1 + r),

    referred to the F distribution with ``k`` and ``k^(-3/m) (m - 1) (1 + 1/r)^2`` degrees of freedom (to chi-square for
    ``r = 0``). It was made for imputed data. Where sets disagree, as under much noise, it is conservative: D may even
    be negative, and the p-value is then 1. A single statistic keeps its own.
    """
    d = np.asarray(statistics, dtype=np.float64)
    m = len(d)
    if m == 1:
        return float(chdtrc(df, d[0]))
    r = (1 + 1 / m) * float(np.sqrt(d).var(ddof=1))
    statistic = max(0.0, (float(d.mean()) / df - (m + 1) / (m - 1) * r) / (1 + r))
    if r < 1e-12:
        return float(chdtrc(df, df * statistic))
    return float(fdtrc(df, df ** (-3 / m) * (m - 1) * (1 + 1 / r) ** 2, statistic))


def pearson(counts: FloatArray) -> tuple[float, int]:
    """Return Pearson's chi-square statistic and degrees of freedom of a two-way table, empty levels left out."""
    kept = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    if min(kept.shape) < 2:
        return 0.0, 0
    found = chi2_contingency(kept, correction=False)
    return float(found.statistic), int(found.dof)


def _p_values(tables: Sequence[IntArray], sizes: Sequence[int]) -> FloatArray:
    """Return the p-value of each pair of columns, combined over tables."""
    found = []
    for i, j in combinations(range(len(sizes)), 2):
        shape = (sizes[i], sizes[j])
        counts = [np.bincount(c[:, i] * sizes[j] + c[:, j], minlength=prod(shape)).reshape(shape) for c in tables]
        tests = [pearson(each.astype(np.float64)) for each in counts]
        df = max(own for _, own in tests)
        statistics = [_at_df(statistic, own, df) for statistic, own in tests]
        found.append(combine_chi_square(statistics, df) if df else 1.0)
    return np.array(found)


def _at_df(statistic: float, own: int, df: int) -> float:
    """Return the statistic that has the same p-value at more degrees of freedom."""
    if own in (0, df):
        return statistic
    p = float(chdtrc(own, statistic))
    return float(chdtri(df, p)) if p > 0 else statistic


def _consistency(a: FloatArray, b: FloatArray) -> dict[float, float]:
    return {level: float(np.mean((a <= level) == (b <= level))) if len(a) else float("nan") for level in LEVELS}
