"""Whether effects of groups go with their sizes, where a model says that they don't: a
score test on the noisy numbers, which costs nothing.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from pdips.arrays import FloatArray
from pdips.groups.hyperparameters import HyperDraws, HyperPosterior
from pdips.groups.quadrature import Common

# Of a parameter's deviation, and of the spread of effects: of differences
STEP = 0.2
# Correlations of effects with sizes up to which intervals of small groups are hardly
# covered less: tuned on ``benchmarks.groups --wrong related``
HARMLESS = 0.1


@dataclass(frozen=True)
class SizeRelation:
    """How effects of groups go with the logs of their sizes: about their correlation,
    and its deviation.
    """

    correlation: float
    deviation: float

    @classmethod
    def of(cls, hyper: HyperPosterior, weighted: HyperDraws) -> "SizeRelation | None":
        """Return what noisy numbers say of it, None where they say nothing.

        This is Neyman's C(alpha) test at the middle of the posterior: each effect's
        score for the correlation, less what scores for the common parameters explain of
        it, so that it doesn't matter how these were estimated.
        """
        centre = weighted.weights @ weighted.places
        off = weighted.places - centre
        deviations = np.sqrt(weighted.weights @ off**2)
        evidences = hyper.quadrature.log_evidences
        with np.errstate(all="ignore"):
            score = _score(hyper, centre)
            others = []
            for step in np.diag(STEP * deviations):
                above = evidences(hyper.common(centre + step))
                others.append(above - evidences(hyper.common(centre - step)))
        return cls._of_scores(score, np.array(others).T)

    @classmethod
    def _of_scores(cls, score: FloatArray, others: FloatArray) -> "SizeRelation | None":
        """Return the relation by scores of effects: of the correlation, shape
        (effects,), and of common parameters, shape (effects, parameters).
        """
        n, n_others = others.shape
        if n <= 2 * n_others or not np.isfinite([*score, *others.ravel()]).all():
            return None
        scale = np.maximum(np.sqrt((others**2).mean(axis=0)), np.finfo(float).tiny)
        explained, *_ = np.linalg.lstsq(others / scale, score, rcond=1e-9)
        own = score - (others / scale) @ explained
        # as many scores as parameters say nothing of their variance
        information = (own**2).sum() * n / (n - n_others)
        if information < 1:
            return None  # less than a correlation of 1 would show
        return cls(float(own.sum() / information), float(information**-0.5))

    @property
    def misfit(self) -> float:
        """How often the noisy numbers would show as large a correlation, if it were
        harmless.
        """
        beyond = abs(self.correlation) - HARMLESS
        return float(min(2 * ndtr(-beyond / self.deviation), 1.0))


def _score(hyper: HyperPosterior, centre: FloatArray) -> FloatArray:
    """Return how fast the log evidence of each effect grows with the correlation, shape
    (effects,), at one of 0.
    """
    common = hyper.common(centre)
    moved = STEP * _spread(common)
    above = replace(common.spread, relation=moved)
    below = replace(common.spread, relation=-moved)
    up = hyper.quadrature.log_evidences(replace(common, spread=above))
    down = hyper.quadrature.log_evidences(replace(common, spread=below))
    return np.asarray((up - down) / (2 * STEP))


def _spread(common: Common) -> float:
    """Return the deviation of groups' means, those of all covariates alike."""
    slopes = common.spread.slopes
    if slopes is None:
        return common.spread.spread
    return float(np.sqrt((slopes.loadings**2).sum(axis=1).mean()))
