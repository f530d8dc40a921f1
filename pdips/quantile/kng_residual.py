"""kng-residual: a median regression by the K-norm gradient mechanism, and a noisy histogram of its residuals."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import Scale, in_units
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.loss import Number, Spend, choice, exact
from pdips.privacy.noise import discrete_laplace_variance
from pdips.quantile.choosing import Chooser
from pdips.quantile.column_plan import SMALLEST_EPSILON, ColumnTask
from pdips.quantile.column_synthesis import ColumnSynthesis
from pdips.quantile.conditional import Draw, ResidualDraw
from pdips.quantile.gradient import RegressionRecords
from pdips.quantile.line_search import Fitter, Spread

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
        """Check the settings that need no schema."""
        super().__post_init__()
        if not 0 < exact(self.line_share, "line_share") < 1:
            raise InputError(f"line_share must be above 0 and below 1, got {self.line_share}")
        choice(self.continuers, ("growth", "line"), "continuers")
        if isinstance(self.bins, bool) or not 2 <= self.bins <= 1_000:
            raise InputError(f"bins must be a whole number from 2 to 1,000, got {self.bins}")

    @property
    def numbers_from(self) -> str:
        """What the statement says numeric columns are drawn from."""
        return COUNTS

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: one a column."""
        items, columns, share = super().spends(schema), self.columns(schema), exact(self.line_share, "line_share")
        for name in columns.numeric:
            left = columns.least(name) * (1 - share) if columns.n_predictors(name) else columns.least(name)
            if left / schema.records.max_per_person < SMALLEST_EPSILON:
                raise InputError(
                    f"line_share leaves the histogram of column {name!r} less than 1e-9 for each record: take a larger "
                    "epsilon, or a line_share further below 1"
                )
        return items

    def fit_numbers(self, task: ColumnTask, chooser: Chooser) -> Draw:
        """Choose the median line, then count residuals."""
        records, frame = task.records(), np.eye(1 + task.box.n_predictors)
        share = exact(self.line_share, "line_share")
        line, epsilon = records.start(), task.epsilon
        if task.unchanged is not None and self.continuers == "growth":
            line, edges = task.unchanged, residual_edges(records, few(task, 8, self.bins // 2))
        elif task.box.n_predictors:
            records, frame = instrumented(records, task)
            fitter = Fitter(
                neighbours=task.neighbours, cap=task.cap, n_intercepts=self.n_candidates, slack=1.0, at_once=1
            )
            line = fitter.search(records, Fraction(1, 2), epsilon * share, chooser)
            epsilon *= 1 - share
            edges = residual_edges(records, self.bins)
        elif task.column.is_binned:
            edges = Scale(task.column).there(task.column.edges) - line[0]
        elif task.column.scale == "log":
            edges = np.linspace(0, records.span, few(task, 6, self.bins) + 1)
        else:
            edges = residual_edges(records, self.bins, upwards=True)
        place = np.clip(np.searchsorted(edges, records.residuals(line), side="right") - 1, 0, len(edges) - 2)
        counts = np.bincount(place, minlength=len(edges) - 1)
        scale = task.scale(epsilon)
        weights = histogram_weights(chooser.count(counts, scale), scale)
        return ResidualDraw(task.column, task.box, frame @ line, edges, weights)


def few(task: ColumnTask, least: int, most: int) -> int:
    """Return a number of bins that hold more than noise, where the number of records is public."""
    if task.n_public is None:
        return most
    return min(max(int(task.n_public / (RECORDS_PER_BIN * task.scale(task.epsilon))), least), most)


def instrumented(records: RegressionRecords, task: ColumnTask) -> tuple[RegressionRecords, FloatArray]:
    """Return records with predictors that are centred and uncorrelated in the pilot records, and the way back."""
    pilot = task.box.matrix(task.pilot)
    p = task.box.n_predictors
    middle = np.median(pilot, axis=0) if len(pilot) else np.zeros(p)
    spread = np.cov(pilot.T).reshape(p, p) if len(pilot) > 1 else np.eye(p)
    whiten = np.tril(np.linalg.inv(np.linalg.cholesky(spread + 1e-4 * np.eye(p))))
    frame = np.eye(1 + p)
    frame[1:, 1:] = whiten.T
    frame[0, 1:] = -whiten @ middle
    centred = rotated(records.predictors - middle, whiten)
    changed = RegressionRecords(
        outcome=records.outcome,
        predictors=centred,
        instruments=in_units(centred / KAPPA),
        lower=records.lower,
        upper=records.upper,
        frame=frame,
    )
    return changed, frame


def rotated(values: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return ``values @ matrix.T``, each row by itself: by BLAS a row's last bits depend on how many rows there are."""
    found = np.zeros(values.shape)
    for place, weights in enumerate(matrix):
        for column in np.flatnonzero(weights):
            found[:, place] += weights[column] * values[:, column]
    return found


def residual_edges(records: RegressionRecords, n_each_side: int, *, upwards: bool = False) -> FloatArray:
    """Return public bins of residuals, narrow about 0 and wider and wider away from it."""
    spread = Spread.of(records.span, records.span * 5e-4, n_each_side, records.step, upwards=upwards)
    return spread.offsets


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
    total = max(inside.sum(), 1.0)
    ordered = np.sort(inside)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(inside) + 1)
    cut = excess[np.flatnonzero(ordered > excess)[-1]]
    weights[start:end] = np.maximum(inside - cut, 0)
    return weights
