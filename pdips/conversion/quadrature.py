"""A density integrated over numbers that each record has of its own, as a graph.

Sums over evenly spaced points converge faster than any power of their distance where
the integrand is smooth and falls off on both sides: a normal density has an error of 2
exp(-2 (pi / h)^2) at a distance of h standard deviations, 5e-35 at the h of
:data:`FINAL` (Trefethen and Weideman, 2014, "The exponentially convergent trapezoidal
rule", SIAM Review 56). So all that matters is where the points lie. They are found for
each record by itself: a first row covers what the prior allows, and a few narrower ones
follow, each about the mean that the row before it found.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.scalar.basic import UnaryScalarOp, upgrade_to_float
from pytensor.tensor.elemwise import Elemwise
from scipy.special import ndtr

from pdips.arrays import FloatArray

# Standard normal numbers whose probabilities are those of the first row's points
FIRST_STEP = 1.0
FIRST = np.arange(-6, 6 + FIRST_STEP / 2, FIRST_STEP)
# Further points on both sides, in units of the distance of its ends: for records that
# the prior all but excludes
BEYOND = np.array([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
# Rows in between, in units of the standard deviation that was found before
N_BETWEEN = 2
BETWEEN_STEP = 0.3
BETWEEN = np.arange(-3, 3 + BETWEEN_STEP / 2, BETWEEN_STEP)
FINAL_STEP = 0.5
FINAL = np.arange(-10, 10 + FINAL_STEP / 2, FINAL_STEP)
"""Points of the sum, 41 of them, in posterior standard deviations of a record's
number.
"""


class FixedPoint(UnaryScalarOp):  # type: ignore[misc]
    """A number itself, with no slope: where the points of a sum lie doesn't matter to
    it, so neither does how they move.
    """

    nfunc_spec = ("positive", 1, 1)

    def impl(self, x: Any) -> Any:
        """Return the number."""
        return x

    def connection_pattern(self, node: Any) -> list[list[bool]]:
        """Say that no slope goes through."""
        return [[False]]

    def c_code(self, *args: Any) -> str:
        """Return C code: there is none."""
        raise NotImplementedError


fixed = Elemwise(FixedPoint(upgrade_to_float, name="fixed"))


def probabilities(shift: float = 0.0) -> FloatArray:
    """Return probabilities below the points of the first row, shape (points, 1), these
    moved by a share of their distance.
    """
    return np.asarray(ndtr(FIRST + shift * FIRST_STEP))[:, None]


def first_row(points: Any, gaps: Any) -> tuple[Any, Any]:
    """Return points that cover what the prior allows, and how far each is from the
    next, both with further ones on each side.
    """
    reach = points[-1:] - points[:1]
    steps = reach * np.diff(BEYOND, prepend=0.0)[:, None]
    lower = points[:1] - reach * BEYOND[:, None]
    upper = points[-1:] + reach * BEYOND[:, None]
    whole = pt.concatenate([lower, points, upper], axis=0)
    return whole, pt.concatenate([steps, gaps, steps], axis=0)


def log_integral(log_density: Any, number: Any, first: Any, gaps: Any) -> Any:
    """Return the logarithm of a density's integral over one number of each record.

    Parameters
    ----------
    log_density : variable, shape (records,)
        A graph in which a record's entry reads its own number alone.
    number : variable, shape (records,)
        What is integrated over, on the whole real line.
    first, gaps : variable, shape (points, records)
        Points that cover what the prior allows, and how far each is from the next.
    """

    # written for many points once, which takes far longer than to put points in
    grid = pt.matrix("points", dtype=number.dtype)
    [on_grid] = vectorize_graph([log_density], {number: grid})

    def at(points: Any) -> Any:
        [values] = graph_replace([on_grid], {grid: points.astype(number.dtype)})
        return pt.switch(pt.isnan(values), -np.inf, values)

    center, spread = _moments(at(first), first, gaps)
    for _ in range(N_BETWEEN):
        points = center + spread * BETWEEN[:, None]
        center, spread = _moments(at(points), points, spread * BETWEEN_STEP)
    points = fixed(center + spread * FINAL[:, None])
    step = fixed(spread * FINAL_STEP)
    return _log_sum(at(points)) + pt.log(step)


def _moments(values: Any, points: Any, gaps: Any) -> tuple[Any, Any]:
    """Return the mean and standard deviation of densities at points, shape (points,
    records), the deviation no smaller than the points' distance.
    """
    logs = values + pt.log(gaps)
    weights = pt.exp(logs - logs.max(axis=0, keepdims=True))
    total = weights.sum(axis=0)
    center = (weights * points).sum(axis=0) / total
    variance = (weights * (points - center) ** 2).sum(axis=0) / total
    distance = (weights * gaps).sum(axis=0) / total
    return center, pt.sqrt(variance + distance**2)


def _log_sum(values: Any) -> Any:
    largest = fixed(values.max(axis=0, keepdims=True))
    largest = pt.switch(pt.isinf(largest), 0.0, largest)
    return pt.log(pt.exp(values - largest).sum(axis=0)) + largest[0]


def log_normal_integral(log_density: Any, numbers: Sequence[Any], zeros: Any) -> Any:
    """Return the logarithm of a density's integral over one or two numbers of each
    record, where its logarithm is quadratic in them: exact.

    Arguments are those of :func:`log_integral`; ``zeros`` are as many as records.
    """
    slopes = pt.grad(log_density.sum(), list(numbers))
    bends = [
        pt.grad(slope.sum(), list(numbers), disconnected_inputs="ignore")
        for slope in slopes
    ]
    graphs = [log_density, *slopes, *(bend for row in bends for bend in row)]
    top, *parts = graph_replace(graphs, dict.fromkeys(numbers, zeros), strict=False)
    if len(numbers) == 1:
        slope, bend = parts
        return top - slope**2 / (2 * bend) + 0.5 * pt.log(2 * np.pi / -bend)
    one, two, one_one, one_two, _, two_two = parts
    determinant = one_one * two_two - one_two**2
    square = two_two * one**2 - 2 * one_two * one * two + one_one * two**2
    raised = -square / (2 * determinant)
    return top + raised + np.log(2 * np.pi) - 0.5 * pt.log(determinant)
