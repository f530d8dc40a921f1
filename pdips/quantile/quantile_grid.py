"""Several quantiles of one column on a public grid, chosen together: what their distributions have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits

MOST_RECORDS = 2**31
MOST_PARTS = 64
MOST_POINTS = 2**17
MOST_QUANTILES = 1000
FINEST_QUANTILE = 10**6
LARGEST_EPSILON = 100
MOST_TUPLES = 200_000
"""Outcomes that a law is spelt out for."""


@dataclass(frozen=True, kw_only=True)
class GridQuantiles(ABC):
    """The distribution of all quantiles of one column, as indices of public grid points that never cross.

    Parameters
    ----------
    cumulative : ndarray of integers, shape (points,)
        How many records are at most each grid point; confidential.
    n : int
        Number of records: public under replace-one, confidential under add-remove.
    taus : sequence of Fraction, length m
        The quantiles, increasing, within (0, 1); public.
    epsilon : Fraction
        The price of one draw, at most 100, for one record.
    neighbours : {"replace-one", "add-remove"}
        The relation in which ``epsilon`` is the price.
    parts : int
        Parts into which each cell is cut, with its records spread evenly over them, so that many equal values can be
        told apart by rank. It changes no price.

    Raises
    ------
    InputError
        If a setting is out of range or the counts can't be cumulative counts; the message shows no count.
    """

    cumulative: NDArray[Any]
    n: int
    taus: Sequence[Fraction]
    epsilon: Fraction
    neighbours: Neighbours
    parts: int = 1

    def __post_init__(self) -> None:
        """Check the settings, none of which depends on a record, and then the counts."""
        check_quantiles(self.taus)
        if not isinstance(self.epsilon, Fraction | int) or not 0 < self.epsilon <= LARGEST_EPSILON:
            raise InputError(f"epsilon of joint quantiles must be a fraction above 0 and at most {LARGEST_EPSILON}")
        if self.neighbours not in get_args(Neighbours):
            raise InputError(f"neighbours must be one of {', '.join(get_args(Neighbours))}")
        if not 1 <= self.parts <= MOST_PARTS:
            raise InputError(f"parts must be 1 to {MOST_PARTS}")
        if not 1 <= len(self.cumulative) * self.parts <= MOST_POINTS:
            raise InputError(f"a grid for joint quantiles needs 1 to {MOST_POINTS} points times parts")
        check_counts(self.cumulative, self.n)

    @cached_property
    def heights(self) -> IntArray:
        """Cumulative counts in units of 1/parts record, on a grid whose every cell is cut into parts.

        Position ``g * parts + s`` belongs to cell g. A record still weighs 1 in total.
        """
        cumulative = np.asarray(self.cumulative, dtype=np.int64)
        before = np.concatenate([[0], cumulative[:-1]])
        steps = np.arange(1, self.parts + 1)
        return np.asarray((self.parts * before[:, None] + steps * (cumulative - before)[:, None]).ravel())

    @property
    def total(self) -> int:
        """The count of all records, in the unit of the heights."""
        return self.n * self.parts

    def draw(self, bits: RandomBits, runs: int = 1) -> IntArray:
        """Draw exactly: indices of grid points, nondecreasing in each row, shape (runs, m)."""
        return self.positions(bits, runs) // self.parts

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Return the log probability of each tuple of grid points by enumeration, for tiny grids.

        Raises
        ------
        InputError
            If there are more than 200,000 tuples.
        """
        positions, logs = self.law()
        found: dict[tuple[int, ...], float] = {}
        for key, log in zip(map(tuple, (positions // self.parts).tolist()), logs, strict=True):
            found[key] = float(np.logaddexp(found.get(key, -np.inf), log))
        return found

    @abstractmethod
    def positions(self, bits: RandomBits, runs: int) -> IntArray:
        """Draw positions on the grid of parts, shape (runs, m)."""

    @abstractmethod
    def law(self) -> tuple[IntArray, FloatArray]:
        """Return all tuples of positions, one a row, and their log probabilities."""


def check_quantiles(taus: Sequence[Fraction]) -> None:
    """Refuse quantiles that can't be released together.

    Raises
    ------
    InputError
        If they don't increase strictly within (0, 1) or aren't fractions with a common denominator of at most a
        million.
    """
    if not 0 < len(taus) <= MOST_QUANTILES or not all(isinstance(tau, Fraction) and 0 < tau < 1 for tau in taus):
        raise InputError(f"quantiles must be 1 to {MOST_QUANTILES} fractions above 0 and below 1")
    if any(low >= high for low, high in pairwise(taus)):
        raise InputError("quantiles must be in increasing order, each once")
    if np.lcm.reduce([tau.denominator for tau in taus], dtype=object) > FINEST_QUANTILE:
        raise InputError(
            "quantiles must have a common denominator of at most 1,000,000: give them as decimal fractions"
        )


def check_counts(cumulative: NDArray[Any], n: int) -> None:
    """Refuse what can't be cumulative counts of ``n`` records.

    Raises
    ------
    InputError
        If they aren't whole numbers in one row, fall, or lie outside 0 to ``n``; the message shows no count.
    """
    counts = np.asarray(cumulative)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or not 0 <= n <= MOST_RECORDS:
        raise InputError("cumulative counts must be one row of whole numbers, of at most 2^31 records")
    if len(counts) and (counts[0] < 0 or counts[-1] > n or (np.diff(counts.astype(np.int64)) < 0).any()):
        raise InputError("cumulative counts must not fall, and must lie between 0 and the number of records")
