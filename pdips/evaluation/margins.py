"""One-way to k-way margins and the full table, synthetic against confidential. For
inside use only.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import pi, prod, sqrt
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema
from pdips.data.table import Table, tally
from pdips.errors import InputError
from pdips.evaluation.encoding import (
    CodedRecords,
    cell_ids,
    coded_columns,
    sizes_of,
    subsets,
    weights_of,
)
from pdips.release.documents import Comparison, FullTable, Margin, Moments, TwoWay
from pdips.release.documents import mean as mean_of
from pdips.release.large_set import LargeSet

SyntheticSet = pd.DataFrame | LargeSet  # Records, or counts of distinct records


def compare(
    table: Table, sets: Sequence[SyntheticSet], rng: np.random.Generator | None = None
) -> Comparison:
    """Compare synthetic sets with the table they were made from, as ``run.json`` holds
    it.

    Parameters
    ----------
    table, sets : Table and sequence of DataFrame or LargeSet
        The confidential table, and synthetic sets of its schema.
    rng : numpy.random.Generator, optional
        For the resample that gives the reference values.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> [margin.column for margin in compare(table, release.sets).one_way][:2]
    ['age', 'sex']
    """
    schema = table.schema
    names = coded_columns(schema)
    sizes = sizes_of(schema)
    original = CodedRecords.of_table(table)
    synthetic = [CodedRecords.of_set(one, schema) for one in sets if len(one)]
    resample = original.resampled(np.random.default_rng(rng))
    by_set = [full_distance(original, rows, sizes) for rows in synthetic]
    full = FullTable(
        by_set=by_set,
        mean=mean_of(by_set),
        reference=full_distance(original, resample, sizes),
    )
    two_way = TwoWay(
        columns=names,
        distance=_two_way(original, synthetic, sizes),
        reference=_two_way(original, [resample], sizes),
    )
    return Comparison(
        l1=full,
        one_way=[_one_way(schema, j, original, synthetic) for j in range(len(names))],
        two_way=two_way,
        numeric=moments(table, sets),
    )


def no_comparison() -> Comparison:
    """Return what ``run.json`` holds of a table in many files, whose records are in no
    one place to compare.
    """
    nothing = TwoWay(columns=[], distance=[], reference=[])
    return Comparison(
        l1=FullTable(by_set=[], mean=None, reference=None),
        one_way=[],
        two_way=nothing,
        numeric=[],
        skipped=True,
    )


def moments(table: Table, sets: Sequence[SyntheticSet]) -> list[Moments]:
    """Compare means and standard deviations of numeric columns that aren't public, with
    or without bins.

    Where the confidential table or a set is held as counts of distinct records, values
    are the middles of their bins. A column without known values is left out.
    """
    schema = table.schema
    nonempty = [one for one in sets if len(one)]
    frames = [one for one in nonempty if isinstance(one, pd.DataFrame)]
    is_binned = table.counts is not None or len(frames) < len(nonempty)
    coded = []
    if is_binned:
        coded = [CodedRecords.of_set(one, schema) for one in nonempty]
        coded.insert(0, CodedRecords.of_table(table))
    compared = []
    for name, column in schema.columns.items():
        if column.is_categorical or column.public:
            continue
        if not is_binned:
            every = [
                _known_values(name, frame, column) for frame in (table.frame, *frames)
            ]
        elif column.is_binned:
            place = coded_columns(schema).index(name)
            every = [_binned_values(rows, place, column) for rows in coded]
        else:
            continue
        ours, *theirs = every
        if len(ours[0]):
            width = float(column.upper or 0) - float(column.lower or 0)
            theirs = [values for values in theirs if len(values[0])]
            compared.append(_moments(name, ours, theirs, width))
    return compared


# Values of a column, and how many records have each
WeightedValues = tuple[FloatArray, FloatArray]


def _known_values(name: str, frame: pd.DataFrame, column: Column) -> WeightedValues:
    known = pd.Series(numbers(name, frame[name], column)).dropna()
    return np.asarray(known, dtype=np.float64), np.ones(len(known))


def _binned_values(rows: CodedRecords, place: int, column: Column) -> WeightedValues:
    """Return the middles of the bins that have records, missing left out."""
    counts = tally(rows.codes[:, place], rows.counts, column.n_levels)
    weights = counts[: column.n_values].astype(float)
    middles = (column.edges[:-1] + column.edges[1:]) / 2
    return middles[weights > 0], weights[weights > 0]


def _moments(
    name: str, ours: WeightedValues, theirs: Sequence[WeightedValues], width: float
) -> Moments:
    values, weights = ours
    mean, sd = mean_sd(ours)
    synthetic = [mean_sd(each) for each in theirs]
    synthetic_sd = mean_of([each[1] for each in synthetic])
    n = min([weights.sum(), *(each[1].sum() for each in theirs)])
    # a column that doesn't vary is measured by the deviation of an even one
    unit = sd or width / sqrt(12) or 1.0
    kurtosis = 1.0
    ratio = None
    span = None
    if sd:
        kurtosis = float(np.average(((values - mean) / sd) ** 4, weights=weights))
        ends = (0.01, 0.99)
        low, high = np.quantile(values, ends, weights=weights, method="inverted_cdf")
        span = float(high - low) / sd
    if sd and synthetic_sd is not None:
        ratio = synthetic_sd / sd
    ratio_error = sqrt(max(kurtosis - 1, 0.0) / (4 * n))
    synthetic_mean = mean_of([each[0] for each in synthetic])
    shift = mean_of([abs(each[0] - mean) / unit for each in synthetic])
    return Moments(
        column=name,
        mean=mean,
        sd=sd,
        synthetic_mean=synthetic_mean,
        synthetic_sd=synthetic_sd,
        shift=shift,
        shift_error=sqrt(1 / n),
        ratio=ratio,
        ratio_error=ratio_error,
        span=span,
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
    """Return total variation distances of all margins of ``k`` columns, averaged over
    synthetic sets.

    Parameters
    ----------
    table, sets, rng
        As in :func:`compare`; ``rng`` draws margins.
    k : int
        Columns of a margin, from 1 to all.
    weighted : bool
        Whether shares are of the weights that the schema names, in the table and in the
        sets; not for large sets.
    n_draws : int, optional
        How many margins to draw at random, without repetition; default: all, which may
        be 100,000 at most.

    Returns
    -------
    dict
        ``by_margin``: distance by tuple of column names, from 0 (equal) to 1 (disjoint,
        or a set without records): half the sum over cells of abs(share - share).
        ``mean`` and ``max`` over the margins.

    Raises
    ------
    InputError
        If there is no set, ``k`` or ``n_draws`` is out of its range, there are too many
        margins, or no weights.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> 0 <= k_way(table, release.sets, 2)["mean"] <= 1
    True
    """
    names = coded_columns(table.schema)
    sizes = sizes_of(table.schema)
    if not 1 <= k <= len(names):
        raise InputError(
            f"needs {k} columns with levels or bins of {len(names)}: k "
            f"must be from 1 to their number"
        )
    original = CodedRecords.of_table(table)
    synthetic = [CodedRecords.of_set(one, table.schema) for one in some(sets)]
    if weighted:
        frames = [one for one in sets if isinstance(one, pd.DataFrame)]
        if len(frames) < len(sets):
            raise InputError("weights are not supported for sets too large to hold")
        original = replace(original, weights=weights_of(table.frame, table.schema))
        synthetic = [
            replace(rows, weights=weights_of(frame, table.schema))
            for rows, frame in zip(synthetic, frames, strict=True)
        ]
    by_margin = {}
    for chosen in subsets(len(names), k, n_draws, rng):
        columns = list(chosen)
        widths = [sizes[j] for j in chosen]
        ours = original.of(columns)
        apart = [full_distance(ours, rows.of(columns), widths) for rows in synthetic]
        margin = tuple(names[j] for j in chosen)
        by_margin[margin] = float(np.mean(apart)) / 2
    return {
        "k": k,
        "mean": float(np.mean(list(by_margin.values()))),
        "max": max(by_margin.values()),
        "by_margin": by_margin,
    }


def some[T](sets: Sequence[T]) -> Sequence[T]:
    """Return sets, of which there must be one."""
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    return sets


def full_distance(a: CodedRecords, b: CodedRecords, sizes: Sequence[int]) -> float:
    """Return the L1 distance of the full tables, laying out their cells only where they
    are few.
    """
    if not len(b.codes):
        return 2.0
    cells = cell_ids(np.vstack([a.codes, b.codes]), sizes)
    if prod(map(int, sizes)) > len(cells):
        _, cells = np.unique(cells, return_inverse=True)
    size = int(cells.max()) + 1
    n_first = len(a.codes)
    ours = a.shares(cells[:n_first], size)
    theirs = b.shares(cells[n_first:], size)
    return float(np.abs(ours - theirs).sum())


def _one_way(
    schema: Schema, j: int, original: CodedRecords, synthetic: Sequence[CodedRecords]
) -> Margin:
    name = coded_columns(schema)[j]
    column = schema.columns[name]
    ours, *theirs = [
        rows.shares(rows.codes[:, j], column.n_levels)
        for rows in (original, *synthetic)
    ]
    size = min(rows.n_records for rows in (original, *synthetic))
    # Half the sum over levels of the mean absolute value of a normal whose variance
    # is that of a resampled share
    errors = np.sqrt(ours * (1 - ours) / size)
    expected = float(errors.sum()) / sqrt(2 * pi)
    apart = [float(np.abs(ours - share).sum() / 2) for share in theirs]
    synthetic_shares = np.mean(theirs, axis=0).tolist() if theirs else []
    return Margin(
        column=name,
        label=column.label or name,
        unit=column.unit,
        levels=column.shown(),
        table=ours.tolist(),
        synthetic=synthetic_shares,
        distance=mean_of(apart),
        reference=min(expected, 1.0),
    )


def _two_way(
    original: CodedRecords, synthetic: Sequence[CodedRecords], sizes: Sequence[int]
) -> Any:
    distance = np.zeros((len(sizes), len(sizes)))
    for i, j in combinations(range(len(sizes)), 2):
        shares = []
        for rows in (original, *synthetic):
            cells = rows.codes[:, i] * sizes[j] + rows.codes[:, j]
            shares.append(rows.shares(cells, sizes[i] * sizes[j]))
        ours, *theirs = shares
        apart = [np.abs(ours - share).sum() / 2 for share in theirs]
        distance[i, j] = np.mean(apart) if apart else np.nan
        distance[j, i] = distance[i, j]
    return distance.tolist()
