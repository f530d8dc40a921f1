"""The two linear models of Bowen et al.'s simulations: data, public schema, and least
squares by cell.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column, Schema
from pdips.data.table import Table

LEVELS = {"x1": 2, "x2": 3, "x3": 4, "x4": 5}
N_CELLS = 120
N_BINS = 15

RIDGE = 1.0
"""Penalty of the ridge regression for model 2; the paper names none."""

MAIN_EFFECTS = (0.0, 0.5, 0.5, -0.8, 1.0, 0.5, 0.5, 0.5, 0.7, 0.8, 0.5)
"""Intercept, then the levels but the first of x1 to x4 (Bowen et al. 2021, section
3.2).
"""

SATURATED_SEED = 120
"""From which the 120 coefficients of model 2 are drawn, the same in every repeat of
every run.
"""

REACH = 4.0
"""Public bounds on y reach this many standard deviations of the noise beyond the lowest
and the highest mean.
"""


@dataclass(frozen=True)
class Model:
    """A linear model on the 120 combinations of x1 to x4, with noise of variance 1."""

    design: FloatArray
    beta: FloatArray
    names: tuple[str, ...]
    penalty: float

    @property
    def means(self) -> FloatArray:
        """Mean of y in each combination, shape (120,)."""
        return np.asarray(self.design @ self.beta)

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds on y, to one decimal: from the model alone, as a subject's
        expert would know its range.
        """
        lower = self.means.min() - REACH
        upper = self.means.max() + REACH
        return float(np.floor(lower * 10) / 10), float(np.ceil(upper * 10) / 10)

    @property
    def schema(self) -> Schema:
        """Public levels, bounds and bins."""
        lower, upper = self.bounds
        columns = {
            name: Column(levels=tuple(range(1, size + 1)))
            for name, size in LEVELS.items()
        }
        return Schema(
            columns={**columns, "y": Column(lower=lower, upper=upper, bins=N_BINS)}
        )


def levels_of(cell: IntArray) -> dict[str, IntArray]:
    """Return the levels of x1 to x4, counted from 1, of each combination."""
    codes = np.unravel_index(cell, tuple(LEVELS.values()))
    return {
        name: code.astype(np.int64) + 1
        for name, code in zip(LEVELS, codes, strict=True)
    }


def cell_of(frame: pd.DataFrame) -> IntArray:
    """Return the combination of x1 to x4 in each record."""
    codes = tuple(frame[name].to_numpy(dtype=np.int64) - 1 for name in LEVELS)
    return np.asarray(
        np.ravel_multi_index(codes, tuple(LEVELS.values())), dtype=np.int64
    )


@lru_cache(maxsize=2)
def model(number: int) -> Model:
    """Return model 1, of main effects, or model 2, with a mean of its own for each
    combination.
    """
    cells = np.arange(N_CELLS)
    if number == 2:
        names = tuple(
            ",".join(str(level) for level in row)
            for row in zip(*levels_of(cells).values(), strict=True)
        )
        beta = np.random.default_rng(SATURATED_SEED).standard_normal(N_CELLS)
        return Model(np.eye(N_CELLS), beta, names, RIDGE)
    found = levels_of(cells)
    dummies = {
        f"{name}={level}": found[name] == level
        for name, size in LEVELS.items()
        for level in range(2, size + 1)
    }
    design = np.column_stack([np.ones(N_CELLS), *dummies.values()]).astype(np.float64)
    return Model(design, np.array(MAIN_EFFECTS), ("intercept", *dummies), 0.0)


def draw(what: Model, n_records: int, rng: np.random.Generator) -> Table:
    """Draw a table: x1 to x4 independent and uniform, y beyond its bounds moved onto
    them.
    """
    cell = rng.integers(N_CELLS, size=n_records)
    y = np.clip(what.means[cell] + rng.standard_normal(n_records), *what.bounds)
    return Table(pd.DataFrame({**levels_of(cell), "y": y}), what.schema)


def fit(what: Model, frame: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Return coefficients and their variances, by least squares, or ridge regression
    where the model has a penalty.

    The variances are those of the estimator around its own mean: s^2 A^-1 X'X A^-1 with
    A = X'X + penalty, and s^2 the residual sum of squares over n minus the trace of X
    A^-1 X'. A coefficient that the data say nothing about is 0.
    """
    cell = cell_of(frame)
    y = frame["y"].to_numpy(dtype=np.float64)
    count = np.bincount(cell, minlength=N_CELLS).astype(np.float64)
    gram = what.design.T @ (count[:, None] * what.design)
    inverse = np.linalg.pinv(gram + what.penalty * np.eye(len(gram)), hermitian=True)
    estimate = inverse @ (
        what.design.T @ np.bincount(cell, weights=y, minlength=N_CELLS)
    )
    residual = y - (what.design @ estimate)[cell]
    freedom = max(len(y) - float(np.sum(inverse * gram)), 1.0)
    spread = float(residual @ residual) / freedom
    return estimate, spread * np.einsum(
        "ij,jk,ki->i", inverse, gram, inverse, optimize=True
    )
