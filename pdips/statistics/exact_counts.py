"""Exact posterior draws of the counts of a multinomial-Dirichlet model of which only noisy ones were released."""

import math
from collections.abc import Iterator
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.statistics.count_trees import Kinds, Tree, log_prior, nats_of
from pdips.statistics.noise_laws import NoiseLaw
from pdips.statistics.unknown_total import draw_unknown

CHUNK = 1 << 21


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
    Without n, the sum has its own posterior: :mod:`pdips.statistics.unknown_total`.
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
    tree = Tree(kinds.leaves(kinds.tilt(kinds.n)), np.sort(inverse), kinds.n)
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
    from pdips.statistics.noisy_counts_kernels import invert

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
