"""Sanitized statistics as Bowen and Liu (2020) print them, for studies and audits: none
of these forms is private.

What each really loses: ``docs/proofs/modips.md``, section 4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.audit.cases.statistics import (
    counted_pair,
    emptied_cell,
    larger_cell,
    other_sign,
    turned_choice,
)
from pdips.audit.neighbour_pairs import Case, Event, Pair, with_event
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import Split, Variant
from pdips.posterior.columns import record_values
from pdips.privacy.loss import (
    Neighbours,
    Number,
    PrivacyLoss,
    as_float,
    exact,
    positive,
)
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips.release.offers import Offers
from pdips.statistics.logistic import Logistic, Logits, information, newton
from pdips_papers.harness.printed import flaw_of

NOWHERE = np.inf
"""Stands for the mean of a cell that has none, which a release as printed leaves
out.
"""

FINE = 2**16
"""Steps in the scale of Laplace noise, which stands for the paper's in doubles."""

REACH = 9.0
GRID = 20_001
"""Posteriors of one coefficient are drawn on a grid of so many prior standard
deviations to both sides.
"""
STEPS = 200
FREEDOM = 5
"""Metropolis steps and degrees of freedom of the proposals for more coefficients."""


@dataclass(frozen=True, kw_only=True)
class PrintedStatistic:
    """What all forms as printed share: they claim epsilon for one replaced record, and
    guarantee nothing.
    """

    name: ClassVar[str]
    offers: ClassVar[Offers] = Offers(kinds=("none",))
    variants: ClassVar[tuple[Variant, ...]] = ("published",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = 1

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    variant: Variant = "published"

    def __post_init__(self) -> None:
        positive(self.epsilon, "epsilon")

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the loss that the paper claims, of kind "none"."""
        text = f"NO GUARANTEE. As published: {flaw_of(self)}"
        return PrivacyLoss(
            epsilon=exact(self.epsilon, "epsilon"),
            neighbours="replace-one",
            kind="none",
            statement=text,
        )


def laplace(n: int, bits: RandomBits) -> FloatArray:
    """Return Laplace noise of scale 1, shape (n,)."""
    return discrete_laplace(Fraction(FINE), n, bits) / FINE


@dataclass(frozen=True, kw_only=True)
class PrintedMeans(PrintedStatistic):
    """The means of a numeric column in the cells of a column with levels, noise (upper
    - lower) / (n_k epsilon).

    Bowen and Liu (2020), section 4.3.1. The scale reads the confidential number of
    records in the cell, and a cell without records has no mean: no finite loss.
    """

    name: ClassVar[str] = "printed cell means"

    of: str
    by: str

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> FloatArray:
        """Return noisy means in the column's unit, shape (runs, cells); infinite for a
        cell without records.
        """
        means, counts = _means(table, self.of, self.by)
        scale = _range(table.schema, self.of) / (
            np.maximum(counts, 1) * as_float(exact(self.epsilon, "epsilon"))
        )
        noisy = means + scale * laplace(n_runs * len(means), bits).reshape(n_runs, -1)
        return np.where(counts > 0, noisy, NOWHERE)


@dataclass(frozen=True, kw_only=True)
class PrintedCovariance(PrintedStatistic):
    """An entry of the pooled covariance within cells, noise for sensitivity range_x
    range_y (n - 1) / (n (n - K)).

    Bowen and Liu (2020), section 4.3.1, with K levels and divisor n - K. Right on the
    diagonal. Off it a record that changes its cell takes a product away here and brings
    one of the other sign there: nearly twice the sensitivity.
    """

    name: ClassVar[str] = "printed pooled covariance"

    of: tuple[str, str]
    by: str

    def exact(self, table: Table) -> float:
        """Return the entry of a confidential table, in the product of the columns'
        units.
        """
        x, y = (
            _values(table, name) - _means(table, name, self.by)[0][table.codes[self.by]]
            for name in self.of
        )
        return float((x * y).sum() / self._freedom(table))

    def scale(self, table: Table) -> float:
        """Return the printed scale of the noise; n and K are taken as public."""
        n = table.n_records
        ranges = float(np.prod([_range(table.schema, name) for name in self.of]))
        sensitivity = ranges * (n - 1) / (n * self._freedom(table))
        return sensitivity / as_float(exact(self.epsilon, "epsilon"))

    def _freedom(self, table: Table) -> int:
        return max(table.n_records - table.schema.columns[self.by].n_levels, 1)

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> FloatArray:
        """Return the noisy entry, shape (runs, 1)."""
        return self.exact(table) + self.scale(table) * laplace(n_runs, bits)[:, None]


@dataclass(frozen=True, kw_only=True)
class RedrawnCount(PrintedStatistic):
    """The count of the last level of a column, Laplace noise drawn again until the sum
    lies in [0, n].

    Bowen and Liu (2020), section 3 ("truncation"). Drawing again conditions on an event
    whose probability depends on the count: epsilon + log(2 - e^-epsilon) for one count.
    """

    name: ClassVar[str] = "printed truncation"

    of: str

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> FloatArray:
        """Return the noisy count, shape (runs, 1)."""
        last = table.schema.columns[self.of].n_levels - 1
        count = int((table.codes[self.of] == last).sum())
        n = table.n_records
        epsilon = as_float(exact(self.epsilon, "epsilon"))
        counts = np.full(n_runs, count)
        noisy = redrawn(counts, n, lambda size: laplace(size, bits) / epsilon)
        return noisy[:, None]


def redrawn(
    counts: FloatArray | IntArray, n: int, noise: Callable[[int], FloatArray | IntArray]
) -> FloatArray:
    """Return counts with noise, each drawn again until it lies in [0, n]."""
    noisy = np.asarray(counts + noise(len(counts)), dtype=np.float64)
    while True:
        outside = np.flatnonzero((noisy < 0) | (noisy > n))
        if not outside.size:
            return noisy
        noisy[outside] = counts[outside] + noise(outside.size)


@dataclass(frozen=True, kw_only=True)
class PrintedRegression(PrintedStatistic):
    """Logistic coefficients drawn under prior N(0, 1 / strength), with noise ~ exp(-n
    strength epsilon / 2 norm(e)).

    Bowen and Liu (2020), section 4.3.2. Under this prior the negative log posterior is
    strongly convex with lambda, not n lambda, so there is n times too little noise. The
    posterior of one coefficient is drawn on a fine grid, of more by Metropolis steps
    from the mode.
    """

    name: ClassVar[str] = "printed regression"

    outcome: str
    predictors: tuple[str, ...]
    strength: Number = "1/2"
    intercept: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.strength, "strength")
        if not self.intercept and not self.predictors:
            raise InputError("a regression needs predictors or an intercept")

    def logits(self, table: Table) -> Logits:
        """Return the regression on a confidential table, distinct records once."""
        schema = table.schema
        statistic = Logistic(
            outcome=self.outcome, predictors=self.predictors, kappa=self.strength
        )
        statistic.check(schema)
        values = record_values(table, (self.outcome, *self.predictors))
        x = statistic.design(values, schema)
        if not self.intercept:
            x = x[:, 1:] * np.sqrt((1 + len(self.predictors)) / len(self.predictors))
        rows, weight = np.unique(
            np.column_stack([values[self.outcome], x]), axis=0, return_counts=True
        )
        return Logits(
            x=np.ascontiguousarray(rows[:, 1:]),
            level=rows[:, 0].astype(np.int64),
            weight=weight.astype(np.int64),
            n_levels=schema.columns[self.outcome].n_levels,
            kappa=exact(self.strength, "strength"),
        )

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> FloatArray:
        """Return noisy coefficients of the normalised predictors, shape (runs,
        coefficients), level by level.
        """
        logits = self.logits(table)
        rng = bits.generator()
        drawn = posterior_draws(logits, n_runs, rng)
        product = exact(self.strength, "strength") * exact(self.epsilon, "epsilon")
        rate = table.n_records * as_float(product) / 2
        return drawn + grown_noise(drawn.shape, 1 / rate, rng)


def posterior_draws(
    logits: Logits, n_draws: int, rng: np.random.Generator
) -> FloatArray:
    """Return posterior draws of logistic coefficients under N(0, 1 / kappa) priors,
    shape (draws, coefficients).
    """
    d = (logits.n_levels - 1) * logits.x.shape[1]
    if d == 1:
        grid = np.linspace(-REACH, REACH, GRID) / np.sqrt(float(logits.kappa))
        scores = _log_posterior(logits, grid[:, None])
        weights = np.exp(scores - scores.max())
        place = rng.choice(GRID, n_draws, p=weights / weights.sum())
        within_step = (grid[1] - grid[0]) * (rng.random(n_draws) - 0.5)
        drawn: FloatArray = grid[place] + within_step
        return drawn[:, None]
    mode = newton(logits, 1e-6)
    at_mode = precision(logits.x, mode, logits.weight, float(logits.kappa))
    root = np.linalg.cholesky(np.linalg.inv(at_mode))
    middle = mode.ravel()
    now = np.tile(middle, (n_draws, 1))
    score = _log_posterior(logits, now)
    for _ in range(STEPS):
        raw = rng.standard_t(FREEDOM, now.shape)
        tried = middle + raw @ root.T
        new_score = _log_posterior(logits, tried)
        raw_now = np.linalg.solve(root, (now - middle).T).T
        log_ratio = new_score - _log_t(raw) - (score - _log_t(raw_now))
        moved = np.log(rng.random(n_draws)) < log_ratio
        now = np.where(moved[:, None], tried, now)
        score = np.where(moved, new_score, score)
    return np.asarray(now)


def _log_t(raw: FloatArray) -> FloatArray:
    return np.asarray(-(FREEDOM + 1) / 2 * np.log1p(raw**2 / FREEDOM).sum(axis=1))


def _log_posterior(logits: Logits, flat: FloatArray) -> FloatArray:
    """Return log posterior densities up to a constant, shape (draws,), at coefficients
    of shape (draws, C d).
    """
    b = flat.reshape(len(flat), logits.n_levels - 1, -1)
    eta = np.concatenate(
        [np.zeros((len(flat), 1, len(logits.x))), b @ logits.x.T], axis=1
    )
    loss = (
        np.logaddexp.reduce(eta, axis=1)
        - eta[:, logits.level, np.arange(len(logits.x))]
    )
    return np.asarray(
        -float(logits.kappa) / 2 * (flat**2).sum(axis=1) - loss @ logits.weight
    )


def precision(
    x: FloatArray, b: FloatArray, weight: IntArray, kappa: float
) -> FloatArray:
    """Return minus the second derivatives of the log posterior at coefficients ``b``,
    shape (C, d).
    """
    chance = softmax(np.vstack([np.zeros(len(x)), b @ x.T]), axis=0)[1:]
    return np.asarray(information(x, chance, weight) + kappa * np.eye(b.size))


def grown_noise(
    shape: tuple[int, ...], scale: float, rng: np.random.Generator
) -> FloatArray:
    """Draw noise with density in proportion to exp(-length / scale) along the last
    axis, in doubles: as published.
    """
    direction = rng.standard_normal(shape)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    return np.asarray(
        direction * (rng.standard_gamma(shape[-1], shape[:-1]) * scale)[..., None]
    )


def _values(table: Table, name: str) -> FloatArray:
    return np.asarray(record_values(table, (name,))[name], dtype=np.float64)


def _means(table: Table, of: str, by: str) -> tuple[FloatArray, IntArray]:
    """Return means by cell, 0 where there are no records, and how many records each
    has.
    """
    cells = table.codes[by]
    n_cells = table.schema.columns[by].n_levels
    counts = np.bincount(cells, minlength=n_cells)
    return np.bincount(cells, _values(table, of), n_cells) / np.maximum(
        counts, 1
    ), counts


def _range(schema: Schema, name: str) -> float:
    column = schema.columns[name]
    return float(column.upper or 0) - float(column.lower or 0)


def redraw_loss(epsilon: float) -> float:
    """Return what drawing again costs one count, in the limit of many records: epsilon
    + log(2 - e^-epsilon).
    """
    return epsilon + float(np.log(2 - np.exp(-epsilon)))


def published(epsilon: Number = 1) -> Iterator[Case]:
    """Yield the cases on which the forms as printed are audited, the regression with a
    tenth of epsilon.

    Each is accused.
    """
    tenth = exact(epsilon, "epsilon") / 10
    regression = PrintedRegression(
        epsilon=tenth, outcome="w", predictors=("x",), intercept=False
    )
    covariance = PrintedCovariance(epsilon=epsilon, of=("y", "z"), by="w")
    means = PrintedMeans(epsilon=epsilon, of="y", by="w")
    least = covariance.exact(other_sign().first)
    tried: list[tuple[Any, Pair, Event, str]] = [
        (
            RedrawnCount(epsilon=epsilon, of="x"),
            counted_pair(),
            lambda rows: rows < 0.1,
            "the count is below .1",
        ),
        (means, emptied_cell(), np.isfinite, "the cell has a mean"),
        (means, larger_cell(), lambda rows: rows > 3, "the cell's mean is above 3"),
        (
            covariance,
            other_sign(),
            lambda rows: rows >= least,
            "the covariance is at least that of the first table",
        ),
        (
            regression,
            turned_choice(),
            lambda rows: rows > 0,
            "the coefficient is above 0",
        ),
    ]
    for mechanism, pair, event, name in tried:
        yield Case(mechanism, with_event(pair, partial(_of_first, event), name))


def _of_first(event: Callable[[FloatArray], BoolArray], rows: FloatArray) -> BoolArray:
    """Ask an event of the first number of each run."""
    return event(rows[:, 0])
