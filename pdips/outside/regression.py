"""Regressions from sums over records: normal equations, scores, and the law of the predictors."""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from pdips.arrays import FloatArray

LEAST_COUNT = 1e-3
"""What a cell of the predictors is raised to, in records."""

FARTHEST, NEWTON_STEPS, ROUNDS = 30.0, 40, 25


def solved(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Return the solution of a linear system, NaN where noise leaves the matrix without an inverse of positive kind."""
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        return np.full(len(right), np.nan)
    return np.asarray(np.linalg.solve(matrix, right))


def joint(shape: Sequence[int], singles: Sequence[FloatArray], pair: Callable[[int, int], FloatArray]) -> FloatArray:
    """Return the shares of all cells of some columns: of maximum entropy, as far as noise lets pairs agree."""
    n_columns = len(shape)
    if n_columns == 1:
        alone = np.maximum(singles[0], LEAST_COUNT)
        return np.asarray(alone / alone.sum())
    law: FloatArray = np.ones(shape)
    pairs = {both: np.maximum(pair(*both), LEAST_COUNT) for both in combinations(range(n_columns), 2)}
    for _ in range(1 if n_columns == 2 else ROUNDS):
        for both, wanted in pairs.items():
            others = tuple(k for k in range(n_columns) if k not in both)
            law = law * np.expand_dims(wanted / wanted.sum() / np.maximum(law.sum(axis=others), 1e-300), others)
    return np.asarray(law.ravel() / law.sum())


def maximum(design: FloatArray, law: FloatArray, score: FloatArray, family: str) -> FloatArray:
    """Return the coefficients whose expected score is the given one, by Newton's method; NaN where there are none."""
    from scipy.special import expit

    found = np.zeros(design.shape[1])
    share = np.clip(score[0], 1e-6, 1 - 1e-6 if family == "binomial" else None)
    found[0] = np.log(share / (1 - share)) if family == "binomial" else np.log(share)
    for _ in range(NEWTON_STEPS):
        linear = design @ found
        mean = expit(linear) if family == "binomial" else np.exp(np.minimum(linear, 300.0))
        weight = mean * (1 - mean) if family == "binomial" else mean
        hessian = (design * (law * weight)[:, None]).T @ design
        if not np.isfinite(hessian).all() or np.linalg.eigvalsh(hessian)[0] < 1e-12:
            break
        step = np.linalg.solve(hessian, score - design.T @ (law * mean))
        found = found + step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-12))
        if np.abs(found).max() > FARTHEST:
            break
        if np.abs(step).max() < 1e-9:
            return np.asarray(found)
    return np.full(len(found), np.nan)
