"""kng-residual: a median regression by the K-norm gradient mechanism, and a noisy histogram of its residuals."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import Scale, in_units
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.histogram.urns import check_n_records
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run, statement
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, choice, exact
from pdips.privacy.noise import RandomBits, discrete_laplace_variance
from pdips.privacy.replay import ExactLaw as Law
from pdips.quantile import sequential
from pdips.quantile.choosing import Chooser
from pdips.quantile.column_plan import ColumnPlan, Task
from pdips.quantile.conditional import Draw, ResidualDraw
from pdips.quantile.line_search import Fitter, Records, check_n_candidates
from pdips.quantile.sequential import SMALLEST_EPSILON, ByColumn
from pdips.quantile.spreads import Spread
from pdips.release.release import Release, RunRecord

RECORDS_PER_BIN = 4
"""Of a panel's histograms, in units of the scale of their noise: about three standard deviations."""

Continuers = Literal["growth", "line"]

KAPPA = 0.3
"""Instruments reach their bounds this many standard deviations from the middle."""


@dataclass(frozen=True, kw_only=True)
class KNGResidual:
    """Column by column: a line chosen by the K-norm gradient mechanism, and a noisy histogram of what is above and
    below.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets, all drawn from the same released statistics.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public, and all sets have it.
    order : tuple of str, optional
        The columns that aren't public, in the order in which they are synthesized; the schema's if left out.
    predictors : mapping or tuple of str, optional
        For a column the columns before it that it depends on, ``{"pay": ("size", "age")}`` or ``("pay=size+age",)``;
        all before it where it isn't named.
    caps : mapping or tuple of str, optional
        A public end of a predictor's range below the schema's upper bound, ``{"size": 500}``: larger values count as
        this when lines are chosen, and only then.
    budget : mapping or tuple of str, optional
        Share of epsilon of each column, ``{"size": 1, "pay": 2}``; they are scaled to add up to 1. Left out, columns
        that depend on others have twice the share of those that don't.
    by : tuple of str
        Categorical columns whose combinations are synthesized separately.
    panel : tuple of str, optional
        Two public columns, the first and the last year of a record: in between it has a value in each column of a year,
        and before and after it has none. The new of a year are synthesized by themselves, the others given their value
        of the year before, or the predictors named for the column (see ``docs/panels.md``).
    panel_columns : tuple of str, optional
        What the names of the columns of years start with: ``("emp_",)`` for ``emp_1976``, ``emp_1977``.
    births_share : "parallel", int, float, str or Fraction
        Share of a year's budget for the new ("1/4" in paper 002), the others having the rest; by default each has all
        of it, since no record is both.
    continuers : {"growth", "line"}
        In a panel, whether last year's value itself is the line where it is the one predictor, and all of the budget
        pays for the histogram, of changes; or the line is chosen as for other columns.
    line_share : int, float, str or Fraction
        Share of a numeric column's budget that pays for the line, in (0, 1); the histogram has the rest.
    bins : int
        Bins of residuals on each side of the line. A column that depends on no other has the schema's bins, if it has
        any.
    n_records : int, optional
        Number of synthetic records, from public knowledge; add-remove needs it.
    n_candidates : int
        Intercepts that a line is chosen from, at most; few make exact laws of tiny tables short.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    A numeric column costs a line, by the K-norm gradient mechanism with instruments that are centred and scaled by what
    is released already, and a histogram of residuals on public bins with exact discrete Laplace noise; a column with
    levels a noisy histogram given columns before it. All draws are exact. Proof: ``docs/proofs/kng.md``.
    """

    name: ClassVar[str] = "kng-residual"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    order: tuple[str, ...] | None = None
    predictors: ByColumn | None = None
    caps: ByColumn | None = None
    budget: ByColumn | None = None
    by: tuple[str, ...] = ()
    panel: tuple[str, ...] | None = None
    panel_columns: tuple[str, ...] | None = None
    births_share: Number = "parallel"
    continuers: Continuers = "growth"
    line_share: Number = "1/2"
    bins: int = 48
    n_records: int | None = None
    n_candidates: int = 2_000

    def __post_init__(self) -> None:
        check_settings(self)
        check_n_records(self.n_records, self.neighbours)
        sequential.check_by_column(self)
        check_n_candidates(self.n_candidates)
        if not 0 < exact(self.line_share, "line_share") < 1:
            raise InputError(f"line_share must be above 0 and below 1, got {self.line_share}")
        choice(self.continuers, ("growth", "line"), "continuers")
        if isinstance(self.bins, bool) or not 2 <= self.bins <= 1_000:
            raise InputError(f"bins must be a whole number from 2 to 1,000, got {self.bins}")

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        law = sequential.words(
            schema,
            "counts of residuals on public bins with exact discrete Laplace noise, about a line that the K-norm "
            "gradient mechanism chose among public candidates, with exactly the probabilities of its formula, or, "
            "where there is nothing to predict them by, about a public line",
        )
        law += sequential.PANEL if self.panel else ""
        epsilon = exact(self.epsilon, "epsilon")
        return PrivacyLoss(
            epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=statement(self, schema, law)
        )

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: one a column."""
        columns, share = self.columns(schema), exact(self.line_share, "line_share")
        items = sequential.spends(columns)
        for name in (name for name in columns.order if not schema.columns[name].is_categorical):
            left = columns.least(name) * (1 - share) if columns.n_predictors(name) else columns.least(name)
            if left / schema.records.max_per_person < SMALLEST_EPSILON:
                raise InputError(
                    f"line_share leaves the histogram of column {name!r} less than 1e-9 for each record: take a larger "
                    "epsilon, or a line_share further below 1"
                )
        return items

    def columns(self, schema: Schema) -> ColumnPlan:
        """Return what is done to tables of a schema."""
        return sequential.column_plan(
            schema,
            epsilon=self.epsilon,
            neighbours=self.neighbours,
            order=self.order,
            predictors=self.predictors,
            caps=self.caps,
            budget=self.budget,
            by=self.by,
            n_records=self.n_records,
            panel=self.panel,
            panel_columns=self.panel_columns,
            births_share=self.births_share,
        )

    def fit_numbers(self, task: Task, chooser: Chooser) -> Draw:
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
        weights = settle(chooser.count(counts, scale), scale)
        return ResidualDraw(task.column, task.box, frame @ line, edges, weights)

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the choices and noisy counts of independent releases, shape (runs, numbers), for audits."""
        return sequential.observe(self.columns(table.schema), table, self.fit_numbers, n_runs, bits)

    def law(self, table: Table) -> Law:
        """Return the exact law of choices and noisy counts, for audits of tables with one column to synthesize."""
        return sequential.law(self.columns(table.schema), table, self.fit_numbers)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return sequential.settings(self)

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger, optional
            Charged before any random bit is drawn.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            What may be published, and what stays inside.

        Raises
        ------
        InputError
            If a setting doesn't fit the schema, or the ledger belongs to another table.
        RefusedError
            If the ledger's total would be overspent.
        """
        columns, n = self.columns(table.schema), self.n_records or table.n_records
        sequential.check_size(table)
        sequential.check_years(columns, table)

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            return sequential.release(columns, table, self.fit_numbers, self.n_sets, n, bits, clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)


def few(task: Task, least: int, most: int) -> int:
    """Return a number of bins that hold more than noise, where the number of records is public."""
    if task.n_public is None:
        return most
    return min(max(int(task.n_public / (RECORDS_PER_BIN * task.scale(task.epsilon))), least), most)


def instrumented(records: Records, task: Task) -> tuple[Records, FloatArray]:
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
    changed = Records(
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


def residual_edges(records: Records, n_each_side: int, *, upwards: bool = False) -> FloatArray:
    """Return public bins of residuals, narrow about 0 and wider and wider away from it."""
    spread = Spread.of(records.span, records.span * 5e-4, n_each_side, records.step, upwards=upwards)
    return spread.offsets


def settle(noisy: IntArray, scale: Fraction) -> FloatArray:
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
