"""Posteriors of blocks of groups with one effect each, as weights on grids: their
evidence, moments and draws.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from pdips.arrays import FloatArray, IntArray
from pdips.groups.slopes import squares_of_mixture


@dataclass(frozen=True)
class ClosedBlock:
    """Grids of sizes, shape (groups, sizes), of a normal outcome: given a size the
    predictor is normal.
    """

    sizes: FloatArray
    log_weights: FloatArray
    predictors: FloatArray
    variances: FloatArray

    def log_evidence(self) -> FloatArray:
        """Return the log probability of each group's numbers, shape (groups,)."""
        return np.asarray(logsumexp(self.log_weights, axis=1))

    def moments(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean and variance of predictors and the mean of sizes, shape (groups,)
        each.
        """
        weights = _normalised(self.log_weights)
        mean = (weights * self.predictors).sum(axis=1)
        spread = (self.predictors - mean[:, None]) ** 2 + self.variances
        sizes = (weights * self.sizes).sum(axis=1)
        return mean, (weights * spread).sum(axis=1), sizes

    def sample(
        self, count: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return draws of predictors and of sizes, shape (draws, groups) each."""
        chosen = _choices(_normalised(self.log_weights), count, rng)
        mean = _at(self.predictors, chosen)
        noise = rng.standard_normal(mean.shape)
        predictors = mean + np.sqrt(_at(self.variances, chosen)) * noise
        return predictors, _at(self.sizes, chosen)


@dataclass(frozen=True)
class GridBlock:
    """Grids of sizes, shape (groups, sizes), and of predictors, shape (groups,
    predictors), of another outcome.
    """

    sizes: FloatArray
    log_weights: FloatArray  # (groups, sizes, predictors)
    predictors: FloatArray

    def log_evidence(self) -> FloatArray:
        """Return the log probability of each group's numbers, shape (groups,)."""
        return np.asarray(logsumexp(self.log_weights, axis=(1, 2)))

    def moments(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean and variance of predictors and the mean of sizes, shape (groups,)
        each.
        """
        weights = _normalised(self.log_weights)
        mean, variance = _mean_and_variance(weights.sum(axis=1), self.predictors)
        sizes = (weights.sum(axis=2) * self.sizes).sum(axis=1)
        return mean, variance, sizes

    def sample(
        self, count: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return draws of predictors and of sizes, shape (draws, groups) each."""
        weights = _normalised(self.log_weights)
        by_predictor = weights.sum(axis=1)
        place = _choices(by_predictor, count, rng)
        predictors = _spread(self.predictors, by_predictor, place, rng)
        by_group = np.moveaxis(weights, 2, 1)
        given = np.take_along_axis(by_group, place.T[:, :, None], axis=1)
        chosen = _choices_of_each(given, rng).T
        return predictors, _at(self.sizes, chosen)


@dataclass(frozen=True)
class SharedBlock:
    """Effects that several groups have in common: grids of how many records all groups
    of an effect expect together, and of predictors. Given both, what is known of a
    group is near normal.
    """

    log_weights: FloatArray  # (effects, expected, predictors)
    predictors: FloatArray  # (effects, predictors), without offsets
    # of the size of each group, shape (effects, groups of each, expected, predictors)
    size_means: FloatArray
    size_variances: FloatArray
    # of its sum of squares, and its covariance with the size
    square_means: FloatArray
    square_variances: FloatArray
    covariances: FloatArray

    def log_evidence(self) -> FloatArray:
        """Return the log probability of each effect's numbers, shape (effects,)."""
        return np.asarray(logsumexp(self.log_weights, axis=(1, 2)))

    def moments(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean and variance of predictors, shape (effects,), and the mean of
        sizes, shape (groups,).
        """
        weights = _normalised(self.log_weights)
        mean, variance = _mean_and_variance(weights.sum(axis=1), self.predictors)
        sizes = (weights[:, None] * self.size_means).sum(axis=(2, 3))
        return mean, variance, sizes.ravel()

    def sample(
        self, count: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return draws of predictors, shape (draws, effects), and of sizes, shape
        (draws, groups).
        """
        weights = _normalised(self.log_weights)
        n_effects, _, n_predictors = weights.shape
        chosen = _choices(weights.reshape(n_effects, -1), count, rng)
        place = chosen % n_predictors
        by_predictor = weights.sum(axis=1)
        predictors = _spread(self.predictors, by_predictor, place, rng)
        groups = self.size_means.shape[:2]
        at = np.broadcast_to(chosen.T[:, None], (*groups, count))
        means = np.take_along_axis(self.size_means.reshape(*groups, -1), at, axis=2)
        spread = self.size_variances.reshape(*groups, -1)
        spread = np.sqrt(np.take_along_axis(spread, at, axis=2))
        sizes = means + spread * rng.standard_normal(means.shape)
        return predictors, np.maximum(sizes, 0.0).reshape(-1, count).T

    def squares(self) -> FloatArray:
        """Return the law of the sum of squares: mean, variance, size, variance of sizes
        and their covariance, of all effects.
        """
        return squares_of_mixture(
            weights=_normalised(self.log_weights),
            squares=self.square_means.sum(axis=1),
            variances=self.square_variances.sum(axis=1),
            sizes=self.size_means.sum(axis=1),
            size_variances=self.size_variances.sum(axis=1),
            covariances=self.covariances.sum(axis=1),
        )


def _mean_and_variance(
    weights: FloatArray, points: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of points, shape (groups, points), by their weights."""
    mean = (weights * points).sum(axis=1)
    return mean, (weights * (points - mean[:, None]) ** 2).sum(axis=1)


def _normalised(log_weights: FloatArray) -> FloatArray:
    """Return weights that add up to 1 for each group, shape as the logs."""
    axes = tuple(range(1, log_weights.ndim))
    weights = np.exp(log_weights - log_weights.max(axis=axes, keepdims=True))
    weights /= weights.sum(axis=axes, keepdims=True)
    return weights


def _at(values: FloatArray, chosen: IntArray) -> FloatArray:
    """Return values of groups, shape (groups, points), at points of each draw, shape
    (draws, groups): shape (draws, groups).
    """
    return np.asarray(np.take_along_axis(values, chosen.T, axis=1).T)


def _spread(
    points: FloatArray, weights: FloatArray, place: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Return draws evenly between points, as far as half way to the next, drawn
    together by what this adds to their variance.
    """
    step = points[:, 1] - points[:, 0]
    mean, variance = _mean_and_variance(weights, points)
    drawn = _at(points, place)
    drawn = drawn + step * (rng.random(drawn.shape) - 0.5)
    added = step**2 / 12
    shrunk = np.sqrt(variance / (variance + added))
    return np.asarray(mean + shrunk * (drawn - mean))


def _choices(weights: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Return points drawn by their weights, shape (groups, points): shape (draws,
    groups).
    """
    below = np.cumsum(weights, axis=1)
    below /= below[:, -1:]
    uniform = rng.random((count, len(weights)))
    chosen = np.zeros(uniform.shape, dtype=np.int64)
    for column in below.T[:-1]:
        chosen += uniform > column
    return chosen


def _choices_of_each(weights: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return a point for each draw, by weights of shape (..., points): shape (...)."""
    below = np.cumsum(weights, axis=-1)
    below /= below[..., -1:]
    uniform = rng.random((*weights.shape[:-1], 1))
    return np.asarray((uniform > below[..., :-1]).sum(axis=-1), dtype=np.int64)
