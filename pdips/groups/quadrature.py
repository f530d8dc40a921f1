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
from scipy.special import gammainc, gammaincinv, gammaln

from pdips.arrays import FloatArray, IntArray
from pdips.groups.blocks import ClosedBlock, GridBlock, SharedBlock
from pdips.groups.families import GroupOutcome, Normal, outcome_of
from pdips.groups.hierarchy import LOG_TWO_PI, Spread
from pdips.groups.noisy_groups import NoisyGroups
from pdips.groups.slopes import CellLaw, CellNumbers, LinearBlock


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
    # passes in which the sizes of means are looked for, of several effects
    cell_passes: int = 3

    @property
    def step(self) -> float:
        """The distance of predictors, in deviations."""
        return 2 * self.width / (self.n_predictors - 1)


GRID = GroupGrid()
LEAST = 1e-12
# Of a law of sizes, on which the moments of their logs are worked out
QUANTILES = 64
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

    def log_moments(self, n_within: int) -> tuple[float, float]:
        """Return mean and deviation of the log of one more than what groups of an
        effect expect together.
        """
        middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
        scale = self.mean * n_within / self.shape
        return _moments_of_logs(gammaincinv(self.shape, middles) * scale)


@dataclass(frozen=True)
class Common:
    """What all groups have in common."""

    spread: Spread
    sizes: SizeLaw | None  # None where sizes are public


_Block = ClosedBlock | GridBlock | SharedBlock
_AnyBlock = _Block | LinearBlock


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
        # of means of groups that have several effects in common, the expected squares
        self.squared_means = np.zeros((noisy.n_effects, noisy.n_within))
        # where sizes are public, of the logs of those of effects
        public = np.maximum(noisy.sizes, 0.0).reshape(-1, noisy.n_within)
        self.log_moments = _moments_of_logs(public.sum(axis=1))

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
        if common.spread.slopes is not None:
            self._locate_cells(common)
            return
        here = common.spread
        far = GRID.first * float(np.sqrt(here.variance))
        # what a group's own numbers say doesn't depend on what goes with its size
        wide = replace(here, spread=far, relation=0.0)
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

    def _locate_cells(self, common: Common) -> None:
        """Look for how large the means of groups with several effects are, by which
        unknown sizes make their sums vary.
        """
        law = self._cell_law(common)
        self.squared_means[:] = law.squared_means
        for _ in range(GRID.cell_passes):
            for rows, block in self._linear_blocks(common):
                self.squared_means[rows] = block.squared_means()

    def _part(self, rows: IntArray) -> "GroupQuadrature":
        """Return the sums over some effects."""
        part = GroupQuadrature(self.noisy.some(rows))
        part.shares = self.shares
        part.log_moments = self.log_moments
        part.places = self.places[rows]
        part.precisions = self.precisions[rows]
        part.squared_means = self.squared_means[rows]
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

    def log_evidences(self, common: Common) -> FloatArray:
        """Return the log probability of each effect's noisy numbers, shape
        (effects,).
        """
        parts = [block.log_evidence() for _, block in self._blocks(common)]
        return np.concatenate(parts)

    def moments(self, common: Common) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the posterior mean and deviation of each effect's predictor, without
        offsets, and the mean of the number of records of each group.
        """
        means = np.empty(self.noisy.n_effects)
        variances = np.empty(self.noisy.n_effects)
        sizes = np.empty(self.noisy.n_groups)
        for rows, block in self._scalar_blocks(common):
            means[rows], variances[rows], expected = block.moments()
            sizes[self._groups(rows)] = expected
        return means, np.sqrt(variances), sizes

    def joint_moments(
        self, common: Common
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the posterior means, shape (groups, effects), and covariances of
        standard normal effects, of which each group has several, and the mean of the
        number of records in each cell.
        """
        means = []
        covariances = []
        sizes = []
        for _, block in self._linear_blocks(common):
            some, their_covariances = block.effects()
            means.append(some)
            covariances.append(their_covariances)
            sizes.append(block.sizes())
        return np.concatenate(means), np.concatenate(covariances), np.concatenate(sizes)

    def sample(
        self, common: Common, count: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Return draws of predictors without offsets, shape (draws, effects), and of
        sizes, shape (draws, groups). Where groups have several effects, draws of these
        as standard normal ones, shape (draws, groups with them, effects).
        """
        shape: tuple[int, ...] = (count, self.noisy.n_effects)
        slopes = common.spread.slopes
        if slopes is not None:
            shape = (*shape, len(slopes.means))
        predictors = np.empty(shape)
        sizes = np.empty((count, self.noisy.n_groups))
        for rows, block in self._blocks(common):
            predictors[:, rows], drawn = block.sample(count, rng)
            sizes[:, self._groups(rows)] = drawn
        return predictors, sizes

    def _groups(self, rows: slice) -> slice:
        """Return the groups of effects that follow each other."""
        n_within = self.noisy.n_within
        return slice(rows.start * n_within, rows.stop * n_within)

    def _rows(self) -> Iterator[slice]:
        length = max(GRID.block // self.noisy.n_within, 1)
        for first in range(0, self.noisy.n_effects, length):
            yield slice(first, min(first + length, self.noisy.n_effects))

    def _blocks(self, common: Common) -> "Iterator[tuple[slice, _AnyBlock]]":
        if common.spread.slopes is not None:
            return self._linear_blocks(common)
        return self._scalar_blocks(common)

    def _scalar_blocks(self, common: Common) -> "Iterator[tuple[slice, _Block]]":
        """Blocks of groups with one effect each."""
        make: Callable[[slice, Common], _Block] = self._grid_block
        if self.is_closed:
            make = self._closed_block
        elif self.noisy.n_within > 1:
            make = self._shared_block
        for rows in self._rows():
            yield rows, make(rows, common)

    def _linear_blocks(self, common: Common) -> Iterator[tuple[slice, LinearBlock]]:
        """Blocks of groups with several effects each."""
        law = self._cell_law(common)
        for rows in self._rows():
            expected, left, sizes, log_mass = self._known_sizes(rows, common)
            shifts = self._shifts(_totals(expected), common)
            cells = CellNumbers(
                sums=self._of_groups(self.noisy.sums, rows)[..., 0],
                sum_variance=self.noisy.sum_variance,
                sizes=sizes[..., 0],
                left=left[..., 0],
                expected=expected[..., 0],
                log_mass=log_mass,
                shifts=shifts[:, None] / self._normal(common).half,
            )
            yield rows, LinearBlock.of(cells, law, self.squared_means[rows])

    def _cell_law(self, common: Common) -> CellLaw:
        """Return how outcomes follow from several effects, on [-1, 1]."""
        slopes = common.spread.slopes
        if slopes is None:
            raise TypeError("groups have one effect each")
        outcome = self._normal(common)
        offsets = common.spread.mean + common.spread.offsets - outcome.middle
        within = (outcome.deviation / outcome.half) ** 2
        return CellLaw(offsets / outcome.half, slopes.loadings / outcome.half, within)

    def _closed_block(self, rows: slice, common: Common) -> ClosedBlock:
        """Return a block of an outcome that is normal with the identity link, given
        whose size the predictor has a normal posterior.
        """
        outcome = self._normal(common)
        half = outcome.half
        mean, prior, within = self._scaled(common)
        sizes, log_sizes = self._sizes_of(rows, common)
        means = mean + self._shifts(sizes, common) / half
        off = self.noisy.sums[rows, None] - sizes * means
        noise = sizes * within + self.noisy.sum_variance
        variance = sizes**2 * prior + noise
        terms = off**2 / variance + np.log(variance) + LOG_TWO_PI
        gain = prior * sizes / variance
        predicted = means + gain * off
        left = prior * noise / variance
        return ClosedBlock(
            sizes=sizes,
            log_weights=log_sizes - terms / 2,
            predictors=outcome.middle + half * predicted,
            variances=half**2 * left,
        )

    def _grid_block(self, rows: slice, common: Common) -> GridBlock:
        """Return a block of another outcome, whose noisy sum is near normal given size
        and predictor: its skewness is that of a sum of records with loud noise on it.
        """
        sizes, log_sizes = self._sizes_of(rows, common)
        shifts = self._shifts(sizes, common)
        predictors, log_prior = self._predictors_of(rows, common, shifts, log_sizes)
        mean, within = self.outcome(common).moments(predictors)
        off = self.noisy.sums[rows, None, None] - sizes[:, :, None] * mean[:, None]
        variance = sizes[:, :, None] * within[:, None]
        variance += self.noisy.sum_variance
        terms = off**2
        terms /= variance
        terms += np.log(variance)
        terms *= -0.5
        terms += (log_sizes - LOG_TWO_PI / 2)[:, :, None]
        terms += log_prior
        return GridBlock(sizes=sizes, log_weights=terms, predictors=predictors)

    def _shared_block(self, rows: slice, common: Common) -> SharedBlock:
        """Return a block of effects that several groups have in common.

        Given what the groups expect and the predictor, size n, noisy size N, sum of
        squares and noisy sum T of a group are near normal. They are conditioned on N,
        and then on T.
        """
        expected, left, size, log_expected = self._known_sizes(rows, common)
        shifts = self._shifts(_totals(expected), common)
        predictors, log_prior = self._predictors_of(rows, common, shifts, log_expected)
        mean, within = self._record_moments(predictors, common)
        # by the noisy sum
        off = self._of_groups(self.noisy.sums, rows) - size * mean
        spread = left * mean**2 + expected * within + self.noisy.sum_variance
        terms = -(off**2 / spread + np.log(spread) + LOG_TWO_PI) / 2
        gain = left * mean / spread
        # of the sum of squares
        square = within + mean**2
        both = 2 * mean * within * expected + square * mean * left
        own = _variance_of_squares(mean, within) * expected + square**2 * left
        log_weights = terms.sum(axis=1) + log_expected[..., None] + log_prior
        return SharedBlock(
            log_weights=log_weights,
            predictors=predictors,
            size_means=size + gain * off,
            size_variances=left - gain * mean * left,
            square_means=square * size + both / spread * off,
            square_variances=own - both**2 / spread,
            covariances=square * left - gain * both,
        )

    def _known_sizes(
        self, rows: slice, common: Common
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return what groups of an effect expect, variance and mean of their sizes
        given the noisy ones, shape (effects, groups of each, expected, 1), and the log
        mass of what they expect, shape (effects, expected).
        """
        expected, variance, log_expected = self._expected_of(rows, common)
        share = variance / np.maximum(variance + self.noisy.size_variance, LEAST)
        off = self._of_groups(self.noisy.sizes, rows) - expected
        return expected, variance * (1 - share), expected + share * off, log_expected

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

    def _shifts(self, sizes: FloatArray, common: Common) -> FloatArray:
        """Return how far the mean of effects lies from that of all groups, by sizes of
        all groups of an effect, shape (effects, sizes), or (effects, 1) where effects
        don't go with sizes.
        """
        relation = common.spread.relation
        if relation == 0:
            return np.zeros((len(sizes), 1))
        middle, deviation = self.log_moments
        if common.sizes is not None:
            middle, deviation = common.sizes.log_moments(self.noisy.n_within)
        return relation / deviation * (_mean_logs(np.maximum(sizes, 0.0)) - middle)

    def _predictors_of(
        self,
        rows: slice,
        common: Common,
        shifts: FloatArray,
        log_sizes: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Return predictors, shape (effects, predictors), and the log of their prior
        mass by size, shape (effects, sizes or 1, predictors).
        """
        spread = common.spread
        weights = np.exp(log_sizes - log_sizes.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        shift = (weights * shifts).sum(axis=1)
        unknown = (weights * (shifts - shift[:, None]) ** 2).sum(axis=1)
        # the prior, sizes summed over, times what the numbers of groups say
        variance = spread.spread**2 + unknown
        told = self.precisions[rows] * variance
        deviation = np.sqrt(variance / (1 + told))
        middle = spread.mean + shift
        centre = middle + (self.places[rows] - middle) * told / (1 + told)
        along = np.linspace(-GRID.width, GRID.width, GRID.n_predictors)
        predictors = centre[:, None] + deviation[:, None] * along
        step = GRID.step * deviation / spread.spread
        off = (predictors[:, None] - spread.mean - shifts[..., None]) / spread.spread
        log_prior = np.log(step)[:, None, None] - (off**2 + LOG_TWO_PI) / 2
        return predictors, log_prior

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

    def _of_squares(
        self, rows: slice, block: "_AnyBlock", common: Common
    ) -> FloatArray:
        """Return what a block adds to the law of the sum of squares given its noisy
        numbers: mean, variance, size, variance of sizes and their covariance.
        """
        if isinstance(block, SharedBlock | LinearBlock):
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
        means = mean + self._shifts(sizes, common) / self._normal(common).half
        noise = self.noisy.sum_variance
        known = np.maximum(sizes, LEAST)
        variance = sizes**2 * prior + sizes * within
        gain = variance / (variance + noise)
        expected = sizes * means
        sums = expected + gain * (self.noisy.sums[rows, None] - expected)
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


def _totals(expected: FloatArray) -> FloatArray:
    """Return how many records all groups of an effect expect, shape (effects,
    expected), of those of each, shape (effects, groups of each, expected, 1).
    """
    return np.asarray(expected.sum(axis=1)[..., 0])


def _moments_of_logs(sizes: FloatArray) -> tuple[float, float]:
    """Return mean and deviation of the logs of one more than sizes."""
    logs = np.log1p(sizes)
    # where all are alike nothing goes with them
    return float(logs.mean()), float(max(logs.std(), np.sqrt(LEAST)))


def _mean_logs(sizes: FloatArray) -> FloatArray:
    """Return the mean log of one more than sizes, over cells of which these are the
    middles, shape (effects, sizes), or at sizes that are known, shape (effects, 1).
    """
    if sizes.shape[1] == 1:
        return np.log1p(sizes)
    half = (sizes[:, 1:2] - sizes[:, :1]) / 2
    above = 1 + sizes + half
    below = np.maximum(1 + sizes - half, 1.0)
    whole = above * np.log(above) - below * np.log(below)
    return np.asarray(whole / (2 * half) - 1)


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
