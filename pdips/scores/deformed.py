"""What a law of outcomes that is skewed, or has other tails than the model says, does
to clipped scores, by two noisy numbers of records: a correction, and how far it may be
wrong. All of it is public.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.stats import norm

from pdips.arrays import FloatArray
from pdips.scores.centring import COUNTED
from pdips.scores.inner_points import FURTHEST, QUANTILES
from pdips.scores.pseudo_table import LEAST_SLOPE

# How far the correction may be wrong, as a share of it: of skewness, and of tails.
# Chosen on the errors of `python -m benchmarks.score_parts constants` (2026-12-01),
# whose skewness polynomials of a quantile tell well, and long tails at half of what
# they do
UNSURE = (0.5, 1.0)
# Condition of what the two numbers say of the two deformations from which on nothing
# is corrected
LARGEST_CONDITION = 1e4
# Of a value's share on the normal scale: beyond it doubles have no density
FURTHEST_END = 38.0


def deformations(weights: FloatArray, *, is_continuous: bool) -> FloatArray:
    """Return by which share the density of each point changes where outcomes are
    skewed, and where their tails are longer: shape (rows, points, 2).

    They are Hermite polynomials of the outcome's quantile on the scale of a standard
    normal distribution: the third, and of a continuous outcome the fourth, which leave
    mean and variance of a normal one as they are. A count may have no scale of its own,
    so the second shows how much more widely it is spread. ``weights`` are those of the
    points, shape (rows, points).
    """
    if is_continuous:
        z = np.linspace(-FURTHEST, FURTHEST, QUANTILES)
        both = np.column_stack([z**3 - 3 * z, z**4 - 6 * z**2 + 3])
        return np.broadcast_to(both, (*weights.shape, 2))
    upto = np.clip(np.cumsum(weights, axis=1), 0.0, 1.0)
    ends = norm.ppf(np.concatenate([np.zeros((len(upto), 1)), upto], axis=1))
    ends = np.clip(ends, -FURTHEST_END, FURTHEST_END)
    density = norm.pdf(ends)
    # of the mean over the part of a normal law that a value has
    third = -np.diff((ends**2 - 1) * density, axis=1)
    second = -np.diff(ends * density, axis=1)
    both = np.stack([third, second], axis=-1)
    share = np.where(weights > 0, weights, 1.0)[..., None]
    return np.where(weights[..., None] > 0, both / share, 0.0)


@dataclass(frozen=True, eq=False)
class Deformed:
    """What deformations of the law of outcomes do at the reference: to sums of clipped
    scores, of scores without clipping, and to the numbers of records that are counted.
    """

    outer: FloatArray  # shape (rows * points,): of records
    clipped: FloatArray  # (rows * points, parameters): centred
    scores: FloatArray  # (rows * points, parameters): centred, without clipping
    # (rows * points, 2): what is counted, less its mean
    counted: FloatArray
    changes: FloatArray  # (rows * points, 2): see :func:`deformations`

    @cached_property
    def _free(self) -> FloatArray:
        """Changes less what parameters explain of them, so that the estimate without
        clipping stays where it is.
        """
        weighted = self.outer[:, None] * self.scores
        information = weighted.T @ self.scores
        explained = np.linalg.pinv(information, LEAST_SLOPE, hermitian=True) @ (
            weighted.T @ self.changes
        )
        return self.changes - self.scores @ explained

    @cached_property
    def of_sums(self) -> FloatArray:
        """What a unit of each deformation moves the sums of clipped scores by, shape
        (parameters, 2).
        """
        return (self.outer[:, None] * self.clipped).T @ self._free

    @cached_property
    def of_counts(self) -> FloatArray:
        """What a unit of each deformation moves counted numbers by, shape (2, 2)."""
        return (self.outer[:, None] * self.counted).T @ self._free

    @cached_property
    def factors(self) -> FloatArray:
        """What is taken off the sums for each record that is counted beyond what the
        model says, shape (parameters, 2): then no deformation moves them.
        """
        if not np.linalg.cond(self.of_counts) < LARGEST_CONDITION:
            return np.zeros_like(self.of_sums)
        return np.linalg.solve(self.of_counts.T, self.of_sums.T).T

    @cached_property
    def covariances(self) -> tuple[FloatArray, FloatArray]:
        """Of sums with what is counted, shape (parameters, 2), and of this, (2, 2)."""
        weighted = self.outer[:, None] * self.counted
        return self.clipped.T @ weighted, self.counted.T @ weighted


class DeformedSums(Protocol):
    """What is read of :class:`pdips.scores.centred_sums.CentredSums`."""

    @property
    def deformed(self) -> Deformed | None: ...
    @property
    def plain_means(self) -> Any: ...
    @property
    def plain_place(self) -> FloatArray: ...
    @property
    def plain_sampling(self) -> FloatArray: ...
    @property
    def beyond(self) -> FloatArray: ...
    @property
    def counted_shares(self) -> FloatArray: ...
    @property
    def n_variance(self) -> float: ...
    @property
    def last(self) -> Any: ...


def sizes_of(sums: DeformedSums) -> tuple[FloatArray, FloatArray]:
    """Return how large both deformations are by the noisy answers, and the standard
    deviations of that, shape (2,) each.
    """
    deformed = sums.deformed
    assert deformed is not None
    by_scores, apart = _apart(sums, deformed)
    covariance = _covariance(sums, deformed, by_scores)
    units = np.linalg.inv(deformed.of_counts - by_scores @ deformed.of_sums)
    variances = np.diag(units @ covariance @ units.T)
    return units @ apart, np.sqrt(np.maximum(variances, 0.0))


def _apart(sums: DeformedSums, deformed: Deformed) -> tuple[FloatArray, FloatArray]:
    """Return what scores say of each number that is counted, shape (2, parameters), and
    how many records are counted beyond what the most probable parameters explain.
    """
    means = sums.plain_means
    place = sums.plain_place
    inner = means.inner_weights(means.logs(place[None]))[0]
    outer = (means.weights[:, None] * inner).ravel()
    scores = means.row_scores(place, inner).reshape(len(outer), -1)
    by_scores = (deformed.counted.T @ (outer[:, None] * scores)) @ np.linalg.pinv(
        means.slopes(place, inner), LEAST_SLOPE
    )
    missed = sums.last.noisy["scores"] - means.mean(inner, means.whitened(place))
    return by_scores, sums.beyond - outer @ deformed.counted - by_scores @ missed


def _covariance(
    sums: DeformedSums, deformed: Deformed, by_scores: FloatArray
) -> FloatArray:
    """Return the covariance of what is counted beyond what scores say, sampling and
    noise, shape (2, 2).
    """
    with_counted, of_counted = deformed.covariances
    deviations = sums.last.deviations
    noise = np.diag([deviations[kind] ** 2 for kind in COUNTED])
    shares = sums.counted_shares
    noise = noise + sums.n_variance * np.outer(shares, shares)
    of_scores = sums.plain_sampling
    of_scores = of_scores + deviations["scores"] ** 2 * np.eye(len(of_scores))
    crossed = by_scores @ with_counted
    covariance = of_counted + noise - crossed - crossed.T
    return np.asarray(covariance + by_scores @ of_scores @ by_scores.T)


def doubtful_sizes(sums: DeformedSums) -> FloatArray:
    """Return how large deformations are beyond what noise explains, shape (2,); 0 where
    nothing is corrected.
    """
    deformed = sums.deformed
    if deformed is None or not deformed.factors.any():
        return np.zeros(2)
    sizes, deviations = sizes_of(sums)
    return np.asarray(np.sqrt(np.maximum(sizes**2 - deviations**2, 0.0)))
