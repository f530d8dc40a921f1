"""Several quantiles of one column on a public grid, chosen together: what their distributions have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits

MOST_QUANTILES = 1000
FINEST_QUANTILE = 10**6
MOST_TUPLES = 200_000
"""Outcomes that a law is spelt out for."""


@dataclass(frozen=True, kw_only=True)
class GridQuantiles(ABC):
    """The distribution of all quantiles of one column, as indices of public grid points that never cross.

    ``cumulative`` says how many records are at most each grid point, ``n`` how many there are; ``epsilon`` is the price
    of one draw, for one record. Each cell is cut into ``parts``, its records spread evenly over them, so that many
    equal values can be told apart by rank: a record still weighs 1 in total, and no price changes.
    """

    cumulative: IntArray
    n: int
    taus: Sequence[Fraction]
    epsilon: Fraction
    neighbours: Neighbours
    parts: int = 1

    @cached_property
    def heights(self) -> IntArray:
        """Cumulative counts in units of 1/parts record; position ``g * parts + s`` belongs to cell g."""
        cumulative = np.asarray(self.cumulative, dtype=np.int64)
        before = np.concatenate([[0], cumulative[:-1]])
        steps = np.arange(1, self.parts + 1)
        return np.asarray((self.parts * before[:, None] + steps * (cumulative - before)[:, None]).ravel())

    @property
    def total(self) -> int:
        """The count of all records, in the unit of the heights."""
        return self.n * self.parts

    def draw(self, bits: RandomBits, runs: int = 1) -> IntArray:
        """Draw exactly: indices of grid points, nondecreasing in each row, shape (runs, quantiles)."""
        return self.positions(bits, runs) // self.parts

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Return the log probability of each tuple of grid points by enumeration; larger grids are refused."""
        positions, logs = self.law()
        found: dict[tuple[int, ...], float] = {}
        for key, log in zip(map(tuple, (positions // self.parts).tolist()), logs, strict=True):
            found[key] = float(np.logaddexp(found.get(key, -np.inf), log))
        return found

    @abstractmethod
    def positions(self, bits: RandomBits, runs: int) -> IntArray:
        """Draw positions on the grid of parts, shape (runs, quantiles)."""

    @abstractmethod
    def law(self) -> tuple[IntArray, FloatArray]:
        """Return all tuples of positions, one a row, and their log probabilities."""


def check_quantiles(taus: Sequence[Fraction]) -> None:
    """Refuse quantiles that can't be released together: unordered, outside of (0, 1), or not on one fine scale."""
    if not 0 < len(taus) <= MOST_QUANTILES or not all(isinstance(tau, Fraction) and 0 < tau < 1 for tau in taus):
        raise InputError(f"quantiles must be 1 to {MOST_QUANTILES} fractions above 0 and below 1")
    if any(low >= high for low, high in pairwise(taus)):
        raise InputError("quantiles must be in increasing order, each once")
    if np.lcm.reduce([tau.denominator for tau in taus], dtype=object) > FINEST_QUANTILE:
        raise InputError(
            "quantiles must have a common denominator of at most 1,000,000: give them as decimal fractions"
        )
