"""A public table that stands for confidential covariates: made-up rows, weighted so
that they have all that noisy answers say of the records; and the mean of sums of
centred scores that follows from it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from pdips.arrays import BoolArray, FloatArray
from pdips.posterior.columns import Values
from pdips.posterior.model import Blueprint, split
from pdips.scores.column_cells import ColumnCells, inside_cells
from pdips.scores.inner_points import AtPoints, InnerPoints

# Made-up rows; fewer where many points of outcomes belong to each
ROWS = 800
FEWER_ROWS = 400
MANY_POINTS = 12
# Share of rows that are drawn without regard to what is frequent, for rare levels
EVENLY = 0.3
# What the distance from the rows' own weights counts against what answers say, whose
# noise it keeps out (the sketch of the method tried 3 to 100)
ENTROPY = 30.0
# Least variance of an answer as a share, so that doubles keep apart what matters
LEAST = 1e-8
MOST_STEPS = 250
# Of an outcome's cells, in deviations of noise: a count that is hardly noise, and one
# that is taken for none beside it
NOTABLE = 3.0
EMPTY = 0.5
# The first of one cell among dozens, as of Laplace noise one in 140 is above 3
# deviations; and the share of records that such cells hold from which on others count
# as empty
ALONE = 4.5
MOST_SURE = 0.8
# Records of a level that noise may hide, in its deviations
HIDDEN = 0.5
# Slope of the mean of the sums that is taken for none, over the largest
LEAST_SLOPE = 1e-9


@dataclass(frozen=True, eq=False)
class Rows:
    """Made-up rows of covariates, from noisy counts of each column by itself."""

    values: Values  # by column, shape (rows,)
    weights: FloatArray  # shape (rows,): their own, where nothing else is known
    shares: FloatArray  # shape (rows, cells): which cells they are in

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.weights)


def made_up_rows(
    cells: ColumnCells, counts: FloatArray, deviation: float, public: Values, n: int
) -> Rows:
    """Return rows whose columns are independent, as noisy counts of cells have them;
    public columns are those of random records.

    Some rows are drawn evenly over the cells that are hardly empty, and weigh so much
    less as they are too many.
    """
    rng = np.random.default_rng(0)
    values = dict[str, NDArray[Any]]()
    log_weights = np.zeros(n)
    by_column = np.split(counts, np.cumsum(cells.sizes)[:-1])
    indicators = []
    for (name, edges), noisy in zip(cells.edges.items(), by_column, strict=True):
        column = cells.columns[name]
        likely = likely_shares(noisy, deviation)
        if column.is_categorical:
            likely = shares_of_levels(noisy, deviation)
        evenly = (likely > 0) / (likely > 0).sum()
        proposed = (1 - EVENLY) * likely + EVENLY * evenly
        cell = _spread(proposed, n, rng)
        values[name] = inside_cells(column, edges[cell], edges[cell + 1], rng)
        log_weights += np.log(likely[cell] / proposed[cell])
        indicators.append(np.eye(len(likely))[cell])
    if public:
        rows = rng.integers(len(next(iter(public.values()))), size=n)
        values |= {name: np.asarray(each)[rows] for name, each in public.items()}
    weights = np.exp(log_weights - log_weights.max())
    shares = np.concatenate([np.zeros((n, 0)), *indicators], axis=1)
    return Rows(values, weights / weights.sum(), shares)


def _spread(shares: FloatArray, n: int, rng: np.random.Generator) -> NDArray[Any]:
    """Return cells of rows, each as often as its share says up to one, in random
    order.
    """
    places = (np.arange(n) + rng.random()) / n
    cells = np.searchsorted(np.cumsum(shares)[:-1], places, side="right")
    return rng.permutation(cells)


def likely_shares(noisy: FloatArray, deviation: float) -> FloatArray:
    """Return shares of cells by their noisy counts: those that may be noise alone count
    as empty, unless all may.
    """
    sure = np.where(noisy > deviation, noisy, 0.0)
    if not sure.any():
        sure = np.ones(len(noisy))
    return np.asarray(sure / sure.sum())


def shares_of_levels(noisy: FloatArray, deviation: float) -> FloatArray:
    """Return shares of levels by their noisy counts, none of them empty.

    A level whose count may be noise alone has as much as noise hides. Without rows of
    a level nothing would follow of its effect from the noisy curvature, and no weights
    could put that right.
    """
    hidden = HIDDEN * max(deviation, 1e-300)
    sure = np.maximum(noisy, hidden)
    return np.asarray(sure / sure.sum())


def merged_shares(noisy: FloatArray, deviation: float, n: float = np.inf) -> FloatArray:
    """Return shares of cells in the order of a number by their noisy counts, each with
    noise of a standard deviation; ``n`` is the number of records where it is known.

    Where cells that are hardly noise hold most records, others count as empty. Where
    the noise on each cell is louder than it, all would: then halves of the cells,
    halves of these and so on are told apart as long as one is hardly noise, and what
    isn't told apart is spread over its cells.
    """
    notable = noisy > ALONE * deviation
    # noise on many empty cells together may be as much as a large part of the records
    total = min(max(float(noisy.sum()), 1.0), n)
    if noisy[notable].sum() >= MOST_SURE * total:
        return likely_shares(noisy, ALONE * deviation)
    shares = np.zeros(len(noisy))
    parts = [slice(0, len(noisy))]
    while parts:
        part = parts.pop()
        halves = _told_apart(noisy, deviation, part)
        if halves:
            parts += halves
        else:
            of_part = max(float(noisy[part].sum()), 0.0)
            shares[part] = of_part / (part.stop - part.start)
    if not shares.any():
        shares[:] = 1.0
    return np.asarray(shares / shares.sum())


def _told_apart(noisy: FloatArray, deviation: float, part: slice) -> list[slice]:
    """Return the halves of a part of some cells, the one that isn't empty, or none if
    noise doesn't tell.
    """
    middle = (part.start + part.stop) // 2
    halves = [slice(part.start, middle), slice(middle, part.stop)]
    if middle == part.start:
        return []
    sums = [noisy[half].sum() for half in halves]
    roots = [np.sqrt(half.stop - half.start) for half in halves]
    standard = np.array(sums) / np.array(roots) / max(deviation, 1e-300)
    if standard.max() <= NOTABLE:
        return []
    return [half for half, size in zip(halves, standard, strict=True) if size > EMPTY]


def weighted(
    rows: Rows, features: FloatArray, answers: FloatArray, variances: FloatArray
) -> FloatArray:
    """Return weights of rows, shape (rows,), that are near their own and give features,
    shape (rows, features), means near noisy answers.

    They minimise ENTROPY times the Kullback-Leibler divergence from the rows' own
    weights, plus half of the squared distance from the answers in units of the
    variances of their noise. The dual problem is smooth and convex.
    """
    variances = ENTROPY * variances + LEAST
    scale = 1 / np.sqrt(features.var(axis=0) + variances)
    features = features * scale
    answers = answers * scale
    variances = variances * scale**2
    own = np.log(np.maximum(rows.weights, 1e-300))

    def dual(multipliers: FloatArray) -> tuple[float, FloatArray]:
        logs = own + features @ multipliers
        most = logs.max()
        weights = np.exp(logs - most)
        total = weights.sum()
        penalty = variances * multipliers
        value = most + np.log(total) - multipliers @ answers
        slope = features.T @ (weights / total) - answers + penalty
        return float(value + penalty @ multipliers / 2), slope

    found = minimize(
        dual,
        np.zeros(len(answers)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MOST_STEPS},
    ).x
    logs = own + features @ found
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def n_rows(n_points: int) -> int:
    """Return how many rows are made up where so many points belong to each."""
    return ROWS if n_points <= MANY_POINTS else FEWER_ROWS


def covariate_cells(space: Blueprint, cells: ColumnCells) -> ColumnCells:
    """Return the cells of confidential covariates alone."""
    edges = {name: cells.edges[name] for name in space.covariates}
    return ColumnCells(space.columns, edges)


def covariates_in(space: Blueprint, cells: ColumnCells) -> BoolArray:
    """Return which of the cells are those of confidential covariates."""
    is_covariate = [name in space.covariates for name in cells.edges]
    return np.repeat(is_covariate, cells.sizes)


def at_points(points: InnerPoints, candidates: Values, at: AtPoints) -> dict[str, Any]:
    """Return records of all rows at all points, one row after the other."""
    columns = {name: np.repeat(each, points.n) for name, each in candidates.items()}
    n_rows = len(at.weights)
    if points.weights is not None:
        [name] = points.outcomes
        columns[name] = at.quantiles.ravel()
    for name, values in points.values.items():
        columns[name] = np.tile(values, n_rows)
    return columns


@dataclass(frozen=True, eq=False)
class MeanMap:
    """The mean of sums of centred scores at any parameters, by what the model says of
    the points of each row of the pseudo table there.
    """

    points: InnerPoints
    columns: Values  # shape (rows * points,)
    weights: FloatArray  # shape (rows,): of records
    inner: FloatArray  # shape (rows, points): what points weigh at the reference
    scores: FloatArray  # shape (rows, points, parameters): centred
    place: FloatArray
    root: FloatArray  # from moves of parameters to whitened ones
    correction: FloatArray | None = None  # of slopes in whitened moves

    # Log densities that are worked out at once
    AT_ONCE = 2_000_000

    def blocks(self, n: int) -> list[slice]:
        """Return slices of places that go together."""
        size = max(self.AT_ONCE // self.inner.size, 1)
        return [slice(first, first + size) for first in range(0, n, size)]

    def whitened(self, places: FloatArray) -> FloatArray:
        """Return parameters as moves from the reference, in whitened units."""
        return np.asarray((places - self.place) @ self.root.T)

    def logs(self, places: FloatArray) -> FloatArray:
        """Return log densities, shape (places, rows, points)."""
        likelihood = self.points.law.likelihood
        parts = split(likelihood.model, np.asarray(places))
        blocks = likelihood.blocks(self.columns, parts, mode=None)
        logs = np.concatenate([each for _, each in blocks])
        return np.asarray(logs.reshape(len(places), *self.inner.shape))

    @cached_property
    def reference(self) -> FloatArray:
        """Log densities at the reference, shape (rows, points)."""
        return np.asarray(self.logs(self.place[None])[0])

    def inner_weights(self, logs: FloatArray) -> FloatArray:
        """Return what points weigh at parameters, shape (places, rows, points): the
        weights at the reference times the change of the density, as shares of each row.
        """
        with np.errstate(all="ignore"):
            change = logs - self.reference
            change = np.where(np.isnan(change) | (self.inner == 0), -np.inf, change)
            change -= change.max(axis=-1, keepdims=True)
            weights = self.inner * np.exp(np.maximum(change, -1e3))
            return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    def mean(self, inner: FloatArray, moves: FloatArray) -> FloatArray:
        """Return the mean of the sums, shape (..., parameters)."""
        outer = self.weights[:, None] * inner
        flat = self.scores.reshape(-1, self.scores.shape[-1])
        found = outer.reshape(*inner.shape[:-2], -1) @ flat
        if self.correction is not None:
            found = found + moves @ self.correction
        return np.asarray(found)

    @cached_property
    def flattening(self) -> FloatArray:
        """From the mean of the sums to the whitened move that it would take, were it as
        steep everywhere as at the reference, where it is 0.
        """
        inner = self.inner_weights(self.reference[None])[0]
        slopes = self.slopes(self.place, inner) @ np.linalg.inv(self.root)
        return np.asarray(np.linalg.pinv(slopes, rcond=LEAST_SLOPE))

    def straight(self, mean: FloatArray) -> FloatArray:
        """Return the whitened moves from the reference that means of the sums, shape
        (..., parameters), would take, were they straight lines.

        Clipped scores have a largest mean, and an error of the covariates' law moves
        this mean by as large a share of it as the slope: the error doesn't grow further
        with parameters that are ever farther out.
        """
        return np.asarray(mean @ self.flattening.T)

    def row_scores(self, place: FloatArray, inner: FloatArray) -> FloatArray:
        """Return scores of all rows at all points, shape (rows, points, parameters),
        less their mean in each row.
        """
        scores = self.points.law.score.of_public(place, self.columns)
        scores = np.where(np.isfinite(scores), scores, 0.0)
        scores = scores.reshape(*inner.shape, -1)
        mean = (inner[..., None] * scores).sum(axis=1, keepdims=True)
        return np.asarray(scores - mean)

    def slopes(self, place: FloatArray, inner: FloatArray) -> FloatArray:
        """Return the derivative of the mean, shape (parameters, parameters)."""
        scores = self.row_scores(place, inner)
        outer = (self.weights[:, None] * inner)[..., None]
        flat = (outer * self.scores).reshape(-1, self.scores.shape[-1])
        found = flat.T @ scores.reshape(len(flat), -1)
        if self.correction is not None:
            found = found + self.correction @ self.root
        return np.asarray(found)

    def information(self, place: FloatArray, inner: FloatArray) -> FloatArray:
        """Return what all records would say of the parameters, without clipping."""
        scores = self.row_scores(place, inner)
        outer = (self.weights[:, None] * inner)[..., None]
        flat = scores.reshape(-1, scores.shape[-1])
        return np.asarray((outer * scores).reshape(len(flat), -1).T @ flat)
