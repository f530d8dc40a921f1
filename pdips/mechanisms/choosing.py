"""Who makes the private choices of a sequence of steps: exact draws, or an enumeration of all that could be drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pdips.mechanism import Outcome
from pdips.noise import RandomBits, choice_log_probabilities, discrete_laplace, exponential_mechanism

IntArray = NDArray[np.int64]


class Chooser(Protocol):
    """Makes the private choices of a mechanism that is a sequence of exponential mechanisms and noisy counts."""

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        """Return a candidate, drawn with probability proportional to exp(unit * score)."""
        ...

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        """Return counts with discrete Laplace noise of a scale."""
        ...


@dataclass(frozen=True)
class Exact:
    """Draws from random bits, exactly."""

    bits: RandomBits

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        """See :class:`Chooser`."""
        return int(exponential_mechanism(scores[None], unit, self.bits)[0])

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        """See :class:`Chooser`."""
        return counts + discrete_laplace(scale, len(counts), self.bits)


@dataclass
class Recording:
    """Notes what another chooser releases, for audits."""

    chooser: Chooser
    seen: list[int] = field(default_factory=list)

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        """See :class:`Chooser`."""
        self.seen.append(self.chooser.choose(scores, unit))
        return self.seen[-1]

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        """See :class:`Chooser`."""
        noisy = self.chooser.count(counts, scale)
        self.seen += [int(each) for each in noisy]
        return noisy


@dataclass
class _Path:
    """Follows one way through all choices, the first candidate where none is prescribed."""

    prescribed: Sequence[int]
    log_probabilities: list[NDArray[np.float64]] = field(default_factory=list)
    statistics: list[int] = field(default_factory=list)
    scales: list[Fraction] = field(default_factory=list)

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        found = choice_log_probabilities(scores[None], unit)[0]
        self.log_probabilities.append(found)
        depth = len(self.log_probabilities)
        return self.prescribed[depth - 1] if depth <= len(self.prescribed) else int(np.isfinite(found).argmax())

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        self.statistics += [int(each) for each in counts]
        self.scales += [scale] * len(counts)
        return counts


def outcomes(mechanism: Callable[[Chooser], object]) -> Iterator[Outcome]:
    """Yield all outcomes of a mechanism whose noisy counts steer no later choice, for tiny tables.

    Parameters
    ----------
    mechanism : callable
        Takes a chooser and makes all its choices through it.
    """
    pending: list[tuple[int, ...]] = [()]
    while pending:
        prescribed = pending.pop()
        path = _Path(prescribed)
        mechanism(path)
        if len(path.log_probabilities) == len(prescribed):
            total = sum(float(each[k]) for each, k in zip(path.log_probabilities, prescribed, strict=True))
            scales, statistics = tuple(path.scales), tuple(path.statistics)
            yield Outcome(key=prescribed, log_probability=total, statistics=statistics, scales=scales)
            continue
        following = path.log_probabilities[len(prescribed)]
        pending += [(*prescribed, int(k)) for k in np.flatnonzero(np.isfinite(following))]
