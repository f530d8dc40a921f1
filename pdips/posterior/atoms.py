"""Artificial atoms: exact draws from a censored posterior in a number of steps that no record can change.

Experimental. It costs more than rejection by the inverse of the atom's probability; what it buys is the count of steps.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pdips.errors import InputError, RefusedError
from pdips.posterior.prior import Points, Prior
from pdips.posterior.rejection import BATCH, MOST_PROPOSALS, Proposals, Score
from pdips.posterior.words import generator_of
from pdips.privacy.noise import START_DIGITS, RandomBits, _exp_bounds, _geometric

SMALLEST_RATE = Fraction(1, 2**40)
LARGEST_RATE = 40


@dataclass(frozen=True, eq=False)
class AtomDraw:
    """A draw, and whether it is the atom, in whose place a draw from the prior is given. Both are paid for.

    Parameters
    ----------
    points : list of ndarray, shape (1, *shape of the value variable)
        Value variables.
    is_atom : bool
        True if they come from the prior and say nothing about the records.
    """

    points: Points
    is_atom: bool


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """When to stop: public settings, fixed before the table is read.

    Parameters
    ----------
    rate : Fraction
        The number N of proposals that count is geometric, P(N = k) ~ e^(-rate k). The atom's weight is e^rate - 1,
        where the largest that a parameter can have is 1.
    steps : int
        Proposals that are made in any case, so that the time says less about N.
    truncated : bool
        Stop after ``steps`` proposals even if N is larger; then the running time is fixed and the guarantee
        approximate.

    Raises
    ------
    InputError
        If a setting is out of range.
    RefusedError
        If more than 10^7 proposals are to be expected.
    """

    rate: Fraction
    steps: int = 0
    truncated: bool = False

    def __post_init__(self) -> None:
        if not SMALLEST_RATE <= self.rate <= LARGEST_RATE:
            raise InputError(f"the rate at which an atom sampler stops must be within 2^-40 and {LARGEST_RATE}")
        if self.steps < 0 or (self.truncated and not self.steps):
            raise InputError("steps must be 0 or more, and above 0 for a truncated run")
        if (self.steps if self.truncated else self.steps + self.expected_steps) > MOST_PROPOSALS:
            raise RefusedError(
                f"the atom sampler would make over {MOST_PROPOSALS:,} proposals; raise the rate, lower the steps or "
                "take the exact grid for up to three parameters, otherwise sampling='mcmc'"
            )

    @property
    def expected_steps(self) -> float:
        """Mean of N, 1 / (e^rate - 1), the inverse of the atom's weight."""
        return 1 / math.expm1(float(self.rate))

    def atom_probability(self, normaliser: float) -> float:
        """Return the probability of the atom, a / (a + Z), a = e^rate - 1.

        Parameters
        ----------
        normaliser : float
            Z, the prior mean of exp(unit (score - bound)); e^(-2 n w) at least, which gives the worst case over all
            tables.
        """
        weight = math.expm1(float(self.rate))
        return weight / (weight + normaliser)

    def delta(self, epsilon: Fraction) -> Fraction:
        """Return an upper bound on (1 + e^epsilon) P(N > steps), exact.

        A truncated run is (epsilon, delta)-differentially private. A run that isn't truncated is
        epsilon-differentially private, and (epsilon, delta) against somebody who also sees how many proposals were
        made (``docs/proofs/exact-samplers.md``, theorem 5).

        Parameters
        ----------
        epsilon : Fraction
            Price of the exact draw, 4 w.
        """
        exponent = self.rate * (self.steps + 1)
        return min(_exp_above(exponent) + _exp_above(exponent - epsilon), Fraction(1))


def stopping_for(n: int, window: Fraction, atom_probability: Fraction, steps: int = 0) -> Stopping:
    """Return the fastest stopping rule whose atom has at most the given probability, whatever the records are.

    Parameters
    ----------
    n : int
        Number of records, public.
    window : Fraction
        The window w in nats.
    atom_probability : Fraction
        Above 0 and below 1.
    steps : int
        See :class:`Stopping`.

    Raises
    ------
    InputError
        If the probability is out of range.
    RefusedError
        If that takes more than 10^7 proposals on average: about e^(2 n w) (1 - p) / p.
    """
    if not 0 < atom_probability < 1:
        raise InputError("the probability of the atom must be above 0 and below 1")
    odds = float(atom_probability / (1 - atom_probability))
    rate = Fraction(math.log1p(odds * math.exp(-min(700.0, float(2 * n * window)))))
    return Stopping(rate=min(max(rate, SMALLEST_RATE), Fraction(LARGEST_RATE)), steps=steps)


def draw_with_atom(
    score: Score,
    prior: Prior,
    *,
    bound: int,
    unit: Fraction,
    stopping: Stopping,
    bits: RandomBits,
    batch: int = BATCH,
) -> AtomDraw:
    """Draw from prior(theta) exp(unit (score(theta) - bound)) with an atom of weight e^rate - 1 beside it, exactly.

    Parameters
    ----------
    score, prior : callable
        See :func:`pdips.posterior.rejection.reject`.
    bound : int
        n K, public. Never a bound found on this table: the atom would then depend on the records (review E9).
    unit : Fraction
        Nats a step, w / K.
    stopping : Stopping
        When to stop.
    bits : RandomBits
        Source of uniform bits.
    batch : int
        Proposals a call of ``score``.

    Returns
    -------
    AtomDraw

    Raises
    ------
    InputError
        If a setting is out of range, or the score breaks its contract.

    Notes
    -----
    Replace-one neighbours. Every record's steps lie in [-K, K], centred: then the draw, the word whether it is the
    atom included, is (4 w)-differentially private (``docs/proofs/exact-samplers.md``, theorem 3). The law is that of
    SOUNDNESS 6.4, after Seeman, Reimherr and Slavkovic (2021), without its chain: the first accepted of N proposals,
    the atom if there is none, has the same law, and never needs more steps (theorem 4). How many proposals are made
    depends on no record, but with that number the draw tells more than without it: ``Stopping.delta``.
    """
    proposals = Proposals(score, prior, bound, unit, batch)
    generator, source = generator_of(bits)
    counted = int(_geometric(stopping.rate, 1, bits)[0])
    made = stopping.steps if stopping.truncated else max(stopping.steps, counted)
    found: Points | None = None
    for start in range(0, made, batch):
        points = prior(batch, generator)
        source.check()
        accepted = np.flatnonzero(proposals.judge(points, bits)[: max(0, min(counted, made) - start)])
        if found is None and len(accepted):
            found = [values[accepted[:1]] for values in points]
    instead = [values[:1] for values in prior(batch, generator)]
    source.check()
    return AtomDraw(instead, True) if found is None else AtomDraw(found, False)


def _exp_above(exponent: Fraction) -> Fraction:
    """Return an upper bound on exp(-exponent), 1 where it is 1 or more."""
    return Fraction(1) if exponent <= 0 else _exp_bounds(exponent, max(START_DIGITS, math.ceil(exponent)))[1]
