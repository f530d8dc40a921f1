"""Who makes the private choices of a sequence of steps: exact draws, or an enumeration of all that could be drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any, Protocol

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits, choice_log_probabilities, discrete_laplace, exponential_mechanism
from pdips.privacy.replay import Outcome
from pdips.quantile.joint import joint_law, joint_quantiles
from pdips.quantile.recursive import recursive_law, recursive_quantiles

MOST_AT_ONCE = 2_000_000
"""Scores that are held at a time where many runs choose."""


@dataclass(frozen=True, kw_only=True)
class AtOnce:
    """Several quantiles of one column that are chosen together, and the price of all of them."""

    scheme: str
    taus: tuple[Fraction, ...]
    epsilon: Fraction
    neighbours: Neighbours

    @property
    def parts(self) -> int:
        """How many parts the records of a cell are spread over, so that many equal values can be told apart by rank."""
        return 16 if self.scheme == "recursive" else 8

    def draw(self, below: IntArray, n: int, bits: RandomBits, runs: int = 1) -> IntArray:
        """Draw the places of all quantiles on the grid, shape (runs, quantiles)."""
        function = recursive_quantiles if self.scheme == "recursive" else joint_quantiles
        settings: dict[str, Any] = {"neighbours": self.neighbours, "parts": self.parts}
        return np.asarray(function(below, n, self.taus, self.epsilon, bits, runs=runs, **settings), dtype=np.int64)

    def law(self, below: IntArray, n: int) -> dict[tuple[int, ...], float]:
        """Return the log probability of each tuple of places, for tiny grids."""
        function = recursive_law if self.scheme == "recursive" else joint_law
        settings: dict[str, Any] = {"neighbours": self.neighbours, "parts": self.parts}
        return dict(function(below, n, self.taus, self.epsilon, **settings))


class Chooser(Protocol):
    """Makes the private choices of a mechanism that is a sequence of exponential mechanisms and noisy counts."""

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        """Return a candidate, drawn with probability proportional to exp(unit * score)."""
        ...

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        """Return counts with discrete Laplace noise of a scale."""
        ...

    def quantiles(self, below: IntArray, n: int, how: AtOnce) -> IntArray:
        """Return the places of several quantiles on a grid, given the records on or below each point."""
        ...

    def thin(self, n: int) -> BoolArray | None:
        """Return a secret coin for each record: whether a coarse step reads it; None if it reads all."""
        ...


@dataclass(frozen=True)
class Exact:
    """Draws from random bits, exactly.

    Parameters
    ----------
    bits : RandomBits
        Where randomness comes from.
    keep : float
        How likely a coarse step is to read a record; a function of public numbers.
    """

    bits: RandomBits
    keep: float = 1.0

    def thin(self, n: int) -> BoolArray | None:
        """See :class:`Chooser`."""
        return self.bits.words(n, np.uint32) < self.keep * 2.0**32 if self.keep < 1 else None

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        """See :class:`Chooser`."""
        return int(exponential_mechanism(scores[None], unit, self.bits)[0])

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        """See :class:`Chooser`."""
        return counts + discrete_laplace(scale, len(counts), self.bits)

    def quantiles(self, below: IntArray, n: int, how: AtOnce) -> IntArray:
        """See :class:`Chooser`."""
        return np.asarray(how.draw(below, n, self.bits)[0])


@dataclass
class Recording:
    """Notes what another chooser releases, for audits."""

    chooser: Chooser
    seen: list[int] = field(default_factory=list)

    def thin(self, n: int) -> BoolArray | None:
        """See :class:`Chooser`."""
        return self.chooser.thin(n)

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        """See :class:`Chooser`."""
        self.seen.append(self.chooser.choose(scores, unit))
        return self.seen[-1]

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        """See :class:`Chooser`."""
        noisy = self.chooser.count(counts, scale)
        self.seen += [int(each) for each in noisy]
        return noisy

    def quantiles(self, below: IntArray, n: int, how: AtOnce) -> IntArray:
        """See :class:`Chooser`."""
        places = self.chooser.quantiles(below, n, how)
        self.seen += [int(each) for each in places]
        return places


@dataclass
class _Many:
    """Follows one way through the first choices for many runs, then draws the next choice of each."""

    prescribed: Sequence[int]
    n_runs: int
    bits: RandomBits
    drawn: IntArray | None = None
    depth: int = 0
    columns: list[IntArray] = field(default_factory=list)

    def thin(self, n: int) -> None:
        return None

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

    def quantiles(self, below: IntArray, n: int, how: AtOnce) -> IntArray:
        size, n_taus = len(below), len(how.taus)
        self.depth += 1
        if self.depth <= len(self.prescribed):
            places = np.array(np.unravel_index(self.prescribed[self.depth - 1], (size,) * n_taus), dtype=np.int64)
            self.columns += [np.full(self.n_runs, place) for place in places]
            return places
        if self.drawn is None:
            drawn = how.draw(below, n, self.bits, self.n_runs)
            self.drawn = np.ravel_multi_index(tuple(drawn.T), (size,) * n_taus)
        return np.zeros(n_taus, dtype=np.int64)

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
    log_probabilities: list[FloatArray] = field(default_factory=list)
    statistics: list[int] = field(default_factory=list)
    scales: list[Fraction] = field(default_factory=list)

    def thin(self, n: int) -> None:
        return None

    def choose(self, scores: IntArray, unit: Fraction) -> int:
        self.log_probabilities.append(choice_log_probabilities(scores[None], unit)[0])
        return self._follow()

    def count(self, counts: IntArray, scale: Fraction) -> IntArray:
        self.statistics += [int(each) for each in counts]
        self.scales += [scale] * len(counts)
        return counts

    def quantiles(self, below: IntArray, n: int, how: AtOnce) -> IntArray:
        found = how.law(below, n)
        every = [*product(range(len(below)), repeat=len(how.taus))]
        self.log_probabilities.append(np.array([found.get(places, -np.inf) for places in every]))
        return np.array(every[self._follow()], dtype=np.int64)

    def _follow(self) -> int:
        depth = len(self.log_probabilities)
        if depth <= len(self.prescribed):
            return self.prescribed[depth - 1]
        return int(np.isfinite(self.log_probabilities[-1]).argmax())


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
