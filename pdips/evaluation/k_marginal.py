"""The k-marginal score of NIST on numeric and mixed tables. For inside use only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.evaluation.codes import cell_ids, subsets
from pdips.evaluation.frames import Pair, Records, paired

N_BINS = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class KMarginal:
    """k-marginal scores, from 0 (disjoint) to 1000 (equal).

    Attributes
    ----------
    score : float
        Mean over the sets of columns.
    by_columns : dict of tuple of str to float
        Score of each set of ``k`` columns that was looked at.
    """

    score: float
    by_columns: dict[tuple[str, ...], float]


def k_marginal(
    original: Records,
    synthetic: Records,
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
        The confidential table and a synthetic set; see :func:`pdips.evaluation.frames.paired`.
    k : int
        Columns of a margin, from 1 to all.
    columns : sequence of str, optional
        Which to use; default: all.
    n_draws : int, optional
        How many sets of ``k`` columns to draw at random, without repetition; default: all sets.
    rng : numpy.random.Generator, optional
        Draws them.

    Returns
    -------
    KMarginal
        The mean score, and the score of each set of columns.

    Raises
    ------
    InputError
        If ``k`` or ``n_draws`` is out of its range, tables don't match or are empty, or there are more than 100,000
        sets of columns and ``n_draws`` doesn't choose among them.

    Notes
    -----
    Task, Bhagat and Howarth (2021), as in section 4.2 of paper 002: a numeric column has six bins, (-inf, Min], (Min,
    Q1], (Q1, Median], (Median, Q3], (Q3, Max] and (Max, inf), with the quantiles of the *original* (R's type 7, the
    default of numpy and of R), so that only its smallest value falls into the first and nothing of it into the last
    bin. Bins that coincide, for the column has few values, are empty. A level is a bin of its own, and so is missing.
    With shares of both tables in all combinations of bins,

        score = 1000 (2 - sum abs(share - share)) / 2.

    The authors' code divides both counts by the size of the original, which is the same for tables of one size.
    """
    pairs = paired(original, synthetic, columns)
    if not 1 <= k <= len(pairs):
        raise InputError(f"k must be from 1 to the number of columns, {len(pairs)}, not {k}")
    names = [pair.name for pair in pairs]
    coded = [_binned(pair) for pair in pairs]
    sizes = [int(codes.max()) + 1 for codes in coded]
    n = len(pairs[0].original)
    found = {}
    for chosen in subsets(len(pairs), k, n_draws, rng):
        cells = cell_ids(np.column_stack([coded[j] for j in chosen]), [sizes[j] for j in chosen])
        found[tuple(names[j] for j in chosen)] = _score(cells, n)
    return KMarginal(score=float(np.mean(list(found.values()))), by_columns=found)


def bins_of(values: FloatArray, original: FloatArray) -> IntArray:
    """Return the bin of each value, 0 to 5, by the quartiles of the original; 6 for missing.

    As R's ``findInterval(values, quantile(original), left.open = TRUE)``: how many of Min, Q1, Median, Q3 and Max lie
    below the value.
    """
    known = original[~np.isnan(original)]
    edges = np.quantile(known, [0, 0.25, 0.5, 0.75, 1]) if len(known) else np.zeros(5)
    return np.where(np.isnan(values), N_BINS, np.searchsorted(edges, values, side="left"))


def _binned(pair: Pair) -> IntArray:
    return pair.pooled.astype(np.int64) if pair.levels is not None else bins_of(pair.pooled, pair.original)


def _score(cells: IntArray, n_original: int) -> float:
    if cells.max() >= 4 * len(cells):
        _, cells = np.unique(cells, return_inverse=True)
    size = int(cells.max()) + 1
    shares = [np.bincount(part, minlength=size) / len(part) for part in (cells[:n_original], cells[n_original:])]
    return 1000 * (2 - float(np.abs(shares[0] - shares[1]).sum())) / 2
