"""The posterior of each effect given what all of them have in common: the unknown
numbers of records of its groups and the predictor are summed over on a grid of their
own.

An effect is that of one group, or of several whose predictors differ by known offsets.
Effects are independent given the common parameters, so that they are worked out in
blocks, and their evidences multiply.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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
# Of all records, in groups of one place among those with an effect in common
LEAST_SHARE = 1e-4


@dataclass(frozen=True)
class SizeLaw:
    """The gamma law of the numbers of records in groups: a mean and a shape.

    Of groups that have an effect in common it is the law of what they expect together,
    per group. Their own numbers are about the same shares of it everywhere:
    ``unevenness`` is the squared coefficient of variation beyond a Poisson law's.
    """

    mean: float
    shape: float
    unevenness: float = 0.0


@dataclass(frozen=True)
class Common:
    """What all groups have in common."""

    spread: Spread
    sizes: SizeLaw | None  # None where sizes are public


@dataclass(frozen=True)
class _ClosedBlock:
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
class _GridBlock:
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
class _SharedBlock:
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
        weights = _normalised(self.log_weights)
        squares = self.square_means.sum(axis=1)
        sizes = self.size_means.sum(axis=1)
        mean = (weights * squares).sum(axis=(1, 2))
        size = (weights * sizes).sum(axis=(1, 2))
        off = squares - mean[:, None, None]
        size_off = sizes - size[:, None, None]
        variance = self.square_variances.sum(axis=1) + off**2
        size_variance = self.size_variances.sum(axis=1) + size_off**2
        covariance = self.covariances.sum(axis=1) + off * size_off
        parts = [
            (weights * part).sum() for part in (variance, size_variance, covariance)
        ]
        return np.array([mean.sum(), parts[0], size.sum(), parts[1], parts[2]])


_Block = _ClosedBlock | _GridBlock | _SharedBlock


class GroupQuadrature:
    """Sums over the unknown sizes and predictors of all groups.

    Parameters
    ----------
    noisy : NoisyGroups
        What was measured.
    """

    def __init__(self, noisy: NoisyGroups) -> None:
        self.noisy = noisy
        # a normal approximation of what each effect's numbers say of its predictor
        self.places = np.zeros(noisy.n_effects)
        self.precisions = np.zeros(noisy.n_effects)
        # of all records, by the place of groups among those that have an effect in
        # common
        totals = noisy.sizes.reshape(-1, noisy.n_within).sum(axis=0)
        shares = np.maximum(totals / max(totals.sum(), 1.0), LEAST_SHARE)
        self.shares = shares / shares.sum()

    @property
    def is_closed(self) -> bool:
        """Whether predictors need no grid: those of one normal group each."""
        return self.noisy.design.family == "normal" and self.noisy.n_within == 1

    def outcome(self, common: Common) -> GroupOutcome:
        return outcome_of(self.noisy.design, common.spread.deviation)

    def locate(self, common: Common) -> None:
        """Look for where each effect's numbers place its predictor, so that grids lie
        there at other common parameters too.
        """
        if self.is_closed:
            return
        here = common.spread
        wide = replace(here, spread=here.spread * GRID.first)
        common = Common(wide, common.sizes)
        rows = np.arange(self.noisy.n_effects)
        for _ in range(GRID.passes):
            before = self.precisions[rows]
            told = before * wide.spread**2
            step = GRID.step * wide.spread / np.sqrt(1 + told)
            means, deviations, _ = self._part(rows).moments(common)
            # where one point has all the weight, the effect is somewhere near it
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
        """Return the sums over some effects."""
        part = GroupQuadrature(self.noisy.some(rows))
        part.shares = self.shares
        part.places = self.places[rows]
        part.precisions = self.precisions[rows]
        return part

    def evidence(self, common: Common) -> float:
        """Return the log probability of all noisy numbers, groups summed over."""
        total = 0.0
        squares = np.zeros(5)
        for rows, block in self._blocks(common):
            by_effect = block.log_evidence()
            total += float(by_effect.sum())
            if self.noisy.squares is not None:
                squares += self._of_squares(rows, block, common)
        if self.noisy.squares is not None:
            total += self._log_squares(squares)
        return total

    def moments(self, common: Common) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the posterior mean and deviation of each effect's predictor, without
        offsets, and the mean of the number of records of each group.
        """
        means = np.empty(self.noisy.n_effects)
        variances = np.empty(self.noisy.n_effects)
        sizes = np.empty(self.noisy.n_groups)
        for rows, block in self._blocks(common):
            means[rows], variances[rows], expected = block.moments()
            sizes[self._groups(rows)] = expected
        return means, np.sqrt(variances), sizes

    def sample(
        self, common: Common, count: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return draws of predictors without offsets, shape (draws, effects), and of
        sizes, shape (draws, groups).
        """
        predictors = np.empty((count, self.noisy.n_effects))
        sizes = np.empty((count, self.noisy.n_groups))
        for rows, block in self._blocks(common):
            predictors[:, rows], drawn = block.sample(count, rng)
            sizes[:, self._groups(rows)] = drawn
        return predictors, sizes

    def _groups(self, rows: slice) -> slice:
        """Return the groups of effects that follow each other."""
        n_within = self.noisy.n_within
        return slice(rows.start * n_within, rows.stop * n_within)

    def _blocks(self, common: Common) -> "Iterator[tuple[slice, _Block]]":
        make: Callable[[slice, Common], _Block] = self._grid_block
        if self.is_closed:
            make = self._closed_block
        elif self.noisy.n_within > 1:
            make = self._shared_block
        length = max(GRID.block // self.noisy.n_within, 1)
        for first in range(0, self.noisy.n_effects, length):
            rows = slice(first, min(first + length, self.noisy.n_effects))
            yield rows, make(rows, common)

    def _closed_block(self, rows: slice, common: Common) -> _ClosedBlock:
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
        return _ClosedBlock(
            sizes=sizes,
            log_weights=log_sizes - terms / 2,
            predictors=outcome.middle + half * predicted,
            variances=half**2 * left,
        )

    def _grid_block(self, rows: slice, common: Common) -> _GridBlock:
        """Return a block of another outcome, whose noisy sum is near normal given size
        and predictor: its skewness is that of a sum of records with loud noise on it.
        """
        sizes, log_sizes = self._sizes_of(rows, common)
        predictors, log_prior = self._predictors_of(rows, common)
        mean, within = self.outcome(common).moments(predictors)
        off = self.noisy.sums[rows, None, None] - sizes[:, :, None] * mean[:, None]
        variance = sizes[:, :, None] * within[:, None]
        variance += self.noisy.sum_variance
        terms = off**2
        terms /= variance
        terms += np.log(variance)
        terms *= -0.5
        terms += (log_sizes - LOG_TWO_PI / 2)[:, :, None]
        terms += log_prior[:, None]
        return _GridBlock(sizes=sizes, log_weights=terms, predictors=predictors)

    def _shared_block(self, rows: slice, common: Common) -> _SharedBlock:
        """Return a block of effects that several groups have in common.

        Given what the groups expect and the predictor, size n, noisy size N, sum of
        squares and noisy sum T of a group are near normal. They are conditioned on N,
        and then on T.
        """
        predictors, log_prior = self._predictors_of(rows, common)
        mean, within = self._record_moments(predictors, common)
        expected, variance, log_expected = self._expected_of(rows, common)
        # by the noisy size
        share = variance / np.maximum(variance + self.noisy.size_variance, LEAST)
        size = expected + share * (self._of_groups(self.noisy.sizes, rows) - expected)
        left = variance * (1 - share)
        # by the noisy sum
        off = self._of_groups(self.noisy.sums, rows) - size * mean
        spread = left * mean**2 + expected * within + self.noisy.sum_variance
        terms = -(off**2 / spread + np.log(spread) + LOG_TWO_PI) / 2
        gain = left * mean / spread
        # of the sum of squares
        square = within + mean**2
        both = 2 * mean * within * expected + square * mean * left
        own = _variance_of_squares(mean, within) * expected + square**2 * left
        log_weights = terms.sum(axis=1) + log_expected[..., None] + log_prior[:, None]
        return _SharedBlock(
            log_weights=log_weights,
            predictors=predictors,
            size_means=size + gain * off,
            size_variances=left - gain * mean * left,
            square_means=square * size + both / spread * off,
            square_variances=own - both**2 / spread,
            covariances=square * left - gain * both,
        )

    def _record_moments(
        self, predictors: FloatArray, common: Common
    ) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of a record in each group of an effect, at
        predictors of shape (effects, points): shape (effects, groups of each, 1,
        points).
        """
        offsets = common.spread.offsets[:, None]
        mean, within = self.outcome(common).moments(predictors[:, None] + offsets)
        return mean[:, :, None], within[:, :, None]

    def _of_groups(self, numbers: FloatArray, rows: slice) -> FloatArray:
        """Return numbers of the groups of effects, shape (effects, groups of each, 1,
        1).
        """
        some = numbers[self._groups(rows)]
        return some.reshape(-1, self.noisy.n_within, 1, 1)

    def _expected_of(
        self, rows: slice, common: Common
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return what groups of an effect expect, and the variance of their sizes about
        it, shape (effects, groups of each, expected, 1), and the log of its prior mass
        times the density of the noisy sizes, shape (effects, expected).
        """
        noise = self.noisy.size_variance
        exact = self._of_groups(self.noisy.sizes, rows)
        noisy = exact[:, :, 0, 0]
        law = common.sizes
        if law is None:
            return exact, np.zeros_like(exact), np.zeros((len(noisy), 1))
        # what all groups together say, weighted by how well each says it
        about = np.maximum(noisy.sum(axis=1), np.sqrt(noise * self.noisy.n_within))
        guess = about[:, None] * self.shares
        told = self.shares / (noise + guess * (1 + law.unevenness * guess))
        variance = 1 / (told * self.shares).sum(axis=1)
        together = (told * noisy).sum(axis=1) * variance
        rate = law.shape / (law.mean * self.noisy.n_within)
        lower, width = _size_ranges(together, variance, law.shape, rate)
        totals, log_mass = _gamma_masses(lower, width, law.shape, rate)
        expected = totals[:, None, :, None] * self.shares[:, None, None]
        spread = expected * (1 + law.unevenness * expected)
        loud = spread + noise
        off = exact - expected
        terms = -(off**2 / loud + np.log(loud) + LOG_TWO_PI) / 2
        return expected, spread, log_mass + terms.sum(axis=(1, 3))

    def _predictors_of(
        self, rows: slice, common: Common
    ) -> tuple[FloatArray, FloatArray]:
        """Return predictors and the log of their prior mass, shape (effects,
        predictors) each.
        """
        spread = common.spread
        places, step = self._standard_grid(rows, spread)
        log_prior = np.log(step) - (places**2 + LOG_TWO_PI) / 2
        return spread.mean + spread.spread * places, log_prior

    def _standard_grid(
        self, rows: slice, spread: Spread
    ) -> tuple[FloatArray, FloatArray]:
        """Return predictors less their mean over their spread, shape (effects, points),
        and the distance of points, shape (effects, 1).
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
        rate = law.shape / law.mean
        lower, width = _size_ranges(noisy, variance, law.shape, rate)
        sizes, log_mass = _gamma_masses(lower, width, law.shape, rate)
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

    def _of_squares(self, rows: slice, block: "_Block", common: Common) -> FloatArray:
        """Return what a block adds to the law of the sum of squares given its noisy
        numbers: mean, variance, size, variance of sizes and their covariance.
        """
        if isinstance(block, _SharedBlock):
            return block.squares()
        weights = np.exp(block.log_weights - block.log_evidence()[:, None])
        sizes = block.sizes
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
    noisy: FloatArray, variance: FloatArray | float, shape: float, rate: float
) -> tuple[FloatArray, FloatArray]:
    """Return where cells of sizes begin, and how wide each is, shape (groups,): about
    the mode of a gamma law times a normal density.
    """
    bent = (shape - 1) * variance
    tilted = noisy - variance * rate
    inner = np.sqrt(np.maximum(tilted**2 + 4 * bent, 0.0))
    mode = np.maximum((tilted + inner) / 2, 0.0)
    curved = max(shape - 1, 0.0) / np.maximum(mode, LEAST) ** 2
    deviation = 1 / np.sqrt(1 / variance + curved)
    loud = np.sqrt(variance)
    # where the mode is near 0 the tail is exponential
    decay = variance / np.maximum(-tilted, loud / GRID.width)
    tail = np.minimum(GRID.width * loud, GRID.tail * decay)
    above = np.maximum(GRID.width * deviation, np.where(tilted < 0, tail, 0.0))
    lower = np.maximum(mode - GRID.width * deviation, 0.0)
    return lower, (mode + above - lower) / GRID.n_sizes


def _variance_of_squares(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Return the variance of the square of a normal number."""
    return np.asarray(2 * variance**2 + 4 * mean**2 * variance)


def _gamma_masses(
    lower: FloatArray, width: FloatArray, shape: float, rate: float
) -> tuple[FloatArray, FloatArray]:
    """Return the middles of cells of sizes and the log masses that a gamma law gives
    them, shape (groups, sizes) each.
    """
    cells = np.arange(GRID.n_sizes) + 0.5
    sizes = lower[:, None] + width[:, None] * cells
    log_mass = (shape - 1) * np.log(sizes) - rate * sizes
    log_mass += shape * np.log(rate) - gammaln(shape)
    log_mass += np.log(width)[:, None]
    # the density may be infinite at 0, its mass is not
    at_zero = lower == 0
    mass = gammainc(shape, rate * width[at_zero])
    log_mass[at_zero, 0] = np.log(np.maximum(mass, np.finfo(float).tiny))
    return sizes, log_mass


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
