"""kng-residual: a median regression by the K-norm gradient mechanism, and a noisy histogram of its residuals."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, get_args

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import Scale, in_units
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins.consistency import simplex_projection
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, choice, exact
from pdips.privacy.noise import discrete_laplace_variance
from pdips.privacy.plan import Step
from pdips.quantile.column_plan import SMALLEST_EPSILON, NumericPart
from pdips.quantile.column_synthesis import ColumnSynthesis, ColumnTask, asked
from pdips.quantile.conditional import Draw, residual_draw
from pdips.quantile.gradient import LineRegression, RegressionRecords, once
from pdips.quantile.line_search import Fitter, spread

MEDIAN = Fraction(1, 2)

RECORDS_PER_BIN = 4
"""Of a panel's histograms, in units of the scale of their noise: about three standard deviations."""

Continuers = Literal["growth", "line"]

KAPPA = 0.3
"""Instruments reach their bounds this many standard deviations from the middle."""

COUNTS = (
    "counts of residuals on public bins with exact discrete Laplace noise, about a line that the K-norm gradient "
    "mechanism chose among public candidates, with exactly the probabilities of its formula, or, where there is "
    "nothing to predict them by, about a public line"
)
"""What the statement says numeric columns are drawn from."""


@dataclass(frozen=True, kw_only=True)
class KNGResidual(ColumnSynthesis):
    """Column by column: a line chosen by the K-norm gradient mechanism, and a noisy histogram of what is above and
    below.

    Its other settings are those of :class:`pdips.quantile.column_synthesis.ColumnSynthesis`: epsilon, sets, neighbours,
    and what is said by column.

    Parameters
    ----------
    continuers : {"growth", "line"}
        In a panel, whether last year's value itself is the line where it is the one predictor, and all of the budget
        pays for the histogram, of changes; or the line is chosen as for other columns.
    line_share : int, float, str or Fraction
        Share of a numeric column's budget that pays for the line, in (0, 1); the histogram has the rest.
    bins : int
        Bins of residuals on each side of the line. A column that depends on no other has the schema's bins, if it has
        any.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    A numeric column costs a line, by the K-norm gradient mechanism with instruments that are centred and scaled by what
    is released already, and a histogram of residuals on public bins with exact discrete Laplace noise; a column with
    levels a noisy histogram given columns before it. All draws are exact. Proof: ``docs/proofs/kng.md``.

    Examples
    --------
    >>> schema = Schema(columns={"wage": Column(lower=0, upper=1000, bins=100)})
    >>> table = Table(pd.DataFrame({"wage": np.linspace(100, 900, 60)}), schema)
    >>> release, record = KNGResidual(epsilon=1, bins=8).release(table)
    >>> len(release.sets[0])
    60
    """

    name: ClassVar[str] = "kng-residual"

    continuers: Continuers = "growth"
    line_share: Number = "1/2"
    bins: int = 48

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < exact(self.line_share, "line_share") < 1:
            raise InputError(f"line_share must be above 0 and below 1, got {self.line_share}")
        choice(self.continuers, get_args(Continuers), "continuers")
        if isinstance(self.bins, bool) or not 2 <= self.bins <= 1_000:
            raise InputError(f"bins must be a whole number from 2 to 1,000, got {self.bins}")

    @property
    def numbers_from(self) -> str:
        """What the statement says numeric columns are drawn from."""
        return COUNTS

    def steps(self, part: NumericPart) -> tuple[Step, ...]:
        """Return what is asked of each stratum: a line, where there is anything to predict by, and a histogram."""
        share = exact(self.line_share, "line_share") if self.reads_pilot(part) else Fraction(0)
        if part.budget.per_record * (1 - share) < SMALLEST_EPSILON:
            raise InputError(
                f"line_share leaves the histogram of {part.budget.item} less than 1e-9 for each record: take a larger "
                "epsilon, or a line_share further below 1"
            )
        epsilon, p = part.budget.epsilon, part.box.n_predictors
        line = self.fitter(part).searches(part.budget, "median line", MEDIAN, p, epsilon * share) if share else ()
        name = "residuals" if p else "histogram"
        return *line, part.budget.histogram(name, epsilon * (1 - share), f"{name} of {part.budget.item}")

    def reads_pilot(self, part: NumericPart) -> bool:
        """Whether a line is chosen: its instruments are centred by records that are drawn on the way."""
        return part.box.n_predictors > 0 and (part.unchanged is None or self.continuers == "line")

    def fitter(self, part: NumericPart) -> Fitter:
        """Return how the line of a column is chosen."""
        return Fitter(neighbours=part.budget.in_stratum, n_intercepts=self.n_candidates, slack=1.0, at_once=1)

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Choose the median line, then count residuals on public bins, narrow about 0 and wider away from it."""
        regression, frame, part, bins = task.regression, np.eye(1 + task.box.n_predictors), task.part, self.bins
        *steps, histogram = self.steps(part)
        line, upwards, given = regression.start(), False, np.zeros(0)
        if self.reads_pilot(part):
            regression, frame = instrumented(regression, task)
            line = self.fitter(part).search(regression, MEDIAN, steps, curator)
        elif part.unchanged is not None:
            line, bins = part.unchanged, few(task, histogram, 8, self.bins // 2)
        elif task.column.is_binned:
            given = Scale(task.column).there(task.column.edges) - line[0]
        elif task.column.scale == "log":
            given = np.linspace(0, regression.span, few(task, histogram, 6, self.bins) + 1)
        else:
            upwards = True
        usual = spread(regression.span, regression.span * 5e-4, bins, regression.step, upwards=upwards)
        edges = given if len(given) else usual

        def counts(table: Table) -> IntArray:
            residuals = regression.read(table).residuals(line)
            place = np.clip(np.searchsorted(edges, residuals, side="right") - 1, 0, len(edges) - 2)
            return np.bincount(place, minlength=len(edges) - 1)

        noisy = asked(curator, histogram, counts, steers=task.steers)
        return residual_draw(task.column, task.box, frame @ line, edges, histogram_weights(noisy, histogram.scale))


def few(task: ColumnTask, histogram: Step, least: int, most: int) -> int:
    """Return a number of bins that hold more than noise, where the number of records is public."""
    if task.n_public is None:
        return most
    return min(max(int(task.n_public / (RECORDS_PER_BIN * histogram.scale)), least), most)


def instrumented(regression: LineRegression, task: ColumnTask) -> tuple[LineRegression, FloatArray]:
    """Return a regression on predictors that are centred and uncorrelated in the pilot records, and the way back."""
    pilot, p = task.box.matrix(task.pilot), task.box.n_predictors
    middle = np.median(pilot, axis=0) if len(pilot) else np.zeros(p)
    covariance = np.cov(pilot.T).reshape(p, p) if len(pilot) > 1 else np.eye(p)
    whiten = np.tril(np.linalg.inv(np.linalg.cholesky(covariance + 1e-4 * np.eye(p))))
    frame = np.eye(1 + p)
    frame[1:, 1:] = whiten.T
    frame[0, 1:] = -whiten @ middle

    def read(table: Table) -> RegressionRecords:
        records = regression.read(table)
        centred = rotated(records.predictors - middle, whiten)
        return replace(records, predictors=centred, instruments=in_units(centred / KAPPA))

    return replace(regression, read=once(read), frame=frame), frame


def rotated(values: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return ``values @ matrix.T``, each row by itself: by BLAS a row's last bits depend on how many rows there are."""
    found = np.zeros(values.shape)
    for place, weights in enumerate(matrix):
        for column in np.flatnonzero(weights):
            found[:, place] += weights[column] * values[:, column]
    return found


def histogram_weights(noisy: IntArray, scale: Fraction) -> FloatArray:
    """Return weights of bins: the run of bins that holds more than noise, nonnegative, adding up to what it held."""
    level = 1.2 * np.sqrt(discrete_laplace_variance(scale))
    sums = np.concatenate([[0.0], np.cumsum(noisy - level)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    start = int(np.argmin(sums[: end + 1]))
    weights = np.zeros(len(noisy))
    inside = noisy[start:end].astype(np.float64)
    if not len(inside):
        return np.ones(len(noisy))
    weights[start:end] = simplex_projection(inside, np.array([max(inside.sum(), 1.0)]))
    return weights
