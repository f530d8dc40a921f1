"""A public table that stands for confidential covariates: made-up rows, weighted so
that they have all that noisy answers say of the records.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from pdips.arrays import BoolArray, FloatArray
from pdips.posterior.columns import Values
from pdips.posterior.model import Blueprint
from pdips.scores.column_cells import ColumnCells, inside_cells

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
        likely = likely_shares(noisy, deviation)
        evenly = (likely > 0) / (likely > 0).sum()
        proposed = (1 - EVENLY) * likely + EVENLY * evenly
        cell = _spread(proposed, n, rng)
        column = cells.columns[name]
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
