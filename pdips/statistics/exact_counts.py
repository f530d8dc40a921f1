"""Exact posterior draws of the counts of a multinomial-Dirichlet model of which only noisy ones were released."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.statistics.count_trees import Kinds, NoiseLaw, SumTree, log_prior, nats_of
from pdips.statistics.noisy_model import Evidence

CHUNK = 1 << 21

FAR = 25.0
"""The number of records is followed until its log posterior is this far below the best."""

TRUSTED = 1e-11
"""Of a tree of sums those are used whose weight is at least this share of the largest: the rest is for other tilts."""

MOST_TREES = 2_000


def draw_shares(given: Evidence, name: str, alpha: ArrayLike, n_draws: int, rng: np.random.Generator) -> FloatArray:
    """Draw the probabilities of cells under a Dirichlet prior from their posterior, each draw by itself.

    Parameters
    ----------
    given : Evidence
        Noisy statistics, and whether the noise is allowed for.
    name : str
        A :class:`pdips.statistics.statistic.Counts`.
    alpha : float or array-like, shape (cells,)
        Parameters of the prior, above 0.
    n_draws : int
        Number of draws.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.

    Returns
    -------
    ndarray, shape (draws, cells)

    Raises
    ------
    InputError
        If the noise is too wide to list what counts can be, see :func:`draw_counts`.

    Notes
    -----
    Noise-aware: exact counts from their posterior given the noisy ones, then shares given the counts; where the
    number of records is protected it has a flat prior. Plug-in: shares given noisy counts after post-processing.
    """
    measured, part = given.measured, given.measured.part(name)
    noisy, n = measured.values[name], measured.n_records
    if not given.aware or not part.n_noised:
        return draw_proportions(np.broadcast_to(given[name], (n_draws, len(noisy))), alpha, rng)
    law = NoiseLaw(part.law, part.scale)
    if n is None or part.n_noised == len(noisy):
        return draw_proportions(draw_counts(noisy, law, n, alpha, n_draws, rng), alpha, rng)
    first, second = np.broadcast_to(np.asarray(alpha, dtype=np.float64), 2).tolist()
    counts = draw_first_of_two(noisy[:1], law, n, (first, second), n_draws, rng)[0]
    return draw_proportions(np.column_stack([counts, n - counts]), alpha, rng)


def draw_counts(
    noisy: ArrayLike, law: NoiseLaw, n: int | None, alpha: ArrayLike, n_draws: int, rng: np.random.Generator
) -> IntArray:
    """Draw the exact counts of a table given noisy ones: independent draws, from the posterior itself.

    Parameters
    ----------
    noisy : array-like of int, shape (cells,)
        Released counts, any whole numbers.
    law : NoiseLaw
        The law of the noise on each, independent.
    n : int, optional
        Number of records, if it is public; None gives it a flat prior.
    alpha : float or array-like, shape (cells,)
        Parameters of the Dirichlet prior on the cells' probabilities, above 0.
    n_draws : int
        Number of draws.
    rng : numpy.random.Generator
        Randomness of the post-processing; protects nothing.

    Returns
    -------
    ndarray of int64, shape (draws, cells)
        Each row adds up to ``n`` where that is public.

    Raises
    ------
    InputError
        If ``noisy`` isn't a vector of whole numbers, another argument is out of range, or the noise is so wide that the
        weights don't fit into memory, or so far from adding up to ``n`` that no table explains it.

    Notes
    -----
    With pi ~ Dirichlet(alpha), counts ~ Multinomial(n, pi) and noisy = counts + noise, the counts given the noisy ones
    have probability proportional to prod_k w_k(n_k) with w_k(j) = Gamma(alpha_k + j) / j! P(noisy_k - j), on the
    tables that add up to n: independent cells given their sum. The law of the sum of each half of the cells, of each
    half of these, and so on, is worked out by convolution; a draw splits n from the top down. Cells with the same
    noisy count and prior share their laws, so the cost hardly depends on the number of cells. Weights are multiplied
    by theta^j first, which changes nothing given the sum, with theta such that the cells add up to n on average;
    values whose weight is then less than 1e-22 of the largest are left out (1e-13 for sums of wide laws, which fast
    Fourier transforms add up). The proportions given the counts are Dirichlet(alpha + counts):
    :func:`draw_proportions`.
    Without n, the sum has a posterior of its own, and is drawn first.
    """
    counts, priors = _checked(noisy, n, alpha, n_draws)
    cells, inverse = np.unique(np.column_stack([counts, priors]), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    most = int(n) if n is not None else _most(counts, law)
    kinds = Kinds(cells[:, 0].astype(np.int64), cells[:, 1], np.bincount(inverse), law, most)
    drawn = _given_sum(kinds, inverse, n_draws, rng) if n is not None else draw_unknown(kinds, inverse, n_draws, rng)
    found = np.empty((n_draws, len(counts)), dtype=np.int64)
    found[:, np.argsort(inverse, kind="stable")] = drawn[:, : len(counts)]
    return found


def _given_sum(kinds: Kinds, inverse: IntArray, n_draws: int, rng: np.random.Generator) -> IntArray:
    tree = SumTree(kinds.leaves(kinds.tilt(kinds.n)), np.sort(inverse), kinds.n)
    return tree.draw(np.full(n_draws, kinds.n, dtype=np.int64), rng)


def _most(counts: IntArray, law: NoiseLaw) -> int:
    """Return more records than any table can have had, but for noise of less than e^-50 in each cell."""
    return int(np.maximum(counts, 0).sum()) + math.ceil(law.reach(0.0, 50.0)) * len(counts) + 1


def draw_proportions(counts: IntArray, alpha: ArrayLike, rng: np.random.Generator) -> FloatArray:
    """Draw the cells' probabilities given exact counts: one Dirichlet(alpha + counts) for each row.

    Parameters
    ----------
    counts : ndarray of int64, shape (draws, cells)
        Counts, as :func:`draw_counts` returns them.
    alpha : float or array-like, shape (cells,)
        Parameters of the prior.
    rng : numpy.random.Generator
        Randomness.

    Returns
    -------
    ndarray, shape (draws, cells)
    """
    drawn = rng.standard_gamma(np.asarray(alpha, dtype=np.float64) + counts)
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True)
class _Stretch:
    """Numbers of records from ``low`` on, their log posterior up to a constant, and the tree that splits them."""

    low: int
    logs: FloatArray
    tree: SumTree

    @property
    def high(self) -> int:
        return self.low + len(self.logs) - 1


def draw_unknown(kinds: Kinds, inverse: IntArray, n_draws: int, rng: np.random.Generator) -> IntArray:
    """Draw counts, shape (draws, leaves of the tree), cells in the order of their kinds.

    Notes
    -----
    A flat prior on n and counts that are Dirichlet-multinomial given n: n has posterior proportional to
    R(n) n! Gamma(A) / Gamma(A + n) with A the sum of the prior's parameters and R(n) the weight of all tables that add
    up to n, from trees of sums tilted to n, each good for a stretch of numbers; stretches are joined until both ends
    are e^-25 below the best.
    """
    stretches = _followed(kinds, inverse)
    logs = np.concatenate([each.logs for each in stretches])
    weights = np.exp(logs - logs.max())
    places = rng.choice(len(logs), size=n_draws, p=weights / weights.sum())
    numbers = np.concatenate([each.low + np.arange(len(each.logs)) for each in stretches])[places]
    owners = np.repeat(np.arange(len(stretches)), [len(each.logs) for each in stretches])[places]
    found = np.zeros((n_draws, 1 << stretches[0].tree.n_levels), dtype=np.int64)
    for owner in np.unique(owners):
        mine = owners == owner
        found[mine] = stretches[owner].tree.draw(numbers[mine], rng)
    return found


def _followed(kinds: Kinds, inverse: IntArray) -> list[_Stretch]:
    start = int(np.clip(kinds.noisy @ kinds.multiplicity, 0, kinds.n))
    found = [_stretch(kinds, inverse, start, 0, kinds.n)]
    for up in (False, True):
        while not _ended(found, kinds, up):
            if len(found) >= MOST_TREES:
                raise InputError("the noisy counts leave the number of records open too widely: take a larger epsilon")
            edge, width = found[-1 if up else 0], len(found[-1 if up else 0].logs)
            if up:
                found.append(_stretch(kinds, inverse, edge.high + 1 + width // 3, edge.high + 1, kinds.n))
            else:
                found.insert(0, _stretch(kinds, inverse, edge.low - 1 - width // 3, 0, edge.low - 1))
    return found


def _ended(found: list[_Stretch], kinds: Kinds, up: bool) -> bool:
    edge = found[-1 if up else 0]
    best = max(float(each.logs.max()) for each in found)
    last, at_end = (edge.logs[-1], edge.high >= kinds.n) if up else (edge.logs[0], edge.low <= 0)
    return bool(at_end or (last < best - FAR and last < (edge.logs[0] if up else edge.logs[-1])))


def _stretch(kinds: Kinds, inverse: IntArray, aim: int, least: int, most: int) -> _Stretch:
    """Return a stretch about ``aim`` that begins at ``least`` or ends at ``most`` if these are near."""
    aim = int(np.clip(aim, least, most))
    while True:
        tilt = kinds.tilt(aim)
        tree = SumTree(kinds.leaves(tilt), np.sort(inverse), kinds.n)
        root = tree.root
        kept = np.flatnonzero(root.weights > TRUSTED * root.weights.max())
        low, high = max(root.low + int(kept[0]), least), min(root.low + int(kept[-1]), most)
        beyond = least > 0 and low > least, most < kinds.n and high < most
        if not any(beyond) or aim in (least, most):
            break
        aim = (aim + least) // 2 if beyond[0] else (aim + most + 1) // 2  # no gap may be left
    numbers = np.arange(low, high + 1)
    logs = np.log(root.weights[numbers - root.low]) + root.log_scale - tilt * numbers
    return _Stretch(low, logs + _log_marginal(numbers, float(kinds.alpha @ kinds.multiplicity)), tree)


def _log_marginal(n: IntArray, total: float) -> FloatArray:
    """Return log n! Gamma(A) / Gamma(A + n)."""
    from scipy.special import gammaln

    return np.asarray(gammaln(n + 1.0) + gammaln(total) - gammaln(total + n), dtype=np.float64)


def draw_first_of_two(
    noisy: ArrayLike, law: NoiseLaw, n: int, alpha: tuple[float, float], n_draws: int, rng: np.random.Generator
) -> IntArray:
    """Draw the count of the first of two cells for many releases at once, by listing all that it can be.

    Parameters
    ----------
    noisy : array-like of int, shape (releases,) or (releases, 2)
        Noisy count of the first cell; or noisy counts of both.
    law : NoiseLaw
        The law of the noise, independent.
    n : int
        Number of records, public.
    alpha : tuple of float
        Parameters of the beta prior on the first cell's probability.
    n_draws : int
        Draws for each release.
    rng : numpy.random.Generator
        Randomness.

    Returns
    -------
    ndarray of int64, shape (releases, draws)

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    seen = _whole_numbers(noisy)
    if seen.ndim not in (1, 2) or (seen.ndim == 2 and seen.shape[1] != 2):
        raise InputError("noisy must have the shape (releases,) or (releases, 2)")
    _check_sizes(n, n_draws)
    priors = _check_alpha(alpha, 2)
    return np.concatenate([_first_of_two(part, law, n, priors, n_draws, rng) for part in _parts(seen, law, n, priors)])


def _parts(seen: IntArray, law: NoiseLaw, n: int, priors: FloatArray) -> Iterator[IntArray]:
    rows = max(1, CHUNK // (_listed(seen, law, n, priors)[1] + 1))
    for begin in range(0, max(len(seen), 1), rows):
        yield seen[begin : begin + rows]


def _listed(seen: IntArray, law: NoiseLaw, n: int, priors: FloatArray) -> tuple[IntArray, int]:
    """Return where the values to be listed start, shape (releases,), and how many more there are."""
    both = seen.reshape(len(seen), -1)
    first, second = both[:, 0], n - both[:, -1] if both.shape[1] == 2 else both[:, 0]
    away = law.reach(0.0, sum(nats_of(float(prior), n) for prior in priors))
    low = np.clip(np.floor(np.clip(np.minimum(first, second), 0, n) - away), 0, n).astype(np.int64)
    high = np.clip(np.ceil(np.clip(np.maximum(first, second), 0, n) + away), 0, n).astype(np.int64)
    width = int((high - low).max(initial=0))
    return np.minimum(low, n - width), width


def _first_of_two(
    seen: IntArray, law: NoiseLaw, n: int, priors: FloatArray, n_draws: int, rng: np.random.Generator
) -> IntArray:
    low, width = _listed(seen, law, n, priors)
    values = low[:, None] + np.arange(width + 1)
    both = seen.reshape(len(seen), -1)
    logs = log_prior(values, priors[0]) + log_prior(n - values, priors[1]) + law.log_weights(both[:, :1] - values)
    if both.shape[1] == 2:
        logs += law.log_weights(both[:, 1:] - (n - values))
    logs -= logs.max(axis=1, keepdims=True)
    places = invert(np.exp(logs), rng.random((len(seen), n_draws)))
    return np.asarray(low[:, None] + places, dtype=np.int64)


def _check_sizes(n: int, n_draws: int) -> None:
    for name, value, least in (("n", n, 0), ("n_draws", n_draws, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_alpha(alpha: ArrayLike, n_cells: int) -> FloatArray:
    priors = np.asarray(alpha, dtype=np.float64)
    if priors.shape not in ((), (n_cells,)) or not (np.isfinite(priors) & (priors > 0)).all():
        raise InputError("alpha must be above 0 and finite: one number, or one for each cell")
    return np.broadcast_to(priors, (n_cells,))


def _whole_numbers(noisy: ArrayLike) -> IntArray:
    counts = np.asarray(noisy)
    if not np.issubdtype(counts.dtype, np.integer):
        raise InputError("noisy must hold whole numbers: released counts before anything is done to them")
    return cast(IntArray, counts.astype(np.int64))


def _checked(noisy: ArrayLike, n: int | None, alpha: ArrayLike, n_draws: int) -> tuple[IntArray, FloatArray]:
    counts = _whole_numbers(noisy)
    if counts.ndim != 1 or not len(counts):
        raise InputError("noisy must be a vector with one count for each cell")
    _check_sizes(0 if n is None else n, n_draws)
    return counts, _check_alpha(alpha, len(counts))


# compiled


@njit(cache=True, nogil=True)
def invert(weights, uniforms):  # type: ignore[no-untyped-def]
    """Return, for each row of weights and each of its uniforms, which entry is drawn, shape (rows, draws)."""
    found = np.empty(uniforms.shape, dtype=np.int64)
    for row in range(weights.shape[0]):
        sums = np.cumsum(weights[row])
        aims = uniforms[row] * sums[-1]
        places = np.searchsorted(sums, aims, side="right")
        for draw in range(uniforms.shape[1]):
            place = min(places[draw], weights.shape[1] - 1)
            while place > 0 and weights[row, place] == 0.0:
                place -= 1
            found[row, draw] = place
    return found
