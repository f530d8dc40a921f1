"""The pMSE mechanism on public candidates: the comparator of paper 002, in a sound form and as printed.

Snoke and Slavkovic (PSD 2018) choose the parameters of a synthesizer by the exponential mechanism, with the pMSE between
the confidential table and the synthetic one as the loss. Here the candidates and the classifier's cells are public.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.noise import RandomBits, exponential_mechanism
from pdips.privacy import Number, choice, exact, positive

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Edges = tuple[FloatArray, FloatArray, FloatArray]

COLUMNS = ("x1", "x2", "x3")
NAMES = ("rate_1", "intercept_2", "slope_21", "rate_2", "intercept_3", "slope_31", "slope_32", "rate_3")
RATES = np.array([0, 3, 7])
LOWEST = np.array([0.01, 0.0, 0.0, 0.01, 0.0, 0.0, 0.0, 0.01])
HIGHEST = np.array([1.0, 20.0, 10.0, 1.0, 20.0, 10.0, 10.0, 1.0])
"""The public box: parameters in the order of :data:`NAMES`."""

RATIO = 2
"""Synthetic records for each confidential one. 2 makes pMSE sharpest for its sensitivity: k^2/(1+k)^3 is largest there."""

STEPS = 64
"""Whole score steps for each unit of N pMSE, times (m + 1)."""

WHOLE = 2**20
"""Cell shares are whole parts of this."""

N_POINTS = 4096
MOST_RECORDS = 2**20
BLOCKS: tuple[tuple[tuple[int, ...], bool, Fraction], ...] = (
    ((0,), True, Fraction(1, 100)),
    ((1, 2, 3), True, Fraction(1, 100)),
    ((1, 2, 3), False, Fraction(3, 200)),
    ((4, 5, 6, 7), True, Fraction(3, 200)),
    ((4, 5, 6, 7), False, Fraction(3, 100)),
)
"""The coarse pass: which parameters, from the whole box or near what was released, at what share of epsilon."""

GROWTH = 4
"""Each joint stage has this many times the budget of the one before it, and so half its spread."""

WIDEN = 1.3
"""Candidates of a stage spread this much wider than what is left unknown."""


@lru_cache(maxsize=4)
def _points(n_points: int) -> FloatArray:
    """Return public standard exponentials of low discrepancy, shape (Q, 3)."""
    from scipy.stats import qmc

    uniform = qmc.Sobol(3, rng=np.random.default_rng(1)).random(n_points)
    return np.ascontiguousarray(-np.log1p(-np.clip(uniform, 2.0**-40, 1 - 2.0**-40)))


@lru_cache(maxsize=32)
def _cube(n_candidates: int, n_dimensions: int, stage: int) -> FloatArray:
    """Return public points of the unit cube, shape (candidates, dimensions)."""
    from scipy.stats import qmc

    sequence = qmc.Sobol(n_dimensions, rng=np.random.default_rng(100 + stage))
    uniform = sequence.random(2 ** (n_candidates - 1).bit_length())[:n_candidates]
    return np.asarray(np.clip(uniform, 2.0**-30, 1 - 2.0**-30))


@lru_cache(maxsize=32)
def _cloud(n_candidates: int, n_dimensions: int, stage: int) -> FloatArray:
    """Return public standard normal points, shape (candidates, dimensions), the first of them 0."""
    from scipy.special import ndtri

    cloud = np.array(ndtri(_cube(n_candidates, n_dimensions, stage)))
    cloud[0] = 0
    return cloud


def sensitivity(n_synthetic: int) -> Fraction:
    """Return the largest change of N pMSE when one of the n confidential records is replaced.

    Parameters
    ----------
    n_synthetic : int
        The public number m of synthetic records; N = n + m.

    Returns
    -------
    Fraction
        m / (m + 1), for every fixed partition of the outcome space, and attained by some.

    Notes
    -----
    A cell with d confidential and s synthetic records adds h(d, s) = (s - c (d + s))^2 / (d + s), c = m / N, to N pMSE.
    h is convex in d with slope c^2 - (s / (d + s))^2 <= c^2, so one more record adds at most c^2 (attained at s = 0) and
    at least h(1, m) - h(0, m) = c^2 - m / (m + 1). A replacement is one such step up and one down.
    """
    return Fraction(n_synthetic, n_synthetic + 1)


def step_sensitivity(n: int) -> int:
    """Return by how many whole steps a score changes at most when one of ``n`` records is replaced.

    Four rounded terms change, each by at most 3/4 of a step for its rounding.
    """
    return STEPS * RATIO * n + 3


def steps_per_unit(n: int) -> int:
    """Return how many whole steps one unit of N pMSE has."""
    return STEPS * (RATIO * n + 1)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A public partition of the outcome space into boxes of x1 and of the residuals about two public planes.

    Parameters
    ----------
    lines : ndarray, shape (5,)
        Intercept and slope for x2, intercept and two slopes for x3.
    edges : tuple of three ndarrays
        Where x1 and the two residuals are cut.
    """

    lines: FloatArray
    edges: Edges

    def count(self, records: FloatArray) -> IntArray:
        """Count records, shape (n, 3), by cell."""
        from pdips.studies.pmse_kernels import count_records

        return np.asarray(count_records(records, self.lines, *self.edges))

    n_nodes: int = 2

    def shares(self, thetas: FloatArray) -> IntArray:
        """Return the share of each cell under each candidate, in parts of ``WHOLE``, shape (candidates, cells)."""
        from pdips.studies.pmse_kernels import cell_shares

        return np.asarray(cell_shares(np.ascontiguousarray(thetas), self.lines, *self.edges, self.n_nodes, WHOLE))


def scores(partition: Partition, thetas: FloatArray, records: FloatArray) -> IntArray:
    """Return -N pMSE between the records and each candidate's m = 2 n synthetic ones, in whole steps.

    Parameters
    ----------
    partition : Partition
        Public.
    thetas : ndarray, shape (candidates, 8)
        Public.
    records : ndarray, shape (n, 3)

    Returns
    -------
    ndarray of int64, shape (candidates,)
        A replaced record changes each by at most :func:`step_sensitivity`.
    """
    from pdips.studies.pmse_kernels import whole_scores

    counts = partition.count(records)
    steps = steps_per_unit(len(records))
    return np.asarray(whole_scores(partition.shares(thetas), counts, WHOLE, RATIO, steps))


@dataclass(frozen=True, kw_only=True)
class _State:
    """What earlier stages released and what follows from it: a centre and how well it is known."""

    theta: FloatArray
    covariance: FloatArray
    """Of (log rates, intercepts, slopes), shape (8, 8)."""

    def with_block(self, theta: FloatArray, free: tuple[int, ...], block: FloatArray) -> "_State":
        covariance = self.covariance.copy()
        covariance[list(free), :] = 0
        covariance[:, list(free)] = 0
        covariance[np.ix_(free, free)] = block
        return _State(theta=theta, covariance=covariance)


def _open(thetas: FloatArray) -> FloatArray:
    """Return parameters with the rates' logs."""
    opened = np.array(thetas)
    opened[..., RATES] = np.log(opened[..., RATES])
    return opened


def _close(opened: FloatArray) -> FloatArray:
    """Return parameters in the public box from those with the rates' logs."""
    thetas = np.array(opened)
    thetas[..., RATES] = np.exp(np.clip(thetas[..., RATES], -50, 50))
    return np.clip(thetas, LOWEST, HIGHEST)


def _box_candidates(state: _State, free: tuple[int, ...], n_candidates: int, stage: int) -> FloatArray:
    low, high = _open(LOWEST)[list(free)], _open(HIGHEST)[list(free)]
    opened = np.tile(_open(state.theta), (n_candidates, 1))
    opened[:, list(free)] = low + (high - low) * _cube(n_candidates, len(free), stage)
    return _close(opened)


def _near_candidates(state: _State, free: tuple[int, ...], n_candidates: int, stage: int) -> FloatArray:
    covariance = state.covariance[np.ix_(free, free)]
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    opened = np.tile(_open(state.theta), (n_candidates, 1))
    opened[:, list(free)] += WIDEN * _cloud(n_candidates, len(free), stage) @ root.T
    return _close(opened)


GEOMETRIC = np.geomspace(1.0, 20_000.0, 30)


def _quantiles(rate: float, n_bins: int) -> FloatArray:
    return np.asarray(-np.log1p(-np.arange(1, n_bins) / n_bins) / rate)


def _residual_edges(rate: float, spread: float, n_bins: int) -> FloatArray:
    """Cut a residual at quantiles of its law, at 0 and where errors of the planes put it."""
    inner = _quantiles(rate, n_bins)
    near = np.array([-2, -0.7, 0, 0.7, 2]) * spread
    return np.unique(np.concatenate([near, inner[inner > 2.5 * spread]]))


def _lines(theta: FloatArray) -> FloatArray:
    return np.ascontiguousarray(theta[[1, 2, 4, 5, 6]])


def _spreads(state: _State) -> tuple[float, float]:
    """Return how far off the planes may be at typical records."""
    theta, covariance = state.theta, state.covariance
    x1 = 1 / theta[0]
    x2 = theta[1] + theta[2] * x1 + 1 / theta[3]
    at_2, at_3 = np.array([1, x1]), np.array([1, x1, x2])
    return (
        float(np.sqrt(at_2 @ covariance[1:3, 1:3] @ at_2)),
        float(np.sqrt(at_3 @ covariance[4:7, 4:7] @ at_3)),
    )


def _partition(state: _State, free: tuple[int, ...], from_box: bool) -> Partition:
    """Choose cells that tell the candidates of a stage apart, from released numbers only."""
    theta, lines = state.theta, _lines(state.theta)
    spread_2, spread_3 = _spreads(state)
    none = np.empty(0)
    if free == (0,):
        return Partition(lines=lines, edges=(np.geomspace(0.05, 1000, 40), none, none))
    edges_1 = _quantiles(theta[0], 8)
    edges_2, edges_3 = _residual_edges(theta[3], spread_2, 8), _residual_edges(theta[7], spread_3, 8)
    if 7 not in free:
        lines, edges_3 = lines * [1, 1, 0, 0, 0], none
        if from_box:
            lines, edges_2 = lines * 0, GEOMETRIC
    elif from_box:
        lines, edges_2, edges_3 = lines * [1, 1, 0, 0, 0], _quantiles(theta[3], 4), GEOMETRIC
    return Partition(lines=lines, edges=(edges_1, edges_2, edges_3))


def _information(partition: Partition, state: _State, free: tuple[int, ...]) -> FloatArray:
    """Return the chi-square information of one record's cell about the free parameters, by differences."""
    widths = np.sqrt(np.diag(state.covariance))[list(free)] * 0.5
    opened = _open(state.theta)
    moved = np.tile(opened, (2 * len(free), 1))
    for i, parameter in enumerate(free):
        moved[2 * i, parameter] += widths[i]
        moved[2 * i + 1, parameter] -= widths[i]
    moved = _close(moved)
    shares = partition.shares(moved) / WHOLE + 1e-6
    gaps = np.array([_open(moved)[2 * i, p] - _open(moved)[2 * i + 1, p] for i, p in enumerate(free)])
    slopes = (shares[::2] - shares[1::2]) / gaps[:, None]
    return np.asarray(slopes / shares.mean(axis=0) @ slopes.T)


def _start() -> _State:
    low, high = _open(LOWEST), _open(HIGHEST)
    return _State(theta=_close((low + high) / 2), covariance=np.diag((high - low) ** 2 / 12))


def _after(state: _State, plan: "_Stage", theta: FloatArray, n: int, epsilon: Fraction, n_candidates: int) -> _State:
    """Say what is known once a stage has released ``theta``: public arithmetic on it."""
    free = plan.free
    before = state.covariance[np.ix_(free, free)] * WIDEN**2
    moved = _State(theta=theta, covariance=state.covariance)
    information = _information(_partition(moved, free, plan.from_box), moved, free) * n
    sharpness = float(epsilon) * RATIO**2 / (1 + RATIO) ** 3
    gained = np.linalg.inv(np.linalg.inv(before) + sharpness * information)
    spacing = before * n_candidates ** (-2 / len(free))
    sampling = np.linalg.inv(np.linalg.inv(before) + information)
    return moved.with_block(theta, free, gained + spacing + sampling)


@dataclass(frozen=True, kw_only=True)
class _Stage:
    free: tuple[int, ...]
    from_box: bool
    share: Fraction


def _stages(n_joint: int) -> list[_Stage]:
    plan = [_Stage(free=free, from_box=box, share=share) for free, box, share in BLOCKS]
    left = 1 - sum(stage.share for stage in plan)
    weights = [GROWTH**k for k in range(n_joint)]
    everything = tuple(range(len(NAMES)))
    return plan + [_Stage(free=everything, from_box=False, share=left * Fraction(w, sum(weights))) for w in weights]


def choose_parameters(records: FloatArray, epsilon: Fraction, *, n_candidates: int, stages: int, bits: RandomBits):
    n = len(records)
    state = _start()
    for number, plan in enumerate(_stages(stages)):
        make = _box_candidates if plan.from_box else _near_candidates
        thetas = make(state, plan.free, n_candidates, number)
        found = scores(_partition(state, plan.free, plan.from_box), thetas, records)
        price = epsilon * plan.share
        chosen = exponential_mechanism(found[None, :], price / (2 * step_sensitivity(n)), bits)[0]
        state = _after(state, plan, thetas[chosen], n, price, n_candidates)
        if TRACE: print(plan.free, plan.from_box, float(price), np.round(state.theta,3), np.round(np.sqrt(np.diag(state.covariance)),3), found.max()/steps_per_unit(n), found[chosen]/steps_per_unit(n))
    return state
TRACE=False
