"""Estimates from synthetic sets over many replicates at once: rules, bias, error,
coverage, width; conjugate draws.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from pdips.arrays import FloatArray
from pdips.inference import Rule
from pdips.inference import combine as combine_sets
from pdips_papers.harness.study import COLUMNS

MEASURES = {
    "bias": "bias",
    "rmse": "RMSE",
    "coverage": "coverage of the 95 % interval",
    "width": "width of the interval",
}


def combine(
    estimates: FloatArray, variances: FloatArray, rule: Rule = "sanitized"
) -> tuple[FloatArray, FloatArray]:
    """Combine the sets of each replicate, shape (replicates, sets), into estimates and
    half widths of 95 % intervals.

    Sets that give no estimate (NaN) are left out; NaN where fewer than two of several
    give one. A single set has a normal interval. The rules are those of
    :func:`pdips.inference.combine`; Bowen and Liu (2020), (3.5) to (3.7), is
    "sanitized".
    """
    there = np.isfinite(estimates) & np.isfinite(variances)
    centre, half = np.full((2, len(estimates)), np.nan)
    for m in range(min(2, estimates.shape[1]), estimates.shape[1] + 1):
        rows = there.sum(axis=1) == m
        kept = there[rows]
        q = estimates[rows][kept].reshape(-1, m).T
        v = variances[rows][kept].reshape(-1, m).T
        if m == 1:
            centre[rows] = q[0]
            half[rows] = special.ndtri(0.975) * np.sqrt(v[0])
        elif rows.any():
            combined = combine_sets(q, v, rule=rule)
            lower, upper = combined.interval
            centre[rows] = combined.estimate
            half[rows] = (upper - lower) / 2
    return centre, half


def summary(
    row: str,
    suffix: str,
    found: tuple[FloatArray, FloatArray],
    truth: float,
    *,
    unit: float = 1.0,
) -> list[dict[str, Any]]:
    """Return the measurements of one batch of replicates: means, and means of squares,
    of what is averaged.
    """
    estimate, half = found
    return interval_summary(
        row, suffix, (estimate, estimate - half, estimate + half), truth, unit=unit
    )


def interval_summary(
    row: str,
    suffix: str,
    found: tuple[FloatArray, FloatArray, FloatArray],
    truth: float,
    *,
    unit: float = 1.0,
) -> list[dict[str, Any]]:
    """Do the same from estimates and the lower and upper ends of their intervals, each
    of shape (replicates,).
    """
    estimate, lower, upper = found
    error = (estimate - truth) / unit
    covered = ((lower <= truth) & (truth <= upper)).astype(np.float64)
    values = {
        "bias": error,
        "rmse": error**2,
        "coverage": covered,
        "width": (upper - lower) / unit,
    }
    return [
        averaged(row, f"{measure}{suffix}", value) for measure, value in values.items()
    ]


def averaged(row: str, column: str, values: FloatArray) -> dict[str, Any]:
    """Return the measurement of one batch of replicates for :func:`pooled`."""
    mean = float(np.mean(values))
    square = float(np.mean(values**2))
    return {
        "row": row,
        "column": column,
        "value": mean,
        "square": square,
        "count": len(values),
    }


def pooled(measurements: pd.DataFrame) -> pd.DataFrame:
    """Pool batches of :func:`summary` into a table of all replicates, without the
    paper's figures.
    """
    n = measurements["count"]
    weighted = measurements.assign(
        value=measurements["value"] * n, square=measurements["square"] * n
    )
    groups = weighted.groupby(["row", "column"], sort=False)
    sums = groups[["value", "square", "count"]].sum().reset_index()
    count = sums["count"]
    mean = sums["value"] / count
    spread = (sums["square"] / count - mean**2).clip(lower=0)
    error = (spread / (count - 1).where(count > 1)) ** 0.5
    # of a root mean square, by linearisation
    is_root = sums["column"].str.startswith("rmse")
    size = mean.where(is_root) ** 0.5
    error_of_root = error / (2 * size.where(size > 0))
    pooled = pd.DataFrame(
        {
            "row": sums["row"],
            "column": sums["column"],
            "ours": mean.where(~is_root, size),
            "standard_error": error.where(~is_root, error_of_root),
            "paper": np.nan,
        }
    )
    return pooled[list(COLUMNS)]


def at_each(table: pd.DataFrame, suffixes: Iterable[str]) -> pd.DataFrame:
    """Repeat the rows of methods that have no epsilon at each epsilon, so that the
    table is a rectangle.
    """
    free = table["column"].isin(MEASURES)
    parts = [
        table[free].assign(column=table.loc[free, "column"] + suffix)
        for suffix in suffixes
    ]
    return pd.concat([*parts, table[~free]], ignore_index=True)


def draw_shares(alpha: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw from Dirichlet laws, one along the last axis."""
    gamma = rng.standard_gamma(alpha)
    total = gamma.sum(axis=-1, keepdims=True)
    shares = gamma / np.where(total > 0, total, 1.0)
    # where all draws are too small to divide by
    even = 1 / alpha.shape[-1]
    return np.asarray(np.where(total > 0, shares, even))


def draw_covariances(
    scale: FloatArray, degrees: float, rng: np.random.Generator
) -> FloatArray:
    """Draw from inverse Wishart laws.

    Bartlett's decomposition: with ``scale`` = L L' and A lower triangular, A_ii^2
    chi-square on ``degrees`` - p + 1 + i degrees (i from 0) and standard normal below
    the diagonal, A' A is a Wishart matrix and L (A' A)^-1 L' the draw.
    """
    p = scale.shape[-1]
    factor = np.zeros(scale.shape)
    for i in range(p):
        squares = rng.chisquare(degrees - p + 1 + i, scale.shape[:-2])
        factor[..., i, i] = np.sqrt(squares)
        for j in range(i):
            factor[..., i, j] = rng.standard_normal(scale.shape[:-2])
    root = np.linalg.cholesky(scale) @ np.linalg.inv(factor)
    return np.asarray(root @ np.swapaxes(root, -1, -2))


def draw_normal(
    mean: FloatArray, covariance: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Draw from normal laws with ``mean``, shape (..., p), and positive definite
    ``covariance``, shape (..., p, p).
    """
    root = np.linalg.cholesky(covariance)
    noise = rng.standard_normal(mean.shape)
    return np.asarray(mean + (root @ noise[..., None])[..., 0])


def nearest_covariance(matrix: FloatArray, lowest: float, highest: float) -> FloatArray:
    """Move the eigenvalues of symmetric matrices, shape (..., p, p), into ``[lowest,
    highest]``.
    """
    values, vectors = np.linalg.eigh(matrix)
    kept = np.clip(values, lowest, highest)
    return np.asarray((vectors * kept[..., None, :]) @ np.swapaxes(vectors, -1, -2))
