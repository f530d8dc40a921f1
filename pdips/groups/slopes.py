"""Several normal effects of a group, with the identity link: given how many records the
group expects they are jointly normal, so that no grid is needed.

Records of a group are counted in cells, by the covariates. A cell's mean is an offset
plus the effects of its group, each times what it counts for in that cell. Given what
the group expects in all, size n and sum T of a cell are near normal (``_shared_block``
of :mod:`pdips.groups.quadrature`), and T's mean is linear in the effects.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from pdips.arrays import FloatArray
from pdips.groups.hierarchy import LOG_TWO_PI


@dataclass(frozen=True)
class CellNumbers:
    """What is known of the cells of some groups, given what each group expects; on the
    scale on which the ends of the outcome's range are -1 and 1.

    Parameters
    ----------
    sums : ndarray
        Noisy sums, shape (groups, cells, 1).
    sum_variance : float
        Of the noise on each.
    sizes, left : ndarray
        Mean and variance of numbers of records given the noisy ones, shape (groups,
        cells, expected).
    expected : ndarray
        Means of numbers of records given what groups expect, same shape.
    log_mass : ndarray
        Of what a group expects, and its noisy sizes given that: shape (groups,
        expected).
    shifts : ndarray
        How far the means of a group's cells lie from those of all groups, by what it
        expects: shape (groups, 1, expected), or one for all.
    """

    sums: FloatArray
    sum_variance: float
    sizes: FloatArray
    left: FloatArray
    expected: FloatArray
    log_mass: FloatArray
    shifts: FloatArray


@dataclass(frozen=True)
class CellLaw:
    """How outcomes of cells follow from standard normal effects of their group, on the
    same scale: ``offsets`` has shape (cells,), ``loadings`` (cells, effects), and
    ``within`` is the variance of records about their cell's mean.
    """

    offsets: FloatArray
    loadings: FloatArray
    within: float

    @property
    def squared_means(self) -> FloatArray:
        """Means of the squares of cells' means where nothing is known, shape
        (cells,).
        """
        return np.asarray(self.offsets**2 + (self.loadings**2).sum(axis=1))


@dataclass(frozen=True)
class LinearBlock:
    """The posterior of some groups' effects: a mixture, by what a group expects, of
    normal laws.
    """

    cells: CellNumbers
    law: CellLaw
    variances: FloatArray  # of sums given effects, shape (groups, cells, expected)
    log_weights: FloatArray  # (groups, expected)
    means: FloatArray  # of effects, shape (groups, expected, effects)
    covariances: FloatArray  # (groups, expected, effects, effects)

    @classmethod
    def of(
        cls, cells: CellNumbers, law: CellLaw, squared_means: FloatArray
    ) -> "LinearBlock":
        """Return the posterior of effects.

        ``squared_means`` are the expected squares of cells' means, shape (groups,
        cells), by which an unknown size adds to the variance of a sum.
        """
        unknown = cells.left * squared_means[:, :, None]
        variances = unknown + cells.expected * law.within + cells.sum_variance
        off = cells.sums - cells.sizes * (law.offsets[:, None] + cells.shifts)
        told = cells.sizes**2 / variances
        loadings = law.loadings
        precisions = np.einsum("gkm,kp,kq->gmpq", told, loadings, loadings)
        precisions = precisions + np.eye(loadings.shape[1])
        pull = np.einsum("gkm,kp->gmp", cells.sizes * off / variances, loadings)
        covariances = np.linalg.inv(precisions)
        means = np.einsum("gmpq,gmq->gmp", covariances, pull)
        terms = off**2 / variances + np.log(variances) + LOG_TWO_PI
        gained = (pull * means).sum(axis=2) - np.linalg.slogdet(precisions)[1]
        log_weights = cells.log_mass + (gained - terms.sum(axis=1)) / 2
        return cls(cells, law, variances, log_weights, means, covariances)

    @property
    def weights(self) -> FloatArray:
        """Of what groups expect, shape (groups, expected)."""
        weights = np.exp(self.log_weights - self.log_evidence()[:, None])
        return np.asarray(weights)

    def log_evidence(self) -> FloatArray:
        """Return the log probability of each group's numbers, shape (groups,)."""
        return np.asarray(logsumexp(self.log_weights, axis=1))

    def effects(self) -> tuple[FloatArray, FloatArray]:
        """Return means, shape (groups, effects), and covariances of effects."""
        weights = self.weights
        means = np.einsum("gm,gmp->gp", weights, self.means)
        off = self.means - means[:, None]
        covariances = self.covariances + off[..., :, None] * off[..., None, :]
        return means, np.einsum("gm,gmpq->gpq", weights, covariances)

    def cell_means(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the mean of each cell, shape (groups, cells,
        expected) each.
        """
        loadings = self.law.loadings
        means = np.einsum("gmp,kp->gkm", self.means, loadings)
        variances = np.einsum(
            "kp,gmpq,kq->gkm", loadings, self.covariances, loadings, optimize=True
        )
        return means + self.law.offsets[:, None] + self.cells.shifts, variances

    def squared_means(self) -> FloatArray:
        """Return the expected squares of cells' means, shape (groups, cells)."""
        means, variances = self.cell_means()
        squares = np.einsum("gm,gkm->gk", self.weights, means**2 + variances)
        return np.asarray(squares)

    def _sizes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean and variance of sizes given the noisy sums too, and the slope of
        that mean in the cell's mean, shape (groups, cells, expected) each.
        """
        means, variances = self.cell_means()
        cells = self.cells
        off = cells.sums - cells.sizes * means
        share = cells.left / self.variances
        # a product of the mean and of what is off by it: both vary
        sizes = cells.sizes + share * (means * off - cells.sizes * variances)
        slopes = share * (off - cells.sizes * means)
        # the law of the means is given, and may be far from a cell's
        left = cells.left * np.maximum(1 - share * means**2, 0)
        return sizes, left, slopes

    def sizes(self) -> FloatArray:
        """Return the mean of each cell's number of records, shape (groups * cells,)."""
        sizes, _, _ = self._sizes()
        return np.asarray(np.einsum("gm,gkm->gk", self.weights, sizes)).ravel()

    def sample(
        self, count: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return draws of effects, shape (draws, groups, effects), and of sizes, shape
        (draws, groups * cells).
        """
        cumulated = np.cumsum(self.weights, axis=1)
        uniform = rng.random((count, len(cumulated), 1))
        chosen = (uniform > cumulated[:, :-1]).sum(axis=2)
        rows = np.arange(len(cumulated))
        roots = np.linalg.cholesky(self.covariances)
        means = self.means[rows, chosen]
        noise = rng.standard_normal(means.shape)
        off = np.einsum("dgpq,dgq->dgp", roots[rows, chosen], noise)
        sizes, variances, slopes = self._sizes()

        def picked(values: FloatArray) -> FloatArray:
            return np.asarray(np.moveaxis(values, 2, 1)[rows, chosen])

        moved = picked(slopes) * (off @ self.law.loadings.T)
        noise = rng.standard_normal(moved.shape)
        drawn = picked(sizes) + moved + np.sqrt(picked(variances)) * noise
        return means + off, np.maximum(drawn, 0.0).reshape(count, -1)

    def squares(self) -> FloatArray:
        """Return what is known of the sum of squares of these groups: mean, variance,
        size, variance of sizes and their covariance.
        """
        cells = self.cells
        within = self.law.within
        means, variances = self.cell_means()
        sizes, size_variances, size_slopes = self._sizes()
        square = within + means**2
        off = cells.sums - cells.sizes * means
        # of squares and sum given the effects, over the cell's mean
        share = 2 * within * cells.expected + square * cells.left
        gain = share / self.variances
        added = gain * (means * off - cells.sizes * variances)
        totals = (square + variances) * cells.sizes + added
        slopes = 2 * means * cells.sizes + gain * (off - cells.sizes * means)
        own = (2 * within**2 + 4 * means**2 * within) * cells.expected
        own += square**2 * cells.left - gain * share * means**2
        both = square * cells.left - cells.left * means**2 * gain
        of_effects = np.einsum("gkm,kp->gmp", slopes, self.law.loadings)
        sizes_of_effects = np.einsum("gkm,kp->gmp", size_slopes, self.law.loadings)

        def moved(one: FloatArray, other: FloatArray) -> FloatArray:
            total = np.einsum("gmp,gmpq,gmq->gm", one, self.covariances, other)
            return np.asarray(total)

        return squares_of_mixture(
            weights=self.weights,
            squares=totals.sum(axis=1),
            variances=own.sum(axis=1) + moved(of_effects, of_effects),
            sizes=sizes.sum(axis=1),
            size_variances=(
                size_variances.sum(axis=1) + moved(sizes_of_effects, sizes_of_effects)
            ),
            covariances=both.sum(axis=1) + moved(of_effects, sizes_of_effects),
        )


def squares_of_mixture(
    weights: FloatArray,
    squares: FloatArray,
    variances: FloatArray,
    sizes: FloatArray,
    size_variances: FloatArray,
    covariances: FloatArray,
) -> FloatArray:
    """Return the law of the sum of squares of all groups: mean, variance, size,
    variance of sizes and their covariance. Each group's is a mixture by its weights,
    shape (groups, ...) as all others.
    """
    axes = tuple(range(1, weights.ndim))
    mean = (weights * squares).sum(axis=axes, keepdims=True)
    size = (weights * sizes).sum(axis=axes, keepdims=True)
    off = squares - mean
    size_off = sizes - size
    parts = (
        variances + off**2,
        size_variances + size_off**2,
        covariances + off * size_off,
    )
    variance, size_variance, covariance = ((weights * part).sum() for part in parts)
    return np.array([mean.sum(), variance, size.sum(), size_variance, covariance])
