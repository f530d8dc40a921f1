"""All quantiles of one numeric column in one draw: the exponential mechanism on ordered tuples of public grid points.

Gillenwater, Joseph and Kulesza (2021), *Differentially private quantiles*, with tight prices, on a public grid, and
with every probability that is not exact paid for. Proofs: ``docs/proofs/kng.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations_with_replacement, pairwise
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits
from pdips.quantile.extended_float import ROUNDING, Powers, Wide, choose, exponential, plus, times, wide, zeros
from pdips.quantile.quantile_grid import check_base, check_counts, check_public, spread

ERRORS_A_LEVEL = 32
"""Relative error of a step of the forward pass, in units of ``ROUNDING``, for each doubling of the grid: 17 at most."""

MOST_TUPLES = 200_000

COMPILED_FROM = 4096
"""Positions from which the sums are worth compiling."""


def joint_quantiles(
    cumulative: NDArray[Any],
    n: int,
    taus: Sequence[Fraction],
    epsilon: Fraction,
    bits: RandomBits,
    *,
    neighbours: Neighbours,
    base: NDArray[Any] | None = None,
    parts: int = 1,
    runs: int = 1,
) -> IntArray:
    """Draw all quantiles of one column at once, as indices of public grid points that never cross.

    Parameters
    ----------
    cumulative : ndarray of integers, shape (points,)
        How many records are at most each grid point; confidential.
    n : int
        Number of records: public under replace-one, confidential under add-remove.
    taus : sequence of Fraction, length m
        The quantiles, increasing, within (0, 1); public.
    epsilon : Fraction
        The price of one run, at most 100.
    bits : RandomBits
        Source of uniform bits.
    neighbours : {"replace-one", "add-remove"}
        The relation in which ``epsilon`` is the price.
    base : ndarray of integers, shape (points,), optional
        Public base measure of each grid point, 1 to 2^52; 1 if left out.
    parts : int, default 1
        Parts into which each cell is cut, with its records spread evenly over them. Where many records may share a
        value, a part should hold fewer of them than the smallest gap is to hold: 32 or more for fifty gaps.
    runs : int, default 1
        Independent runs, each at the full price: for audits and studies.

    Returns
    -------
    ndarray of int64, shape (runs, m)
        Indices of grid points, nondecreasing in each row.

    Raises
    ------
    InputError
        If a setting is out of range, epsilon is too small for doubles, or the counts can't be cumulative counts.

    Notes
    -----
    With gaps c_j between neighbouring quantiles and their targets t_j = n (tau_j - tau_(j-1)), a tuple has probability
    proportional to exp(-unit * sum_j abs(c_j - t_j)) and its base weights. The unit is :func:`joint_unit`. Cost: O(m G
    log G).
    """
    problem = _problem(cumulative, n, taus, epsilon, neighbours, base, parts, runs)
    return problem.draw(runs, bits) // parts


def joint_unit(taus: Sequence[Fraction], epsilon: Fraction, neighbours: Neighbours, size: int) -> Fraction:
    """Return nats for one record of misfit: the tight oscillation is 4 under replace-one, 4 (1 - w) under add-remove.

    Here w is the smallest of the m + 1 gaps between neighbouring quantiles, 0 and 1. What rounding can add to the
    privacy loss is taken off epsilon first: :func:`rounding_price`.

    Raises
    ------
    InputError
        If rounding would take more than half of epsilon.
    """
    left = epsilon - rounding_price(len(taus), size)
    if left < epsilon / 2:
        raise InputError("epsilon is too small for joint quantiles: rounding would take more than half of it")
    smallest = min(high - low for low, high in pairwise([Fraction(0), *taus, Fraction(1)]))
    return left / 4 if neighbours == "replace-one" else left / (4 * (1 - smallest))


def rounding_price(n_quantiles: int, size: int) -> Fraction:
    """Return what rounding adds to the privacy loss at most, for ``size`` grid points times parts."""
    step = ERRORS_A_LEVEL * (size.bit_length() + 1) * ROUNDING
    return 2 * (n_quantiles + 2) ** 2 * step


def joint_law(
    cumulative: NDArray[Any],
    n: int,
    taus: Sequence[Fraction],
    epsilon: Fraction,
    *,
    neighbours: Neighbours,
    base: NDArray[Any] | None = None,
    parts: int = 1,
) -> dict[tuple[int, ...], float]:
    """Return the log probability of each tuple of grid indices by enumeration: for audits and tests, on tiny grids.

    Raises
    ------
    InputError
        As :func:`joint_quantiles`, or if there are more than 200,000 tuples.
    """
    return _problem(cumulative, n, taus, epsilon, neighbours, base, parts, 1).law(parts)


def _problem(
    cumulative: NDArray[Any],
    n: int,
    taus: Sequence[Fraction],
    epsilon: Fraction,
    neighbours: Neighbours,
    base: NDArray[Any] | None,
    parts: int,
    runs: int,
) -> "_Gaps":
    check_public(taus, epsilon, neighbours, len(cumulative), parts, runs)
    weights = np.repeat(check_base(base, len(cumulative)), parts)
    unit = joint_unit(taus, epsilon, neighbours, len(weights))
    shares = [high - low for low, high in pairwise([Fraction(0), *taus, Fraction(1)])]
    return _Gaps(
        heights=spread(check_counts(cumulative, n), parts),
        total=n * parts,
        targets=[n * parts * share for share in shares],
        base=weights,
        unit=unit / parts,
    )


@dataclass(frozen=True)
class _Gaps:
    """Tuples of grid positions, weighed by how far the counts in the gaps between them are from their targets.

    Parameters
    ----------
    heights : ndarray of int64, shape (points,)
        Cumulative counts.
    total : int
        The count of all.
    targets : list of Fraction, length m + 1
        Target of each gap.
    base : ndarray of int64, shape (points,)
        Public base weights.
    unit : Fraction
        Nats for one step of a count.
    """

    heights: IntArray
    total: int
    targets: list[Fraction]
    base: IntArray
    unit: Fraction

    @cached_property
    def powers(self) -> Powers:
        return Powers(self.unit, self.total)

    @cached_property
    def decays(self) -> list[Wide]:
        """exp(-unit (N_g - N_(g - 2^k))) for each k; 0 where g < 2^k."""
        found, size = [], len(self.heights)
        for k in range(size.bit_length()):
            places = min(2**k, size)
            fall = np.zeros(size, dtype=np.int64)
            fall[places:] = self.heights[places:] - self.heights[: size - places]
            found.append(self.powers.at(fall).where(np.arange(size) >= places))
        return found

    @cached_property
    def forward(self) -> list[Wide]:
        """Total weight of the first j quantiles, the last of them at g, for j = 1, ..., m."""
        base = wide(self.base.astype(np.float64))
        reached = [times(base, self.weights(0, self.heights))]
        for j in range(1, len(self.targets) - 1):
            reached.append(times(base, self._step(j, reached[-1])))
        return reached

    def weights(self, j: int, gaps: IntArray) -> Wide:
        """Return exp(-unit abs(gap - target_j))."""
        above = ceil(self.targets[j])
        full, part = self._ends(j)
        over = gaps >= above
        whole = self.powers.at(np.where(over, gaps - above, above - 1 - gaps))
        return times(whole, Wide(*(np.where(over, a, b) for a, b in zip(full, part, strict=True))))

    def _ends(self, j: int) -> tuple[Wide, Wide]:
        """Return the weights of the whole number at or above the target, and of the one below it."""
        excess = ceil(self.targets[j]) - self.targets[j]
        return exponential(self.unit * excess), exponential(self.unit * (1 - excess))

    def _step(self, j: int, reached: Wide) -> Wide:
        """Return sum over g' <= g of reached(g') exp(-unit abs(N_g - N_g' - target_j)), for every g."""
        above, heights = ceil(self.targets[j]), self.heights
        positions = np.arange(len(heights))
        last = np.minimum(np.searchsorted(heights, heights - above, side="right") - 1, positions)
        full, part = self._ends(j)
        at = np.maximum(last, 0)
        far = self.powers.at(np.where(last >= 0, heights - heights[at] - above, 0))
        far = times(times(far, full), self._prefixes(reached).take(at)).where(last >= 0)
        first = np.minimum(last + 1, positions)
        near = self.powers.at(np.where(last < positions, above - 1 - heights + heights[first], 0))
        near = times(times(near, part), self._windows(reached, positions - last))
        return plus(far, near.where(last < positions))

    def _prefixes(self, reached: Wide) -> Wide:
        """Return sum over g' <= g of reached(g') exp(-unit (N_g - N_g')), by doubling."""
        if len(self.heights) >= COMPILED_FROM:
            return self._compiled(reached, None)
        total = reached
        for k, decay in enumerate(self.decays[: (len(self.heights) - 1).bit_length()]):
            total = plus(total, times(decay, total.later(2**k)))
        return total

    def _windows(self, reached: Wide, lengths: IntArray) -> Wide:
        """Return sum over g - length < g' <= g of reached(g') exp(-unit (N_g' - N_(g - length + 1)))."""
        size = len(self.heights)
        if size >= COMPILED_FROM:
            return self._compiled(reached, lengths)
        left, total, block = np.arange(1, size + 1), zeros(size), reached
        for k, decay in enumerate(self.decays):
            used = (lengths >> k) & 1 == 1
            start = np.maximum(left - 2**k, 0)
            more = plus(block.take(start), times(decay.take(np.minimum(left, size - 1)), total))
            total = Wide(*(np.where(used, a, b) for a, b in zip(more, total, strict=True)))
            left = np.where(used, start, left)
            right = np.minimum(np.arange(size) + 2**k, size - 1)
            beyond = np.arange(size) + 2**k < size
            block = plus(block, times(decay.take(right), block.take(right)).where(beyond))
        return total

    @cached_property
    def _stacked(self) -> Wide:
        return Wide(*(np.stack(part) for part in zip(*self.decays, strict=True)))

    def _compiled(self, reached: Wide, lengths: IntArray | None) -> Wide:
        """Return prefix sums, or sums over windows, by the compiled twins of the numpy code above."""
        from pdips.quantile import wide_kernels

        copy = Wide(reached.mantissa.copy(), reached.exponent.copy())
        if lengths is None:
            wide_kernels.prefixes(*copy, *self._stacked, wide_kernels.SHIFTS)
            return copy
        total = zeros(len(self.heights))
        wide_kernels.windows(*copy, *self._stacked, lengths, *total, wide_kernels.SHIFTS)
        return total

    def _candidates(self, j: int, following: int | None) -> Wide:
        """Return weights of the j-th quantile's positions, given the next one's (None after the last)."""
        n_open = len(self.heights) if following is None else following + 1
        end = self.total if following is None else self.heights[following]
        return times(self.forward[j].take(np.arange(n_open)), self.weights(j + 1, end - self.heights[:n_open]))

    def draw(self, runs: int, bits: RandomBits) -> IntArray:
        """Draw tuples, the last quantile first."""
        n_quantiles = len(self.targets) - 1
        drawn = np.empty((runs, n_quantiles), dtype=np.int64)
        drawn[:, -1] = choose(self._candidates(n_quantiles - 1, None), runs, bits)
        for j in reversed(range(n_quantiles - 1)):
            for following in np.unique(drawn[:, j + 1]):
                rows = np.flatnonzero(drawn[:, j + 1] == following)
                drawn[rows, j] = choose(self._candidates(j, int(following)), len(rows), bits)
        return drawn

    def log_probability(self, positions: Sequence[int]) -> float:
        """Return the log probability with which :meth:`draw` draws these positions, to double precision."""
        total = 0.0
        for j, following in enumerate([*positions[1:], None]):
            logs = self._candidates(j, following).log()
            total += logs[positions[j]] - np.logaddexp.reduce(logs)
        return float(total)

    def law(self, parts: int) -> dict[tuple[int, ...], float]:
        """Return log probabilities of all tuples of cells, from their definition."""
        n_quantiles, size = len(self.targets) - 1, len(self.heights)
        tuples = list(combinations_with_replacement(range(size), n_quantiles))
        if len(tuples) > MOST_TUPLES:
            raise InputError("the law of joint quantiles can be spelt out only for tiny grids")
        positions = np.array(tuples)
        ends = np.zeros((len(tuples), 1), dtype=np.int64), np.full((len(tuples), 1), self.total)
        gaps = np.diff(np.concatenate([ends[0], self.heights[positions], ends[1]], axis=1), axis=1)
        scale = np.lcm.reduce([target.denominator for target in self.targets], dtype=object)
        aims = np.array([int(target * scale) for target in self.targets])
        misfit = np.abs(gaps * int(scale) - aims).sum(axis=1)
        logs = np.log(self.base)[positions].sum(axis=1) - float(self.unit / scale) * misfit
        logs -= np.logaddexp.reduce(logs)
        merged: dict[tuple[int, ...], float] = {}
        for cells, log in zip(map(tuple, (positions // parts).tolist()), logs, strict=True):
            merged[cells] = float(np.logaddexp(merged.get(cells, -np.inf), log))
        return merged
