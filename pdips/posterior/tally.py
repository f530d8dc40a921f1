"""What is kept of log-likelihoods while they come by in pieces: extremes, sums and counts, by record and by draw."""

from typing import Any

import numba
import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.bounds import Bounds

TILE = 512
"""Records whose running extremes stay in a core's innermost cache while the draws of a piece pass over them."""


SMALL = 20_000_000
"""Log-likelihoods in all, up to which it takes longer to compile what is below than to do without."""


class Tally:
    """Bounds in the making.

    Parameters
    ----------
    n : int
        Number of records.
    n_draws : int
        Number of draws.
    weights, centre : ndarray, shape (records,), or None
        ``alpha``, by default 1, and ``c``, nats, by default 0.
    limit : float or None
        Nats; None for no limit.
    counts : ndarray of int, shape (records,), optional
        How many records each stands for.

    Raises
    ------
    InputError
        If weights, centre or limit are not what they should be.
    """

    def __init__(
        self,
        n: int,
        n_draws: int,
        weights: FloatArray | None,
        centre: FloatArray | None,
        limit: float | None,
        counts: IntArray | None = None,
    ) -> None:
        self.counts = np.ones(n, np.int64) if counts is None else counts
        self.weights, self.centre, self.limit = _weights(weights, n), _centre(centre, n), _limit(limit)
        self.weighted = weights is not None
        self.compiled = n * n_draws > SMALL
        self.lowest, self.highest, self.total = np.full(n, np.inf), np.full(n, -np.inf), np.zeros(n)
        self.draws_beyond = np.zeros(n)
        self.largest_by_draw, self.records_beyond = np.zeros(n_draws), np.zeros(n_draws, np.int64)

    def add(self, records: slice, draws: slice, found: FloatArray) -> None:
        """Take in the log-likelihoods of some records at some draws, shape (draws, records), which are overwritten."""
        limit = np.inf if self.limit is None else self.limit
        if not self.compiled:
            self._add_plainly(records, draws, found, limit)
            return
        by_record = (self.lowest, self.highest, self.total, self.draws_beyond)
        _by_record(found, self.centre[records], self.weights[records], limit, *(kept[records] for kept in by_record))
        _by_draw(found, self.counts[records], limit, self.largest_by_draw[draws], self.records_beyond[draws])

    def _add_plainly(self, records: slice, draws: slice, found: FloatArray, limit: float) -> None:
        weights = self.weights[records]
        with np.errstate(all="ignore"):
            terms = (np.where(np.isnan(found), -np.inf, found) - self.centre[records]) * weights
        terms[:, weights == 0] = 0.0
        sizes = np.abs(terms)
        beyond = sizes > limit
        self.lowest[records] = np.minimum(self.lowest[records], terms.min(axis=0))
        self.highest[records] = np.maximum(self.highest[records], terms.max(axis=0))
        self.total[records] += terms.sum(axis=0)
        self.draws_beyond[records] += beyond.sum(axis=0)
        self.largest_by_draw[draws] = np.maximum(self.largest_by_draw[draws], sizes.max(axis=1))
        self.records_beyond[draws] += beyond @ self.counts[records]

    def bounds(self, chains: int, independent: bool) -> Bounds:
        """Return what was found, of each record."""
        each = np.repeat(np.arange(len(self.counts)), self.counts)
        return Bounds(
            np.maximum(self.highest, -self.lowest)[each],
            self.lowest[each],
            self.highest[each],
            (self.total / len(self.largest_by_draw))[each],
            self.draws_beyond.astype(np.int64)[each],
            self.largest_by_draw.reshape(chains, -1),
            self.records_beyond.reshape(chains, -1),
            self.limit,
            self.weighted,
            independent,
        )


@numba.njit(error_model="numpy")
def _by_record(terms, centre, weights, limit, lowest, highest, total, beyond):  # type: ignore[no-untyped-def]
    """Turn log-likelihoods into terms in place, and update what is kept by record.

    Weights of 0 come last and what is no number before them, so that 0 times minus infinity is nothing.
    """
    n_draws, n = terms.shape
    for start in range(0, n, TILE):
        stop = min(start + TILE, n)
        c, w = centre[start:stop], weights[start:stop]
        low, high, sums, count = lowest[start:stop], highest[start:stop], total[start:stop], beyond[start:stop]
        for draw in range(n_draws):
            row = terms[draw, start:stop]
            for i in range(stop - start):
                value = row[i]
                value = value if value == value else -np.inf
                value = (value - c[i]) * w[i]
                value = value if w[i] != 0 else 0.0
                row[i] = value
                low[i] = value if value < low[i] else low[i]
                high[i] = value if value > high[i] else high[i]
                sums[i] += value
                count[i] += 1.0 if abs(value) > limit else 0.0


@numba.njit(error_model="numpy")
def _by_draw(terms, counts, limit, largest, beyond):  # type: ignore[no-untyped-def]
    """Update what is kept by draw. Eight running maxima, since the processor can't reorder one."""
    n_draws, n = terms.shape
    lanes = np.empty(8)
    for draw in range(n_draws):
        row = terms[draw]
        lanes[:] = largest[draw]
        for start in range(0, n - 7, 8):
            for lane in range(8):
                size = abs(row[start + lane])
                lanes[lane] = size if size > lanes[lane] else lanes[lane]
        for i in range(n - n % 8, n):
            lanes[0] = max(lanes[0], abs(row[i]))
        largest[draw] = lanes.max()
        count = 0
        for i in range(n):
            count += counts[i] * (abs(row[i]) > limit)
        beyond[draw] += count


def _weights(weights: Any, n: int) -> FloatArray:
    if weights is None:
        return np.ones(n)
    found = np.asarray(weights, np.float64)
    if found.shape != (n,) or not np.all(np.isfinite(found)) or np.any(found < 0):
        raise InputError("weights must be one finite number a record, none below 0")
    return found


def _centre(centre: Any, n: int) -> FloatArray:
    if centre is None:
        return np.zeros(n)
    found = np.asarray(centre, np.float64)
    if found.shape != (n,) or not np.all(np.isfinite(found)):
        raise InputError("centre must be one finite number a record: a reference must not give a record density 0")
    return found


def _limit(limit: float | None) -> float | None:
    if limit is not None and not (np.isfinite(limit) and limit > 0):
        raise InputError("limit must be a finite number of nats above 0")
    return None if limit is None else float(limit)
