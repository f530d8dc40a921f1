"""The noisy numbers of groups, on the scale on which a record's outcome is between -1
and 1.
"""

from dataclasses import dataclass, replace

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.groups.design import GroupDesign

# Of noise that is as good as none, in records squared
LEAST_VARIANCE = 1e-4


@dataclass(frozen=True, eq=False)
class NoisyGroups:
    """For each group a noisy number of records and a noisy sum of their outcomes.

    Parameters
    ----------
    design : GroupDesign
        What was counted.
    sizes : ndarray
        Noisy numbers of records, shape (groups,); exact where membership is public.
    sums : ndarray
        Noisy sums of outcomes on [-1, 1], shape (groups,).
    size_variance : float
        Of the noise on each size; 0 where membership is public.
    sum_variance : float
        Of the noise on each sum, independent of that on sizes.
    squares : float or None
        The noisy sum of squared outcomes of all records, where it was asked.
    squares_variance : float
        Of the noise on it.
    n_records : int or None
        The number of records, where it is public.
    """

    design: GroupDesign
    sizes: FloatArray
    sums: FloatArray
    size_variance: float
    sum_variance: float
    squares: float | None
    squares_variance: float
    n_records: int | None

    @classmethod
    def of_ends(
        cls,
        design: GroupDesign,
        noisy: IntArray,
        variance: float,
        *,
        squares: tuple[float, float] | None,
        n_records: int | None,
        public_sizes: IntArray | None,
    ) -> "NoisyGroups":
        """Return the numbers of noisy whole steps at the ends of the range.

        ``variance`` is that of the noise on each number of steps; ``squares`` the
        noisy sum of squares, in records, and the variance of its noise.
        """
        in_records = max(variance / design.steps**2, LEAST_VARIANCE)
        known = (None, 0.0) if squares is None else squares
        ends = noisy / design.steps
        if public_sizes is not None:
            sizes = public_sizes.astype(np.float64)
            sums = 2 * ends - sizes
            size_variance = 0.0
            sum_variance = 4 * in_records
        else:
            lower, upper = ends.reshape(2, -1)
            # sum and difference of two numbers with like noise: uncorrelated
            sizes = lower + upper
            sums = upper - lower
            size_variance = 2 * in_records
            sum_variance = 2 * in_records
        return cls(
            design=design,
            sizes=sizes,
            sums=sums,
            size_variance=size_variance,
            sum_variance=sum_variance,
            squares=known[0],
            squares_variance=known[1],
            n_records=n_records,
        )

    @property
    def n_groups(self) -> int:
        return len(self.sizes)

    @property
    def total(self) -> float:
        """About how many records there are, at least 1."""
        if self.n_records is not None:
            return float(max(self.n_records, 1))
        return max(float(self.sizes.sum()), 1.0)

    @property
    def n_within(self) -> int:
        """How many groups have an effect in common."""
        return self.design.n_within

    @property
    def n_effects(self) -> int:
        return self.n_groups // self.n_within

    def some(self, effects: IntArray) -> "NoisyGroups":
        """Return the numbers of the groups of some effects, without what is of all
        records.
        """
        sizes = self.sizes.reshape(-1, self.n_within)
        sums = self.sums.reshape(-1, self.n_within)
        return replace(
            self,
            sizes=sizes[effects].ravel(),
            sums=sums[effects].ravel(),
            squares=None,
            n_records=None,
        )

    def direct(self, deviation: float | None = None) -> tuple[FloatArray, FloatArray]:
        """Return, for each group, an interval of its mean that is made of its own noisy
        numbers alone, on [-1, 1]: those means from which the noisy sum is no further
        than 1.96 deviations.

        ``deviation`` is that of records about their mean; left out, that of an outcome
        at the ends of its range, which is the largest.
        """
        z_squared = 1.959964**2
        size = np.maximum(self.sizes, 1.0)
        # (sum - m size)^2 <= z^2 (noise + m^2 noise of sizes + size v), in m
        sampling = size * (1.0 if deviation is None else deviation**2)
        sizes_noise = z_squared * self.size_variance
        leading = self.sizes**2 - sizes_noise
        if deviation is None:
            leading = leading + z_squared * size
        middle = self.sizes * self.sums
        rest = self.sums**2 - z_squared * (self.sum_variance + sampling)
        root = np.sqrt(np.maximum(middle**2 - leading * rest, 0.0))
        is_bounded = (leading > 0) & (self.sizes > 0)
        safe = np.where(is_bounded, leading, 1.0)
        lower = np.where(is_bounded, (middle - root) / safe, -1.0)
        upper = np.where(is_bounded, (middle + root) / safe, 1.0)
        return np.clip(lower, -1, 1), np.clip(upper, -1, 1)
