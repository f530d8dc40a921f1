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

MOST_AT_ONCE = 2_000_000
"""Scores that are held at a time where many runs choose."""


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
class _Many:
    """Follows one way through the first choices for many runs, then draws the next choice of each."""

    prescribed: Sequence[int]
    n_runs: int
    bits: RandomBits
    drawn: IntArray | None = None
    depth: int = 0
    columns: list[IntArray] = field(default_factory=list)

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        self.depth += 1
        if self.depth <= len(self.prescribed):
            self.columns.append(np.full(self.n_runs, self.prescribed[self.depth - 1]))
            return self.prescribed[self.depth - 1]
        if self.drawn is None:
            rows = max(MOST_AT_ONCE // len(scores), 1)
            parts = [min(rows, self.n_runs - start) for start in range(0, self.n_runs, rows)]
            drawn = [exponential_mechanism(np.broadcast_to(scores, (n, len(scores))), unit, self.bits) for n in parts]
            self.drawn = np.concatenate(drawn)
        return int((scores != np.iinfo(np.int64).min).argmax())

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        if self.drawn is None:
            noise = discrete_laplace(scale, self.n_runs * len(counts), self.bits)
            self.columns += list(counts[:, None] + noise.reshape(len(counts), self.n_runs))
        return counts


def many(mechanism: Callable[[Chooser], object], n_runs: int, bits: RandomBits) -> IntArray:
    """Return choices and noisy counts of independent runs, one a row, if noisy counts steer no later choice.

    Runs that have chosen alike so far read the table once together; what they draw is exact and independent.
    """
    found: dict[int, IntArray] = {}
    pending: list[tuple[tuple[int, ...], IntArray]] = [((), np.arange(n_runs))]
    while pending:
        prescribed, runs = pending.pop()
        chooser = _Many(prescribed, len(runs), bits)
        mechanism(chooser)
        if chooser.drawn is None:
            found |= dict(zip(runs.tolist(), np.stack(chooser.columns, axis=1), strict=True))
        else:
            pending += [((*prescribed, int(k)), runs[chooser.drawn == k]) for k in np.unique(chooser.drawn)]
    return np.stack([found[run] for run in range(n_runs)]).astype(np.int64)


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
