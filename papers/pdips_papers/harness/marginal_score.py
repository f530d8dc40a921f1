"""The k-marginal score of NIST, for tables without a schema. For inside use only."""

from itertools import combinations

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.evaluation.encoding import CodedRecords, ColumnPair, TableLike, paired
from pdips.evaluation.margins import full_distance

N_BINS = 6  # Of a numeric column, missing not counted


def k_marginal(
    original: TableLike, synthetic: TableLike, k: int = 3
) -> dict[tuple[str, ...], float]:
    """Return the score of every ``k`` columns, from 0 (disjoint) to 1000 (equal).

    Task, Bhagat and Howarth (2021). A numeric column has six bins, by the quartiles
    (R's type 7) of the *original*, open on the left; a level is a bin of its own, and
    so is missing. The score is 1000 (2 - sum abs(share - share)) / 2 over all
    combinations of bins. See :func:`pdips.evaluation.encoding.paired` for the tables.
    """
    pairs = paired(original, synthetic)
    if not 1 <= k <= len(pairs):
        raise InputError(
            f"k must be from 1 to the number of columns, {len(pairs)}, not {k}"
        )
    n_original = len(pairs[0].original)
    coded = [_codes(pair) for pair in pairs]
    scores = {}
    for chosen in combinations(range(len(pairs)), k):
        codes = np.column_stack([coded[j] for j in chosen])
        sizes = [int(coded[j].max()) + 1 for j in chosen]
        apart = full_distance(
            CodedRecords(codes[:n_original]), CodedRecords(codes[n_original:]), sizes
        )
        scores[tuple(pairs[j].name for j in chosen)] = 1000 * (2 - apart) / 2
    return scores


def mean_k_marginal(original: TableLike, synthetic: TableLike, k: int = 3) -> float:
    """Return the mean of :func:`k_marginal` over all sets of ``k`` columns."""
    return float(np.mean([*k_marginal(original, synthetic, k).values()]))


def _codes(pair: ColumnPair) -> IntArray:
    if pair.levels is None:
        return bins_of(pair.pooled, pair.original)
    return pair.pooled.astype(np.int64)


def bins_of(values: FloatArray, original: FloatArray) -> IntArray:
    """Return the bin of each value, 0 to 5, open on the left, by the quartiles of the
    original; 6 for missing.
    """
    present = original[~np.isnan(original)]
    edges = np.zeros(5)
    if len(present):
        edges = np.quantile(present, [0, 0.25, 0.5, 0.75, 1])
    bins = np.searchsorted(edges, values, side="left")
    return np.where(np.isnan(values), N_BINS, bins)
