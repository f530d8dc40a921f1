"""What choices say of the pairs that they passed over, and draws of these pairs for
sets that show what is unsure.

A pair that wasn't counted isn't independent: it is unknown. How far it is from
independent has a law, from how far pairs of a table usually are, from those that were
counted, and from each choice that took another one. Post-processing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pdips.arrays import FloatArray
from pdips.fields.targets import SlopeBasis
from pdips.margins.choosing import MEAN_ABSOLUTE, BlockPair, PairChoice
from pdips.margins.estimates import NoisyPairs

APART = np.geomspace(1e-3, 2, 60)
"""Distances from independence that are thought of: sums over cells, in parts of the
records, which are at most 2.
"""


@dataclass(frozen=True)
class Usual:
    """How far pairs of columns of a table usually are from independent, in parts of the
    records (14 tables: means of .04 to .26, with quantiles of an exponential law;
    ``python -m benchmarks.apart``).
    """

    mean: float = 0.1
    factor: float = 2.0
    """Two tables in three have means within this factor."""


USUAL = Usual()
MEANS = np.geomspace(0.005, 1, 60)
"""Means over the pairs of a table that are thought of."""
STRONGEST = 2.0  # Largest parameter of a pair that is drawn
ROUNDS = 4  # In which the odds of pairs are worked out from each other's law
MOST_LOG_ODDS = 40.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PassedOver:
    """The pairs that weren't counted, and what is known of them.

    Parameters
    ----------
    pairs : sequence of (int, int)
        Their blocks.
    counted : ndarray, shape (pairs counted,)
        How far the others are from independent, in parts of the records.
    log_passed : ndarray, shape (pairs, distances)
        Log probability that all choices pass over a pair, by its distance ``APART``.
    """

    pairs: Sequence[BlockPair]
    counted: FloatArray
    log_passed: FloatArray

    @classmethod
    def of(
        cls, choice: PairChoice, numbers: Sequence[int], found: NoisyPairs
    ) -> "PassedOver":
        """Return what choices say, each of which gave the number of a pair, or of none
        (the number of pairs); ``found`` are estimates with the pairs' counts.

        What other pairs had against one is their expectation under the same law.
        """
        candidates = choice.pairs
        counted = {k: _apart(found, candidates[k]) for k in choice.taken(numbers)}
        passed = [k for k in range(len(candidates)) if k not in counted]
        chances = _Chances.of(choice, numbers, found, passed, counted)
        # as if there were no others: odds of distances that no choice would pass over
        # have no part in the expectation then
        alone = np.zeros((len(passed), len(APART)))
        over = cls(
            pairs=[candidates[k] for k in passed],
            counted=np.array([*counted.values()]),
            log_passed=chances.log_passed(alone),
        )
        for _ in range(ROUNDS):
            over = replace(over, log_passed=chances.log_passed(over.law))
        return over

    @property
    def law(self) -> FloatArray:
        """Probabilities of each pair's distances, shape (pairs, distances)."""
        of_means, of_distances = self._laws
        return np.asarray(np.tensordot(of_means, of_distances, axes=1))

    @cached_property
    def _laws(self) -> tuple[FloatArray, FloatArray]:
        """Probabilities of means over pairs, shape (means,), and of distances given
        these, shape (means, pairs, distances).
        """
        law = APART / MEANS[:, None] * np.exp(-APART / MEANS[:, None])
        law /= law.sum(axis=1, keepdims=True)
        joint = law[:, None, :] * np.exp(self.log_passed)
        sums = joint.sum(axis=2)
        off = np.log(MEANS / USUAL.mean) / np.log(USUAL.factor)
        log = -(off**2) / 2 + np.log(sums).sum(axis=1)
        log -= len(self.counted) * np.log(MEANS) + self.counted.sum() / MEANS
        weights = np.exp(log - log.max())
        return weights / weights.sum(), joint / sums[:, :, None]

    def with_variances(self, found: NoisyPairs) -> NoisyPairs:
        """Return estimates that know these pairs as independent, with noise that would
        move sums of products as much as draws of them do.

        Half of a distance, on average, is that of slopes, in the direction of products;
        the other half is spread over all directions.
        """
        squares = self.law @ APART**2
        variance = found.variance.copy()
        for pair, square in zip(self.pairs, squares.tolist(), strict=True):
            n_rows, n_columns = found.sizes[list(pair)]
            freedom = (n_rows - 1) * (n_columns - 1)
            cells = MEAN_ABSOLUTE**2 * n_rows * n_columns * freedom
            of_cells = found.n**2 * square / max(cells, 1)
            variance[pair] = of_cells * (freedom + 1) / 2
            variance[pair[::-1]] = variance[pair]
        return replace(found, variance=variance)

    def distances(self, rng: np.random.Generator) -> FloatArray:
        """Return a draw of the distance of each pair, shape (pairs,)."""
        of_means, of_distances = self._laws
        law = of_distances[rng.choice(len(MEANS), p=of_means)]
        places = (np.cumsum(law, axis=1) < rng.random((len(law), 1))).sum(axis=1)
        return np.asarray(APART[np.minimum(places, len(APART) - 1)])

    def parameters(
        self,
        found: NoisyPairs,
        shares: FloatArray,
        scores: SlopeBasis,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Return a draw of the parameters of these pairs, shape (levels, levels), 0 for
        others: some part of each pair's distance is that of slopes, where it has any.
        """
        theta = np.zeros((len(shares), len(shares)))
        slopes = rng.standard_normal((len(found.sizes), scores.every.shape[1]))
        has_slope = scores.spread(np.ones(scores.freedom.shape)) > 0
        lines = scores.parameters(np.where(has_slope, slopes, 0))
        for pair, distance in zip(self.pairs, self.distances(rng), strict=True):
            rows, columns = (found.levels_of(block) for block in pair)
            of_rows = shares[rows]
            of_columns = shares[columns]
            cells = rng.standard_normal((len(of_rows), len(of_columns)))
            own = _of_length(cells, of_rows, of_columns)
            line = _of_length(lines[rows, columns], of_rows, of_columns)
            part = rng.random() if line.any() else 0.0
            mixed = np.sqrt(part) * line + np.sqrt(1 - part) * own
            drawn = distance * _of_length(mixed, of_rows, of_columns)
            drawn *= min(1.0, STRONGEST / max(np.abs(drawn).max(), 1e-12))
            theta[rows, columns] = drawn
            theta[columns, rows] = drawn.T
        return theta


@dataclass(frozen=True, kw_only=True, eq=False)
class _Chances:
    """The odds of each choice: ``of_noise``, shape (choices, pairs passed over), is
    what their scores are less than distances, ``log_others``, shape (choices,), the
    log odds of what was taken and of none together; both in records, but for
    ``scale``, the records of a nat.
    """

    of_noise: FloatArray
    log_others: FloatArray
    scale: float
    records: float

    @classmethod
    def of(
        cls,
        choice: PairChoice,
        numbers: Sequence[int],
        found: NoisyPairs,
        passed: Sequence[int],
        counted: Mapping[int, float],
    ) -> "_Chances":
        levels = np.diagonal(found.counts)
        shares = [levels[found.levels_of(k)] / found.n for k in range(len(found.sizes))]
        scale = choice.records_a_nat
        of_noise = list[FloatArray]()
        log_others = list[float]()
        for place, number in enumerate(numbers):
            less = choice.of_noise(choice.taken(numbers[:place]), shares)
            others = choice.threshold / scale
            if number in counted:
                score = counted[number] * found.n - less[number]
                others = float(np.logaddexp(others, score / scale))
            of_noise.append(less[list(passed)])
            log_others.append(others)
        return cls(
            of_noise=np.array(of_noise).reshape(len(numbers), len(passed)),
            log_others=np.array(log_others),
            scale=scale,
            records=found.n,
        )

    def log_passed(self, law: FloatArray) -> FloatArray:
        """Return the log probability that no choice takes a pair, by its distance and
        up to a constant, where the others have this law; shape (pairs, distances).
        """
        log = np.zeros(law.shape)
        for less, others in zip(self.of_noise, self.log_others, strict=True):
            scores = (self.records * APART - less[:, None]) / self.scale - others
            odds = np.exp(np.minimum(scores, MOST_LOG_ODDS))
            own = (law * odds).sum(axis=1)
            of_others = 1 + own.sum() - own
            log -= np.log1p(odds / of_others[:, None])
        # what all distances share has no say, and would be 0 beside many choices
        return log - log.max(axis=1, keepdims=True)


def _of_length(
    parameters: FloatArray, of_rows: FloatArray, of_columns: FloatArray
) -> FloatArray:
    """Return parameters less their means by shares, scaled to a distance of 1 from
    independence to first order; 0 where there are none.
    """
    centred = parameters - of_rows @ parameters
    centred = centred - (centred @ of_columns)[:, None]
    length = of_rows @ np.abs(centred) @ of_columns
    return centred / length if length > 0 else np.zeros_like(centred)


def _apart(found: NoisyPairs, pair: BlockPair) -> float:
    """Return how far noisy counts of a pair are from independent, beyond their noise,
    in parts of the records.
    """
    rows, columns = (found.levels_of(block) for block in pair)
    levels = np.diagonal(found.counts)
    independent = np.outer(levels[rows], levels[columns]) / found.n
    beyond = np.abs(found.counts[rows, columns] - independent).sum()
    n_rows, n_columns = found.sizes[list(pair)]
    cells = np.sqrt(n_rows * n_columns * (n_rows - 1) * (n_columns - 1))
    of_noise = MEAN_ABSOLUTE * np.sqrt(found.variance[pair]) * cells
    return float(np.sqrt(max(beyond**2 - of_noise**2, 0)) / found.n)
