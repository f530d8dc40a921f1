"""The posterior of each group given what all groups have in common: its unknown number
of records and its predictor are summed over on a grid of their own.

Groups are independent given the common parameters, so that they are worked out in
blocks, and their evidences multiply.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc, gammaln, logsumexp

from pdips.arrays import FloatArray, IntArray
from pdips.groups.families import GroupOutcome, Normal, outcome_of
from pdips.groups.hierarchy import LOG_TWO_PI, Spread
from pdips.groups.noisy_groups import NoisyGroups


@dataclass(frozen=True)
class GroupGrid:
    """How finely groups are summed over: tuned on ``benchmarks.groups``."""

    n_sizes: int = 12
    n_predictors: int = 15
    # deviations to either side of where a group's posterior is
    width: float = 5.5
    # decay lengths of a tail towards larger sizes
    tail: float = 15.0
    block: int = 1024
    # passes in which each group's posterior is looked for, at most; of the distance of
    # points, how small its deviation may be after one; and when all have settled
    passes: int = 12
    least_deviation: float = 0.6
    settled: float = 0.1
    # of the first pass, times the spread of the groups
    first: float = 1.5

    @property
    def step(self) -> float:
        """The distance of predictors, in deviations."""
        return 2 * self.width / (self.n_predictors - 1)


GRID = GroupGrid()
LEAST = 1e-12


@dataclass(frozen=True)
class SizeLaw:
    """The gamma law of the numbers of records in groups: a mean and a shape."""

    mean: float
    shape: float


@dataclass(frozen=True)
class Common:
    """What all groups have in common."""

    spread: Spread
    sizes: SizeLaw | None  # None where sizes are public


@dataclass(frozen=True)
class _Block:
    """Grids of some groups, and the log weights of their points, shape (groups, sizes)
    for a normal outcome and (groups, sizes, predictors) for others.
    """

    sizes: FloatArray  # (groups, sizes)
    log_weights: FloatArray
    predictors: FloatArray  # (groups, predictors), of a normal outcome given the size
    # within points, (groups, sizes), of a normal outcome
    variances: FloatArray | None = None


class GroupQuadrature:
    """Sums over the unknown sizes and predictors of all groups.

    Parameters
    ----------
    noisy : NoisyGroups
        What was measured.
    """

    def __init__(self, noisy: NoisyGroups) -> None:
        self.noisy = noisy
        # a normal approximation of what each group's numbers say of its predictor
        self.places = np.zeros(noisy.n_groups)
        self.precisions = np.zeros(noisy.n_groups)

    @property
    def is_normal(self) -> bool:
        return self.noisy.design.family == "normal"

    def outcome(self, common: Common) -> GroupOutcome:
        return outcome_of(self.noisy.design, common.spread.deviation)

    def locate(self, common: Common) -> None:
        """Look for where each group's numbers place its predictor, so that grids lie
        there at other common parameters too.
        """
        if self.is_normal:
            return
        here = common.spread
        wide = Spread(here.mean, here.spread * GRID.first, here.deviation)
        common = Common(wide, common.sizes)
        rows = np.arange(self.noisy.n_groups)
        for _ in range(GRID.passes):
            before = self.precisions[rows]
            told = before * wide.spread**2
            step = GRID.step * wide.spread / np.sqrt(1 + told)
            means, deviations, _ = self._part(rows).moments(common)
            # where one point has all the weight, the group is somewhere near it
            own = 1 / np.maximum(deviations, GRID.least_deviation * step) ** 2
            precision = np.maximum(own - 1 / wide.spread**2, 0.0)
            pull = means * own - wide.mean / wide.spread**2
            safe = np.maximum(precision, LEAST)
            self.places[rows] = np.where(precision > LEAST, pull / safe, wide.mean)
            self.precisions[rows] = precision
            change = np.abs(precision - before) * wide.spread**2 / (1 + told)
            rows = rows[change > GRID.settled]
            if not len(rows):
                break

    def _part(self, rows: IntArray) -> "GroupQuadrature":
        """Return the sums over some groups."""
        part = GroupQuadrature(self.noisy.some(rows))
        part.places = self.places[rows]
        part.precisions = self.precisions[rows]
        return part

    def evidence(self, common: Common) -> float:
        """Return the log probability of all noisy numbers, groups summed over."""
        total = 0.0
        squares = np.zeros(5)
        for rows, block in self._blocks(common):
            axes = tuple(range(1, block.log_weights.ndim))
            by_group = logsumexp(block.log_weights, axis=axes)
            total += float(by_group.sum())
            if self.noisy.squares is not None:
                weights = np.exp(block.log_weights - by_group[:, None])
                squares += self._of_squares(rows, block.sizes, weights, common)
        if self.noisy.squares is not None:
            total += self._log_squares(squares)
        return total

    def moments(self, common: Common) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the posterior mean and deviation of each group's predictor, and the
        mean of its number of records.
        """
        means = np.empty(self.noisy.n_groups)
        variances = np.empty(self.noisy.n_groups)
        sizes = np.empty(self.noisy.n_groups)
        for rows, block in self._blocks(common):
            weights = _normalised(block.log_weights)
            by_size = weights
            if block.variances is None:
                by_size = weights.sum(axis=2)
                weights = weights.sum(axis=1)
            first = (weights * block.predictors).sum(axis=1)
            spread = (block.predictors - first[:, None]) ** 2
            if block.variances is not None:
                spread = spread + block.variances
            means[rows] = first
            variances[rows] = (weights * spread).sum(axis=1)
            sizes[rows] = (by_size * block.sizes).sum(axis=1)
        return means, np.sqrt(variances), sizes

    def sample(
        self, common: Common, count: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return draws of predictors and of sizes, shape (draws, groups) each."""
        predictors = np.empty((count, self.noisy.n_groups))
        sizes = np.empty((count, self.noisy.n_groups))
        for rows, block in self._blocks(common):
            weights = _normalised(block.log_weights)
            if block.variances is not None:
                chosen = _choices(weights, count, rng)
                mean = _at(block.predictors, chosen)
                noise = rng.standard_normal(mean.shape)
                spread = np.sqrt(_at(block.variances, chosen))
                predictors[:, rows] = mean + spread * noise
            else:
                by_predictor = weights.sum(axis=1)
                place = _choices(by_predictor, count, rng)
                predictors[:, rows] = _spread(
                    block.predictors, by_predictor, place, rng
                )
                by_group = np.moveaxis(weights, 2, 1)
                given = np.take_along_axis(by_group, place.T[:, :, None], axis=1)
                chosen = _choices_of_each(given, rng).T
            sizes[:, rows] = _at(block.sizes, chosen)
        return predictors, sizes

    def _blocks(self, common: Common) -> Iterator[tuple[slice, _Block]]:
        make = self._normal_block if self.is_normal else self._block
        for first in range(0, self.noisy.n_groups, GRID.block):
            rows = slice(first, min(first + GRID.block, self.noisy.n_groups))
            yield rows, make(rows, common)

    def _normal_block(self, rows: slice, common: Common) -> _Block:
        """Return a block of an outcome that is normal with the identity link, given
        whose size the predictor has a normal posterior.
        """
        outcome = self._normal(common)
        half = outcome.half
        mean, prior, within = self._scaled(common)
        sizes, log_sizes = self._sizes_of(rows, common)
        off = self.noisy.sums[rows, None] - sizes * mean
        noise = sizes * within + self.noisy.sum_variance
        variance = sizes**2 * prior + noise
        terms = off**2 / variance + np.log(variance) + LOG_TWO_PI
        gain = prior * sizes / variance
        predicted = mean + gain * off
        left = prior * noise / variance
        return _Block(
            sizes=sizes,
            log_weights=log_sizes - terms / 2,
            predictors=outcome.middle + half * predicted,
            variances=half**2 * left,
        )

    def _block(self, rows: slice, common: Common) -> _Block:
        """Return a block of another outcome, whose noisy sum is near normal given size
        and predictor: its skewness is that of a sum of records with loud noise on it.
        """
        sizes, log_sizes = self._sizes_of(rows, common)
        spread = common.spread
        places, step = self._standard_grid(rows, spread)
        predictors = spread.mean + spread.spread * places
        mean, within = self.outcome(common).moments(predictors)
        log_prior = np.log(step) - (places**2 + LOG_TWO_PI) / 2
        off = self.noisy.sums[rows, None, None] - sizes[:, :, None] * mean[:, None]
        variance = sizes[:, :, None] * within[:, None]
        variance += self.noisy.sum_variance
        terms = off**2
        terms /= variance
        terms += np.log(variance)
        terms *= -0.5
        terms += (log_sizes - LOG_TWO_PI / 2)[:, :, None]
        terms += log_prior[:, None]
        return _Block(sizes=sizes, log_weights=terms, predictors=predictors)

    def _standard_grid(
        self, rows: slice, spread: Spread
    ) -> tuple[FloatArray, FloatArray]:
        """Return predictors less their mean over their spread, shape (groups, points),
        and the distance of points, shape (groups, 1).
        """
        told = self.precisions[rows] * spread.spread**2
        deviation = 1 / np.sqrt(1 + told)
        off = (self.places[rows] - spread.mean) / spread.spread
        centre = off * told / (1 + told)
        along = np.linspace(-GRID.width, GRID.width, GRID.n_predictors)
        step = deviation[:, None] * (along[1] - along[0])
        return centre[:, None] + deviation[:, None] * along, step

    def _sizes_of(self, rows: slice, common: Common) -> tuple[FloatArray, FloatArray]:
        """Return sizes that groups may have, shape (groups, sizes), and the log of
        their prior mass times the density of the noisy size.
        """
        noisy = self.noisy.sizes[rows]
        law = common.sizes
        variance = self.noisy.size_variance
        if law is None:
            sizes = noisy[:, None]
            return sizes, np.zeros_like(sizes)
        lower, width = _size_ranges(noisy, variance, law)
        cells = np.arange(GRID.n_sizes) + 0.5
        sizes = lower[:, None] + width[:, None] * cells
        rate = law.shape / law.mean
        log_mass = (law.shape - 1) * np.log(sizes) - rate * sizes
        log_mass += law.shape * np.log(rate) - gammaln(law.shape)
        log_mass += np.log(width)[:, None]
        # the density may be infinite at 0, its mass is not
        at_zero = lower == 0
        mass = gammainc(law.shape, rate * width[at_zero])
        log_mass[at_zero, 0] = np.log(np.maximum(mass, np.finfo(float).tiny))
        off = (noisy[:, None] - sizes) ** 2 / variance
        return sizes, log_mass - (off + np.log(variance) + LOG_TWO_PI) / 2

    def _normal(self, common: Common) -> Normal:
        """Return the law of an outcome that is normal."""
        lower, upper = self.noisy.design.range
        return Normal(lower, upper, common.spread.deviation)

    def _scaled(self, common: Common) -> tuple[float, float, float]:
        """Return mean and variance of the groups, and the variance of records within
        one, on [-1, 1].
        """
        outcome = self._normal(common)
        mean = (common.spread.mean - outcome.middle) / outcome.half
        prior = (common.spread.spread / outcome.half) ** 2
        return mean, prior, (outcome.deviation / outcome.half) ** 2

    def _of_squares(
        self, rows: slice, sizes: FloatArray, weights: FloatArray, common: Common
    ) -> FloatArray:
        """Return what a block adds to the law of the sum of squares given its noisy
        numbers: mean, variance, size, variance of sizes and their covariance.
        """
        expected, spread = self._squares_given_sizes(rows, sizes, common)
        mean = (weights * expected).sum(axis=1)
        size = (weights * sizes).sum(axis=1)
        off = expected - mean[:, None]
        sizes_off = sizes - size[:, None]
        variance = (weights * (spread + off**2)).sum()
        size_variance = (weights * sizes_off**2).sum()
        covariance = (weights * sizes_off * off).sum()
        totals = [mean.sum(), variance, size.sum(), size_variance, covariance]
        return np.array(totals)

    def _squares_given_sizes(
        self, rows: slice, sizes: FloatArray, common: Common
    ) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the sum of squares of each group, given its size
        and its noisy sum, shape (groups, sizes).

        These are the squares about the group's mean, which are a chi-square that
        doesn't depend on the sum T, and T^2 / n.
        """
        mean, prior, within = self._scaled(common)
        noise = self.noisy.sum_variance
        known = np.maximum(sizes, LEAST)
        variance = sizes**2 * prior + sizes * within
        gain = variance / (variance + noise)
        sums = sizes * mean + gain * (self.noisy.sums[rows, None] - sizes * mean)
        left = gain * noise
        about = np.maximum(sizes - 1, 0.0) * within
        of_sum = (2 * left + 4 * sums**2) * left / known**2
        return about + (sums**2 + left) / known, 2 * about * within + of_sum

    def _log_squares(self, sums: FloatArray) -> float:
        """Return the log density of the noisy sum of squares given the other noisy
        numbers, and the number of records where that is public.
        """
        mean, variance, size, size_variance, covariance = sums
        n_records = self.noisy.n_records
        if n_records is not None and size_variance > LEAST:
            slope = covariance / size_variance
            mean = mean + slope * (n_records - size)
            variance = max(variance - slope * covariance, LEAST)
        variance = variance + self.noisy.squares_variance
        off = self.noisy.squares - mean
        return float(-(off**2 / variance + np.log(variance) + LOG_TWO_PI) / 2)


def _size_ranges(
    noisy: FloatArray, variance: float, law: SizeLaw
) -> tuple[FloatArray, FloatArray]:
    """Return where cells of sizes begin, and how wide each is, shape (groups,): about
    the mode of a gamma law times a normal density.
    """
    rate = law.shape / law.mean
    bent = (law.shape - 1) * variance
    tilted = noisy - variance * rate
    inner = np.sqrt(np.maximum(tilted**2 + 4 * bent, 0.0))
    mode = np.maximum((tilted + inner) / 2, 0.0)
    curved = max(law.shape - 1, 0.0) / np.maximum(mode, LEAST) ** 2
    deviation = 1 / np.sqrt(1 / variance + curved)
    loud = np.sqrt(variance)
    # where the mode is near 0 the tail is exponential
    decay = variance / np.maximum(-tilted, loud / GRID.width)
    tail = np.minimum(GRID.width * loud, GRID.tail * decay)
    above = np.maximum(GRID.width * deviation, np.where(tilted < 0, tail, 0.0))
    lower = np.maximum(mode - GRID.width * deviation, 0.0)
    return lower, (mode + above - lower) / GRID.n_sizes


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
    mean = (weights * points).sum(axis=1)
    variance = (weights * (points - mean[:, None]) ** 2).sum(axis=1)
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
    """Return a point for each draw of each group, by weights of shape (groups, draws,
    points): shape (groups, draws).
    """
    below = np.cumsum(weights, axis=2)
    below /= below[:, :, -1:]
    uniform = rng.random((*weights.shape[:2], 1))
    return np.asarray((uniform > below[:, :, :-1]).sum(axis=2), dtype=np.int64)
