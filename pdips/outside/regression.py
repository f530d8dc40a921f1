"""Regressions from sums over records: normal equations, scores, and the law of the predictors."""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from pdips.arrays import BoolArray, FloatArray

type Parts = tuple[FloatArray, FloatArray]

LEAST_COUNT = 1e-3
"""What a cell of the predictors is raised to, in records."""

PRIOR_INTERCEPT, PRIOR_SLOPE = 5.0, 2.5
"""Standard deviations of coefficients of standardised predictors, where the noise leaves no finite fit."""

AT_PRIOR = 0.8
"""Posterior over prior standard deviation from which a coefficient is the prior's."""

N_WALKERS, STAGES, STAGE_STEPS = 100, 4, 200

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


def posterior(
    design: FloatArray, seen: Parts, again: Sequence[Parts], n: float, family: str
) -> tuple[FloatArray, BoolArray]:
    """Return draws of the coefficients given a noisy score, under a normal prior, and which are the prior's alone.

    The score is normal about the one that the coefficients give. Its covariance is that of the noise, on score and law
    of the predictors together, and with a finite ``n`` of sampling; it is taken at the mean over the draws so far.
    Draws are by an ensemble of walkers (Goodman and Weare, 2010).

    Parameters
    ----------
    design : ndarray, shape (cells, coefficients)
        Standardised, the intercept first.
    seen, again : tuple of ndarray, shapes (cells,) and (coefficients,), and a list of them
        Shares of the predictors' cells, and sums over records, over their number; the same with fresh noise on top.
    n : float
        Number of records; infinite for the table's own coefficients.
    family : str
        ``"binomial"`` or ``"poisson"``.
    """
    from scipy.special import expit

    (law, score), (laws, scores) = seen, (np.array(each) for each in zip(*again, strict=True))
    rng, size = np.random.default_rng(2), design.shape[1]
    prior = np.array([PRIOR_INTERCEPT, *np.full(size - 1, PRIOR_SLOPE)])

    def means(coefficients: FloatArray) -> FloatArray:
        linear = coefficients @ design.T
        return np.asarray(expit(linear) if family == "binomial" else np.exp(np.minimum(linear, 30.0)))

    def log_density(coefficients: FloatArray, precision: FloatArray) -> FloatArray:
        off = score - (means(coefficients) * law) @ design
        return np.asarray(-(np.sum((off @ precision) * off, axis=1) + np.sum((coefficients / prior) ** 2, axis=1)) / 2)

    walkers = prior * rng.standard_normal((N_WALKERS, size)) / 2
    kept = list[FloatArray]()
    for stage in range(STAGES):
        mean = means(walkers).mean(axis=0)
        off = scores - (laws * mean) @ design
        weight = mean * (1 - mean) if family == "binomial" else mean
        sampling = (design * (law * weight)[:, None]).T @ design / n
        precision = np.linalg.inv(np.cov(off.T) + sampling + 1e-12 * np.eye(size))
        at = log_density(walkers, precision)
        for step in range(STAGE_STEPS):
            for half in (slice(0, N_WALKERS // 2), slice(N_WALKERS // 2, N_WALKERS)):
                others = np.delete(walkers, np.arange(N_WALKERS)[half], axis=0)
                stretch = (1 + rng.random(N_WALKERS // 2)) ** 2 / 2
                from_ = others[rng.integers(len(others), size=N_WALKERS // 2)]
                moved = from_ + stretch[:, None] * (walkers[half] - from_)
                there = log_density(moved, precision)
                odds = (size - 1) * np.log(stretch) + there - at[half]
                taken = np.log(rng.random(N_WALKERS // 2)) < odds
                walkers[half] = np.where(taken[:, None], moved, walkers[half])
                at[half] = np.where(taken, there, at[half])
            if stage == STAGES - 1 and step >= STAGE_STEPS // 2 and step % 10 == 0:
                kept.append(walkers.copy())
    draws = np.concatenate(kept)
    return draws, draws.std(axis=0) > AT_PRIOR * prior
