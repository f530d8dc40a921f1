"""Several quantiles on one public grid: checks, cells cut into parts, and laws of tuples of cells."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours

MOST_RECORDS = 2**31
MOST_PARTS = 64
MOST_POINTS = 2**17
MOST_QUANTILES = 1000
FINEST_QUANTILE = 10**6
LARGEST_EPSILON = 100


def check_quantiles(taus: Sequence[Fraction]) -> None:
    """Refuse quantiles that can't be released together.

    Raises
    ------
    InputError
        If they don't increase strictly within (0, 1) or aren't fractions with a common denominator of at most a
        million.
    """
    if not 0 < len(taus) <= MOST_QUANTILES or not all(isinstance(tau, Fraction) and 0 < tau < 1 for tau in taus):
        raise InputError(f"quantiles must be 1 to {MOST_QUANTILES} fractions above 0 and below 1")
    if any(low >= high for low, high in pairwise(taus)):
        raise InputError("quantiles must be in increasing order, each once")
    if np.lcm.reduce([tau.denominator for tau in taus], dtype=object) > FINEST_QUANTILE:
        raise InputError(
            "quantiles must have a common denominator of at most 1,000,000: give them as decimal fractions"
        )


def check_public(
    taus: Sequence[Fraction], epsilon: Fraction, neighbours: Neighbours, n_points: int, parts: int, runs: int
) -> None:
    """Refuse settings that no joint release of quantiles can be made with; none of them depends on a record.

    Raises
    ------
    InputError
        If quantiles, the budget, the relation, the grid, the number of parts or of runs is out of range.
    """
    check_quantiles(taus)
    if not isinstance(epsilon, Fraction | int) or not 0 < epsilon <= LARGEST_EPSILON:
        raise InputError(f"epsilon of joint quantiles must be a fraction above 0 and at most {LARGEST_EPSILON}")
    if neighbours not in get_args(Neighbours):
        raise InputError(f"neighbours must be one of {', '.join(get_args(Neighbours))}")
    if not 1 <= parts <= MOST_PARTS or runs < 1:
        raise InputError(f"parts must be 1 to {MOST_PARTS}, and runs at least 1")
    if not 1 <= n_points * parts <= MOST_POINTS:
        raise InputError(f"a grid for joint quantiles needs 1 to {MOST_POINTS} points times parts")


def check_counts(cumulative: NDArray[Any], n: int) -> IntArray:
    """Return the counts as int64 if they could be cumulative counts of ``n`` records.

    Raises
    ------
    InputError
        If they aren't whole numbers in one row, fall, or lie outside 0 to ``n``; the message shows no count.
    """
    counts = np.asarray(cumulative)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or not 0 <= n <= MOST_RECORDS:
        raise InputError("cumulative counts must be one row of whole numbers, of at most 2^31 records")
    counts = counts.astype(np.int64)
    if len(counts) and (counts[0] < 0 or counts[-1] > n or (np.diff(counts) < 0).any()):
        raise InputError("cumulative counts must not fall, and must lie between 0 and the number of records")
    return counts


def merged(cells: IntArray, logs: FloatArray) -> dict[tuple[int, ...], float]:
    """Return the log probability of each tuple of cells, given those of its positions, one tuple a row."""
    found: dict[tuple[int, ...], float] = {}
    for key, log in zip(map(tuple, cells.tolist()), logs, strict=True):
        found[key] = float(np.logaddexp(found.get(key, -np.inf), log))
    return found


def spread(cumulative: IntArray, parts: int) -> IntArray:
    """Return cumulative counts, in units of 1/parts record, on a grid whose every cell is cut into ``parts`` parts.

    Each record counts as spread evenly over its cell, which divides the values that many records share: without it,
    quantiles next to such an atom have no rank near their target. A record still weighs 1 in total, so no price changes
    (``docs/proofs/kng.md``).

    Parameters
    ----------
    cumulative : ndarray of int64, shape (points,)
    parts : int

    Returns
    -------
    ndarray of int64, shape (points * parts,)
        Position ``g * parts + s`` belongs to cell g.
    """
    before = np.concatenate([[0], cumulative[:-1]])
    steps = np.arange(1, parts + 1)
    return np.asarray((parts * before[:, None] + steps * (cumulative - before)[:, None]).ravel())
