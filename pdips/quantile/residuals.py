"""Residuals about a median line, counted on public bins: what ``kng-residual`` asks
once it has a line, and what it makes of the counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import Scale, in_units
from pdips.data.table import Table
from pdips.margins.consistency import simplex_projection
from pdips.margins.intervals import LEAST, IntervalColumn
from pdips.privacy.curator import Curator
from pdips.privacy.noise import discrete_laplace_variance
from pdips.privacy.plan import Step
from pdips.quantile.gradient import LineRegression, RegressionRecords, once
from pdips.quantile.table_questions import ColumnTask

# Of a histogram, in units of the scale of its noise: about three standard deviations
RECORDS_PER_BIN = 4
FEWEST_BINS = 8
# A run of a column's own intervals needs at most their average count divided by this
OF_MEAN = 2
# Deviations of noise above which a run of bins on average, and a bin by itself, hold
# records
EACH = 1.2
SURE = 8
# Instruments reach their bounds this many standard deviations from the middle
KAPPA = 0.3
# Of a predictor's variance, so that a covariance has an inverse
RIDGE = 1e-4


@dataclass(frozen=True, kw_only=True)
class MedianLine:
    """The line of a column that residuals are counted about (``is_centre``), or that
    only ranks, or is left out.

    ``frame`` takes its coefficients to those in predictors over [-1, 1]^p. The counts
    have ``share`` of their own price: above 1 where the line leaves some of its.
    """

    regression: LineRegression
    coefficients: FloatArray
    frame: FloatArray
    is_centre: bool
    only_ranks: bool
    share: Fraction = Fraction(1)
    is_chosen: bool = False

    @property
    def about(self) -> FloatArray:
        """What residuals are counted about, in the regression's own predictors."""
        return self.coefficients if self.is_centre else np.zeros(len(self.frame))

    @property
    def centre(self) -> FloatArray:
        """The same, in predictors over [-1, 1]^p."""
        return self.frame @ self.about

    @property
    def ranking(self) -> FloatArray:
        """The line that ranks records, in predictors over [-1, 1]^p: flat if none was
        chosen.
        """
        if not self.is_chosen:
            return np.zeros(len(self.frame))
        return self.frame @ self.coefficients


def residual_weights(
    task: ColumnTask, line: MedianLine, edges: FloatArray, step: Step
) -> FloatArray:
    """Count residuals on public bins, and return the weights of these."""

    def counts(table: Table) -> IntArray:
        residuals = line.regression.read(table).residuals(line.about)
        return np.bincount(bins_of(residuals, edges), minlength=len(edges) - 1)

    noisy = task.ask(step, counts, share=line.share)
    return histogram_weights(noisy, step.scale / line.share)


def intervals(
    task: ColumnTask,
    own: IntervalColumn,
    steps: Sequence[Step],
    share: Fraction,
    curator: Curator,
) -> tuple[FloatArray, FloatArray]:
    """Count a column by itself, in layers; return the edges of its cells on its scale,
    and their shares.

    What lies beyond the intervals of the first layer that stand out is moved to the
    nearest of them: far ones of noise would move the mean.
    """
    edges = Scale(task.column).there(own.fine.edges)
    cells = once(lambda table: bins_of(task.regression.read(table).outcome, edges))

    def ask(layer: int, asked: BoolArray) -> IntArray:
        node = own.nodes[layer]

        def counts(table: Table) -> IntArray:
            return np.bincount(node[cells(table)], minlength=len(asked))

        return task.ask(steps[layer], counts, possible=asked, share=share)

    is_whole = task.part.budget.strata == 1 and not task.column.missing
    n_known = curator.n_records if is_whole and curator.n_public else None
    priced = [step.enlarged(share=share) for step in steps]
    noisy = own.measure(curator, priced, ask)
    law = own.law(noisy, priced, n_known)
    deviation = priced[0].standard_deviation
    usual = max(float(noisy[0].mean()), 0.0) / OF_MEAN
    kept = standing_out(noisy[0], deviation, min(EACH * deviation, usual))
    if not kept.any():
        return edges, np.ones(len(law))
    law += LEAST / len(law)
    return edges, moved_to_nearest(law, own.nodes[0], np.flatnonzero(kept))


def moved_to_nearest(law: FloatArray, node: IntArray, kept: IntArray) -> FloatArray:
    """Return the shares of cells once those of nodes that aren't kept have gone to the
    nearest that are.
    """
    held = np.bincount(node, law)
    between = (kept[1:] + kept[:-1]) / 2
    nearest = kept[np.searchsorted(between, np.arange(len(held)))]
    received = np.bincount(nearest, held, minlength=len(held))
    return law * (received / held)[node]


def bins_of(values: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bin of each value, the nearest one for those outside."""
    bins = np.searchsorted(edges, values, side="right") - 1
    return np.clip(bins, 0, len(edges) - 2)


def few(task: ColumnTask, histogram: Step, most: int) -> int:
    """Return a number of bins that hold more than noise."""
    borne = int(task.n_records / (RECORDS_PER_BIN * histogram.scale))
    return min(max(borne, FEWEST_BINS), most)


def instrumented(
    regression: LineRegression, task: ColumnTask
) -> tuple[LineRegression, FloatArray]:
    """Return a regression on predictors that are centred and uncorrelated in the pilot
    records, and the way back.
    """
    p = task.box.n_predictors
    pilot = task.box.matrix(task.pilot)
    middle = np.median(pilot, axis=0) if len(pilot) else np.zeros(p)
    covariance = np.cov(pilot.T).reshape(p, p) if len(pilot) > 1 else np.eye(p)
    root = np.linalg.cholesky(covariance + RIDGE * np.eye(p))
    whiten = np.tril(np.linalg.inv(root))
    frame = np.eye(1 + p)
    frame[1:, 1:] = whiten.T
    frame[0, 1:] = -whiten @ middle

    def read(table: Table) -> RegressionRecords:
        records = regression.read(table)
        centred = rotated(records.predictors - middle, whiten)
        instruments = in_units(centred / KAPPA)
        return replace(records, predictors=centred, instruments=instruments)

    return replace(regression, read=once(read), frame=frame), frame


def rotated(values: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return ``values @ matrix.T``, each row by itself: by BLAS a row's last bits
    depend on how many rows there are.
    """
    products = np.zeros(values.shape)
    for row, weights in enumerate(matrix):
        for column in np.flatnonzero(weights):
            products[:, row] += weights[column] * values[:, column]
    return products


def histogram_weights(noisy: IntArray, scale: Fraction) -> FloatArray:
    """Return weights of bins: the run of bins that holds more than noise, and single
    ones far above it, nonnegative, adding up to what they held.
    """
    deviation = math.sqrt(discrete_laplace_variance(scale))
    kept = standing_out(noisy, deviation, EACH * deviation)
    if not kept.any():
        return np.ones(len(noisy))
    weights = np.zeros(len(noisy))
    inside = noisy[kept].astype(np.float64)
    weights[kept] = simplex_projection(inside, np.array([max(inside.sum(), 1.0)]))
    return weights


def standing_out(
    noisy: FloatArray | IntArray, deviation: float, least: float
) -> BoolArray:
    """Say which bins hold records: a run that holds ``least`` a bin, and single ones
    far above their noise.
    """
    # the run whose sum beyond ``least`` a bin is largest
    sums = np.concatenate([[0.0], np.cumsum(noisy - least)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    start = int(np.argmin(sums[: end + 1]))
    kept = noisy > SURE * deviation
    kept[start:end] = True
    return kept
