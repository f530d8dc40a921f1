"""Certified rejection: exact draws from a censored posterior of any dimension, for few records and a small window."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pdips.arrays import BoolArray, IntArray
from pdips.errors import InputError, RefusedError
from pdips.posterior.prior import Points, Prior
from pdips.posterior.words import generator_of
from pdips.privacy.coins import decay_coins
from pdips.privacy.noise import RandomBits

Score = Callable[[Points], IntArray]
"""``score(points)`` returns for each of the m points, shape (m,), the sum over all records of the record's whole steps.

A record's steps lie in [-K, K] and depend on nothing but that record, the point, and public settings.
"""

MOST_PROPOSALS = 10**7
BATCH = 1024
LARGEST_SCORE = 2**60


def expected_proposals(n: int, window: Fraction) -> float:
    """Return the most proposals that a draw takes on average, e^(2 n w), whatever the records are.

    Parameters
    ----------
    n : int
        Number of records, public (replace-one neighbours).
    window : Fraction
        The window w in nats: a record's term lies in [-w, w].
    """
    nats = 2 * n * window
    return math.exp(nats) if nats < 700 else math.inf


def check_proposals(n: int, window: Fraction, *, n_draws: int = 1, most: int = MOST_PROPOSALS) -> None:
    """Refuse, from public settings alone, what could take too long. To be called before anything is spent.

    Parameters
    ----------
    n, window
        See :func:`expected_proposals`.
    n_draws : int
        Number of draws.
    most : int
        The most proposals on average that are put up with.

    Raises
    ------
    RefusedError
        If ``n_draws`` draws may take more.
    """
    if n_draws * expected_proposals(n, window) > most:
        raise RefusedError(
            f"rejection may take e^{float(2 * n * window):.4g} proposals a draw, more than {most:,} in all; take the "
            "exact grid for up to three parameters, otherwise sampling='mcmc', or fewer records or a smaller epsilon"
        )


@dataclass(frozen=True, eq=False)
class Proposals:
    """Draws from the prior, batch by batch, each with how far its score lies below the public bound.

    Parameters
    ----------
    score, prior : callable
        See :data:`Score` and :data:`pdips.posterior.prior.Prior`.
    bound : int
        Public upper bound on the score of any table: n K.
    unit : Fraction
        Nats a step: w / K.
    batch : int
        Points a call. It is always the same, so that a compiled score treats all calls alike.

    Raises
    ------
    InputError
        If the unit or the batch isn't above 0.
    """

    score: Score
    prior: Prior
    bound: int
    unit: Fraction
    batch: int = BATCH

    def __post_init__(self) -> None:
        if self.unit <= 0:
            raise InputError("the unit of the score must be above 0")
        if self.batch < 1:
            raise InputError("batch must be at least 1")
        if abs(self.bound) > LARGEST_SCORE:
            raise InputError("the bound on the score must be within 2^60 steps of 0; take fewer steps")

    def judge(self, points: Points, bits: RandomBits) -> BoolArray:
        """Accept each point with probability exp(unit (score - bound)), exactly.

        Raises
        ------
        InputError
            If the score breaks its contract: another shape or type, or values above the bound.
        """
        scores = self.score(points)
        if scores.shape != (self.batch,) or scores.dtype != np.int64:
            raise InputError("the score must give one int64 a point")
        if (scores > self.bound).any() or (scores < -LARGEST_SCORE).any():
            raise InputError("the score leaves its public bounds; a record's steps must lie in [-K, K]")
        return decay_coins(self.bound - scores, self.unit, bits)


def reject(
    score: Score, prior: Prior, *, n_draws: int, bound: int, unit: Fraction, bits: RandomBits, batch: int = BATCH
) -> Points:
    """Draw from prior(theta) exp(unit * score(theta)), exactly.

    Parameters
    ----------
    score : callable
        See :data:`Score`.
    prior : callable
        See :data:`pdips.posterior.prior.Prior`.
    n_draws : int
        Number of independent draws; each has the full price.
    bound : int
        Upper bound on the score in steps. n K, n public; any other bound must hold for this table with certainty.
    unit : Fraction
        Nats a step, w / K.
    bits : RandomBits
        Source of uniform bits, of the proposals too.
    batch : int
        Proposals a call of ``score``.

    Returns
    -------
    list of ndarray, shape (n_draws, *shape of the value variable)
        The first ``n_draws`` accepted proposals in the order in which they were made.

    Raises
    ------
    InputError
        If a setting is out of range, or the score breaks its contract.

    Notes
    -----
    Replace-one neighbours: a draw is (4 w)-differentially private, pure (``docs/proofs/exact-samplers.md``, theorem
    2; SOUNDNESS 6.3). No cap and no time-out, for failing would be an output (review E10). How long it takes depends
    on the records and is outside the guarantee; e^(2 n w) proposals a draw on average at most, see
    :func:`check_proposals`.
    """
    if n_draws < 1:
        raise InputError("draws must be at least 1")
    proposals = Proposals(score, prior, bound, unit, batch)
    generator, source = generator_of(bits)
    kept: list[Points] = []
    missing = n_draws
    while missing:
        points = prior(batch, generator)
        source.check()
        accepted = np.flatnonzero(proposals.judge(points, bits))[:missing]
        if len(accepted):
            kept.append([values[accepted] for values in points])
            missing -= len(accepted)
    return [np.concatenate(parts) for parts in zip(*kept, strict=True)]
