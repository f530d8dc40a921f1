"""Generalized linear models from noisy scores: the law of the predictors, the fit, and
a posterior where noise leaves no finite fit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import expit

from pdips.arrays import BoolArray, FloatArray
from pdips.errors import InputError
from pdips.outside.answer import Answer
from pdips.outside.regression import (
    LEAST_COUNT,
    Chosen,
    Parts,
    Reads,
    TermTable,
    check_binary,
    sums,
)

type GlmFamily = Literal["binomial", "poisson"]

PRIOR_INTERCEPT = 5.0
PRIOR_SLOPE = 2.5
"""Standard deviations of coefficients of standardised predictors, where the noise
leaves no finite fit.
"""

# Posterior over prior standard deviation from which a coefficient is the prior's
AT_PRIOR = 0.8
N_WALKERS = 100
STAGES = 4
STAGE_STEPS = 200
KEPT_EVERY = 10  # Steps, in the second half of the last stage

FARTHEST = 30.0
LONGEST_STEP = 2.0
NEWTON_STEPS = 40
ROUNDS = 25
MOST_FITTED = 20_000  # Cells of the predictors
N_LAWS = 200  # Fresh draws of the noise for its covariance, where a prior is needed
LARGEST_LOG = {"fit": 300.0, "posterior": 30.0}  # Of a mean, so that it stays finite


def check_fitted(terms: TermTable, family: GlmFamily) -> None:
    """Refuse an outcome that isn't of a family, and predictors of too many cells."""
    if family == "binomial":
        check_binary(terms.outcome[1])
    if math.prod(terms.shape) > MOST_FITTED:
        raise InputError(
            f"the predictors have more than {MOST_FITTED:,} cells together: take fewer"
        )


def means_of(family: GlmFamily, linear: FloatArray, most: float = np.inf) -> FloatArray:
    """Return means by the canonical link; logarithms above ``most`` count as that."""
    if family == "binomial":
        return np.asarray(expit(linear))
    return np.exp(np.minimum(linear, most))


def variances_of(family: GlmFamily, means: FloatArray) -> FloatArray:
    """Return the variance of an outcome with each mean."""
    return means * (1 - means) if family == "binomial" else means


@dataclass(frozen=True, eq=False)
class ScoreModel:
    """A generalized linear model with its canonical link, of standardised terms.

    ``design`` has the terms in each cell of the predictors, shape (cells,
    coefficients), the intercept first, in the units of the columns; ``standard`` the
    same standardised.
    """

    terms: TermTable
    family: GlmFamily
    design: FloatArray
    middle: FloatArray
    width: FloatArray

    @classmethod
    def of(cls, terms: TermTable, family: GlmFamily) -> "ScoreModel":
        design = terms.cells()
        middle = design.mean(axis=0)
        width = np.maximum(design.std(axis=0), 1e-9)
        middle[0] = 0.0
        width[0] = 1.0
        return cls(terms, family, design, middle, width)

    @property
    def standard(self) -> FloatArray:
        return (self.design - self.middle) / self.width

    def parts(self, counts: FloatArray, n: FloatArray) -> Parts:
        """Return the law of the predictors, shape (replicates, cells), and the scores
        of standardised terms, over the number of records.
        """
        both = sums(self.terms.values, counts, n)
        score = both[:, :-1, -1] / n[:, None]
        standard = (score - self.middle * score[:, :1]) / self.width
        return joint(self.terms.shape, counts), standard

    def in_own_units(self, coefficients: FloatArray) -> FloatArray:
        own = coefficients / self.width
        own[..., 0] -= own @ self.middle
        return own

    def fit(self) -> Reads:
        """Return the function that fits the model to counts."""
        standard = self.standard

        def reads(counts: FloatArray, n: FloatArray) -> FloatArray:
            law, score = self.parts(counts, n)
            return self.in_own_units(maximum(standard, law, score, self.family))

        return reads

    def sampling_covariance(
        self, coefficients: FloatArray, law: FloatArray, n: float
    ) -> FloatArray:
        """Return the covariance that sampling of records gives to coefficients, in the
        units of the columns.
        """
        means = means_of(self.family, self.design @ coefficients)
        weight = law * variances_of(self.family, means)
        information = (self.design * weight[:, None]).T @ self.design * n
        return np.linalg.inv(information)


def joint(shape: Sequence[int], counts: FloatArray) -> FloatArray:
    """Return the shares of all cells of the first columns: of maximum entropy, as far
    as noise lets pairs agree.

    Shape (replicates, cells); ``counts`` are those of :meth:`Chosen.counts`.
    """
    n_columns = len(shape)
    ends = np.cumsum([0, *shape])
    if n_columns == 1:
        alone = np.diagonal(counts, axis1=1, axis2=2)[:, : shape[0]]
        alone = np.maximum(alone, LEAST_COUNT)
        return np.asarray(alone / alone.sum(axis=1, keepdims=True))
    shares = dict[tuple[int, int], FloatArray]()
    for i, j in combinations(range(n_columns), 2):
        pair = counts[:, ends[i] : ends[i + 1], ends[j] : ends[j + 1]]
        pair = np.maximum(pair, LEAST_COUNT)
        shares[i, j] = pair / pair.sum(axis=(1, 2), keepdims=True)
    law: FloatArray = np.ones((len(counts), *shape))
    for _ in range(1 if n_columns == 2 else ROUNDS):
        for (i, j), wanted in shares.items():
            others = tuple(1 + k for k in range(n_columns) if k not in (i, j))
            ratio = wanted / np.maximum(law.sum(axis=others), 1e-300)
            law = law * np.expand_dims(ratio, others)
    law = law.reshape(len(law), -1)
    return np.asarray(law / law.sum(axis=1, keepdims=True))


def maximum(
    design: FloatArray, laws: FloatArray, scores: FloatArray, family: GlmFamily
) -> FloatArray:
    """Return the coefficients whose expected scores are the given ones, by Newton's
    method; NaN where there are none.

    ``laws`` have shape (replicates, cells), ``scores`` and coefficients (replicates,
    coefficients).
    """
    now = np.zeros(scores.shape)
    fits = np.full(scores.shape, np.nan)
    now[:, 0] = _link(family, scores[:, 0])
    going = np.arange(len(scores))
    for _ in range(NEWTON_STEPS):
        means = means_of(family, now[going] @ design.T, LARGEST_LOG["fit"])
        weight = laws[going] * variances_of(family, means)
        hessian = design.T @ (weight[..., None] * design)
        solvable = np.isfinite(hessian).all(axis=(1, 2))
        least = np.linalg.eigvalsh(hessian[solvable])[:, 0]
        solvable[solvable] = least >= 1e-12
        going = going[solvable]
        off = scores[going] - (laws[going] * means[solvable]) @ design
        step = np.linalg.solve(hessian[solvable], off[..., None])[..., 0]
        longest = np.abs(step).max(axis=1, initial=0)
        shortened = np.minimum(1.0, LONGEST_STEP / np.maximum(longest, 1e-12))
        now[going] += step * shortened[:, None]
        near = np.abs(now[going]).max(axis=1, initial=0) <= FARTHEST
        done = longest < 1e-9
        fits[going[near & done]] = now[going[near & done]]
        going = going[near & ~done]
        if not len(going):
            break
    return fits


def _link(family: GlmFamily, means: FloatArray) -> FloatArray:
    """Return the canonical link, finite at the ends."""
    if family == "binomial":
        share = np.clip(means, 1e-6, 1 - 1e-6)
        return np.log(share / (1 - share))
    return np.log(np.maximum(means, 1e-6))


@dataclass(frozen=True, eq=False)
class NoisyScore:
    """A noisy score and the law of the predictors that goes with it, and both with
    fresh noise on top.

    ``design``, shape (cells, coefficients), is standardised, the intercept first.
    ``law`` are the shares of the predictors' cells, ``score`` sums over records, over
    their number, shape (coefficients,); ``laws`` and ``scores`` the same with fresh
    noise, one a row. ``n`` is infinite for the table's own coefficients.
    """

    design: FloatArray
    family: GlmFamily
    law: FloatArray
    score: FloatArray
    laws: FloatArray
    scores: FloatArray
    n: float

    def expected(self, coefficients: FloatArray) -> FloatArray:
        """Return the mean in each cell."""
        linear = coefficients @ self.design.T
        return means_of(self.family, linear, LARGEST_LOG["posterior"])

    def precision(self, coefficients: FloatArray) -> FloatArray:
        """Return the inverse covariance of the score, of noise and of sampling, at the
        mean over some coefficients.
        """
        means = self.expected(coefficients).mean(axis=0)
        off = self.scores - (self.laws * means) @ self.design
        weight = self.law * variances_of(self.family, means)
        sampling = (self.design * weight[:, None]).T @ self.design / self.n
        least = 1e-12 * np.eye(len(sampling))
        return np.linalg.inv(np.cov(off.T) + sampling + least)

    def posterior(self) -> tuple[FloatArray, BoolArray]:
        """Return draws of the coefficients given the noisy score, under a normal prior,
        and which are the prior's alone.

        The score is normal about the one that the coefficients give. Its covariance is
        that of the noise, on score and law of the predictors together, and with a
        finite ``n`` of sampling; it is taken at the mean over the draws so far. Draws
        are by an ensemble of walkers (Goodman and Weare, 2010).
        """
        rng = np.random.default_rng(2)
        size = self.design.shape[1]
        prior = np.array([PRIOR_INTERCEPT, *np.full(size - 1, PRIOR_SLOPE)])
        walkers = prior * rng.standard_normal((N_WALKERS, size)) / 2
        kept = list[FloatArray]()
        for stage in range(STAGES):
            precision = self.precision(walkers)

            def log_density(
                coefficients: FloatArray, precision: FloatArray = precision
            ) -> FloatArray:
                off = self.score - (self.expected(coefficients) * self.law) @ (
                    self.design
                )
                of_score = np.sum((off @ precision) * off, axis=1)
                of_prior = np.sum((coefficients / prior) ** 2, axis=1)
                return np.asarray(-(of_score + of_prior) / 2)

            heights = log_density(walkers)
            for step in range(STAGE_STEPS):
                stretch_move(walkers, heights, log_density, rng)
                is_last = stage == STAGES - 1 and step >= STAGE_STEPS // 2
                if is_last and step % KEPT_EVERY == 0:
                    kept.append(walkers.copy())
        draws = np.concatenate(kept)
        return draws, draws.std(axis=0) > AT_PRIOR * prior


def stretch_move(
    walkers: FloatArray,
    heights: FloatArray,
    log_density: Callable[[FloatArray], FloatArray],
    rng: np.random.Generator,
) -> None:
    """Move each half of the walkers along lines to walkers of the other half, in place;
    ``heights`` are their log densities.
    """
    n, size = walkers.shape
    for half in (slice(0, n // 2), slice(n // 2, n)):
        others = np.delete(walkers, np.arange(n)[half], axis=0)
        stretch = (1 + rng.random(n // 2)) ** 2 / 2
        anchors = others[rng.integers(len(others), size=n // 2)]
        proposed = anchors + stretch[:, None] * (walkers[half] - anchors)
        proposed_heights = log_density(proposed)
        log_ratio = (size - 1) * np.log(stretch) + proposed_heights - heights[half]
        taken = np.log(rng.random(n // 2)) < log_ratio
        walkers[half] = np.where(taken[:, None], proposed, walkers[half])
        heights[half] = np.where(taken, proposed_heights, heights[half])


def sampling_of_ols(
    chosen: Chosen, terms: TermTable, coefficients: FloatArray
) -> FloatArray:
    """Return the covariance that sampling of records gives to coefficients."""
    counts, n = chosen.counts()
    both = sums(terms.values, counts, n)[0]
    inverse = np.linalg.inv(both[:-1, :-1])
    is_binary = {*np.unique(terms.outcome[1]).tolist()} <= {0.0, 1.0}
    if is_binary and math.prod(terms.shape) <= MOST_FITTED:
        design = terms.cells()
        mean = np.clip(design @ coefficients, 0, 1)
        spread = joint(terms.shape, counts)[0] * mean * (1 - mean)
        middle = (design * spread[:, None]).T @ design
        return np.asarray(inverse @ middle @ inverse * n)
    squares = max(both[-1, -1] - coefficients @ both[:-1, -1], 0.0)
    residual = squares / max(n[0] - len(coefficients), 1)
    return np.asarray(residual * inverse)


def under_prior(
    names: tuple[str, ...], draws: FloatArray, alone: BoolArray, basis: str
) -> Answer:
    """Return draws of a posterior as an answer, which says what only the prior speaks
    of.
    """
    basis += "; posterior under a normal prior"
    if alone.any():
        of_prior = ", ".join(np.array(names)[alone])
        basis += f", which is all there is for {of_prior}"
    frame = pd.DataFrame(draws, columns=list(names))
    covariance = np.cov(draws.T)
    return Answer(
        names,
        draws.mean(axis=0),
        covariance,
        basis,
        frame,
        skewed=True,
        is_of_prior=True,
    )


def posterior_under_prior(
    chosen: Chosen, model: ScoreModel, n: float
) -> tuple[FloatArray, BoolArray]:
    """Return draws of the coefficients under a normal prior, in the columns' units, and
    which are the prior's alone.
    """
    laws = []
    scores = []
    for counts in chosen.again(N_LAWS, model.design.size, 3):
        law, score = model.parts(*counts)
        laws.append(law)
        scores.append(score)
    law, score = model.parts(*chosen.counts())
    noisy = NoisyScore(
        design=model.standard,
        family=model.family,
        law=law[0],
        score=score[0],
        laws=np.concatenate(laws),
        scores=np.concatenate(scores),
        n=n,
    )
    draws, alone = noisy.posterior()
    return model.in_own_units(draws), alone
